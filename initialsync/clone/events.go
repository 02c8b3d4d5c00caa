package clone

import "log/slog"

// Keys of the attributes of what is logged.
const (
	keyNS     = "ns"
	keyCause  = "cause"
	keyDocs   = "docs"
	keyRanges = "ranges"
	keyOrder  = "order" // "natural" or "_id"
)

// logReplaced announces that documents which were copied before have been replaced.
func (w *writer) logReplaced(docs int) {
	w.cfg.Observer.Log(slog.LevelDebug, "documents were copied again", slog.String(keyNS, string(w.to)), slog.Int(keyDocs, docs))
}
