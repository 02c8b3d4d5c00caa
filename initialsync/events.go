package initialsync

import (
	"log/slog"
	"time"

	"github.com/oplogrep/replicator/oplog"
)

// Keys of the events' attributes.
const (
	keyNS          = "ns"
	keyStep        = "step"
	keyCollections = "collections"
	keyDatabases   = "databases"
	keyViews       = "views"
	keyDocs        = "docs"
	keyBytes       = "bytes"
	keyTook        = "took"
	keyIndex       = "index"
	keyError       = "error"
)

// StepChanged is a copy that has come to another step.
type StepChanged struct{ Step Step }

// Message implements event.Event.
func (StepChanged) Message() string { return "the copy has come to another step" }

// Level implements event.Event.
func (StepChanged) Level() slog.Level { return slog.LevelInfo }

// LogValue implements slog.LogValuer.
func (e StepChanged) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyStep, string(e.Step)))
}

// Cleared is a target in which nothing is in the way of the copy any more.
type Cleared struct {
	// Databases of the source, and how many collections and views of them were
	// found by the process that ended it.
	Databases, Collections int
}

// Message implements event.Event.
func (Cleared) Message() string { return "what was in the way in the target is dropped" }

// Level implements event.Event.
func (Cleared) Level() slog.Level { return slog.LevelInfo }

// LogValue implements slog.LogValuer.
func (e Cleared) LogValue() slog.Value {
	return slog.GroupValue(slog.Int(keyDatabases, e.Databases), slog.Int(keyCollections, e.Collections))
}

// Listed is a source whose collections are written down.
type Listed struct {
	Collections, Views int
	// Docs and Bytes are the source's estimates.
	Docs, Bytes int64
}

// Message implements event.Event.
func (Listed) Message() string { return "what is to be copied is listed" }

// Level implements event.Event.
func (Listed) Level() slog.Level { return slog.LevelInfo }

// LogValue implements slog.LogValuer.
func (e Listed) LogValue() slog.Value {
	return slog.GroupValue(slog.Int(keyCollections, e.Collections), slog.Int(keyViews, e.Views),
		slog.Int64(keyDocs, e.Docs), slog.Int64(keyBytes, e.Bytes))
}

// CollectionCopied is a collection whose documents are all in the target.
type CollectionCopied struct {
	NS          oplog.Namespace
	Docs, Bytes int64
	// Took is since this process began with it.
	Took time.Duration
}

// Message implements event.Event.
func (CollectionCopied) Message() string { return "collection copied" }

// Level implements event.Event: one that took no time is none for the timeline.
func (e CollectionCopied) Level() slog.Level {
	if e.Took < 10*time.Second {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// LogValue implements slog.LogValuer.
func (e CollectionCopied) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyNS, string(e.NS)), slog.Int64(keyDocs, e.Docs), slog.Int64(keyBytes, e.Bytes),
		slog.Duration(keyTook, e.Took))
}

// CollectionGone is a collection that the source dropped before it was copied.
type CollectionGone struct{ NS oplog.Namespace }

// Message implements event.Event.
func (CollectionGone) Message() string {
	return "the source has dropped a collection that was being copied"
}

// Level implements event.Event.
func (CollectionGone) Level() slog.Level { return slog.LevelDebug }

// LogValue implements slog.LogValuer.
func (e CollectionGone) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyNS, string(e.NS)))
}

// IndexFailed is an index that the target cannot build. The copy goes on.
type IndexFailed struct {
	NS    oplog.Namespace
	Index string
	Err   error
}

// Message implements event.Event.
func (IndexFailed) Message() string { return "an index cannot be built on the target" }

// Level implements event.Event.
func (IndexFailed) Level() slog.Level { return slog.LevelWarn }

// LogValue implements slog.LogValuer.
func (e IndexFailed) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyNS, string(e.NS)), slog.String(keyIndex, e.Index), slog.String(keyError, e.Err.Error()))
}

// ViewFailed is a view that the target cannot have. The copy goes on.
type ViewFailed struct {
	NS  oplog.Namespace
	Err error
}

// Message implements event.Event.
func (ViewFailed) Message() string { return "a view cannot be made on the target" }

// Level implements event.Event.
func (ViewFailed) Level() slog.Level { return slog.LevelWarn }

// LogValue implements slog.LogValuer.
func (e ViewFailed) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyNS, string(e.NS)), slog.String(keyError, e.Err.Error()))
}

// CopiedAnew is a capped collection whose copy was interrupted, and is begun anew
// (Config.NoHoles).
type CopiedAnew struct {
	NS oplog.Namespace
	// Docs is how many documents had been copied.
	Docs int64
}

// Message implements event.Event.
func (CopiedAnew) Message() string {
	return "capped collection copied anew: its copy was interrupted, and what the source pushed out meanwhile cannot be deleted"
}

// Level implements event.Event.
func (CopiedAnew) Level() slog.Level { return slog.LevelInfo }

// LogValue implements slog.LogValuer.
func (e CopiedAnew) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyNS, string(e.NS)), slog.Int64(keyDocs, e.Docs))
}
