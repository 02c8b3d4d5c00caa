package clone

import "log/slog"

// Keys of the events' attributes.
const (
	keyNS     = "ns"
	keyCause  = "cause"
	keyDocs   = "docs"
	keyRanges = "ranges"
	keyOrder  = "order" // "natural" or "_id"
)

// logReplaced logs that documents were replaced that had been copied before.
func (w *writer) logReplaced(docs int) {
	w.cfg.Observer.Log(slog.LevelDebug, "documents were copied again", slog.String(keyNS, string(w.to)), slog.Int(keyDocs, docs))
}
