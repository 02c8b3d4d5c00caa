package pipeline

import (
	"log/slog"

	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/oplog"
)

const (
	keyLeft     = "left"
	keyLeftOut  = "leftOut"
	keyNumber   = "number"
	keyOldest   = "oldest"
	keyOpTime   = "optime"
	keyPosition = "position"
)

var _ event.Event = Consistent{}

// Consistent announces that the target equals the source as of OpTime, and has followed
// it since.
type Consistent struct {
	OpTime oplog.OpTime
	// LeftOut are the collections that are being copied again, to which this does not
	// apply.
	LeftOut []oplog.Namespace
}

// Message implements event.Event.
func (e Consistent) Message() string {
	if len(e.LeftOut) > 0 {
		return "the target is consistent but for what is copied again"
	}
	return "the target is consistent"
}

// Level implements event.Event.
func (Consistent) Level() slog.Level { return slog.LevelInfo }

// LogValue implements slog.LogValuer.
func (e Consistent) LogValue() slog.Value {
	attrs := []slog.Attr{slog.String(keyOpTime, e.OpTime.String())}
	if len(e.LeftOut) > 0 {
		attrs = append(attrs, slog.Any(keyLeftOut, e.LeftOut))
	}
	return slog.GroupValue(attrs...)
}
