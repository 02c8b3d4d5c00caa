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
	keyDir         = "dir"
	keyHost        = "host"
	keyGrant       = "grant"
	keyNumber      = "number"
	keyBegin       = "begin"
	keyStop        = "stop"
	keyFrom        = "from"
	keyWhy         = "why"
	keyAgain       = "readAgain"
)

// StepChanged announces that a copy has started another step.
type StepChanged struct{ Step Step }

// Message implements event.Event.
func (StepChanged) Message() string { return "the copy has come to another step" }

// Level implements event.Event.
func (StepChanged) Level() slog.Level { return slog.LevelInfo }

// LogValue implements slog.LogValuer.
func (e StepChanged) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyStep, string(e.Step)))
}

// copied is how much of a collection was copied, and how long this process took.
type copied struct {
	docs, bytes int64
	took        time.Duration
}

func (c *Copier) logCopied(ns oplog.Namespace, done copied) {
	level := slog.LevelInfo
	if done.took < 10*time.Second {
		level = slog.LevelDebug // there may be thousands
	}
	c.cfg.Observer.Log(level, "collection copied", slog.String(keyNS, string(ns)),
		slog.Int64(keyDocs, done.docs), slog.Int64(keyBytes, done.bytes), slog.Duration(keyTook, done.took))
}

// CopyEnded announces that everything is copied. The target is consistent once the
// oplog has been applied up to Stop.
type CopyEnded struct {
	Number      int64
	Begin, Stop oplog.OpTime
}

// Message implements event.Event.
func (CopyEnded) Message() string {
	return "everything is copied, the log of the meantime is applied now"
}

// Level implements event.Event.
func (CopyEnded) Level() slog.Level { return slog.LevelInfo }

// LogValue implements slog.LogValuer.
func (e CopyEnded) LogValue() slog.Value {
	return slog.GroupValue(slog.Int64(keyNumber, e.Number), slog.String(keyBegin, e.Begin.String()), slog.String(keyStop, e.Stop.String()))
}
