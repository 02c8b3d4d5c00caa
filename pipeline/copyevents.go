package pipeline

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/oplogrep/replicator/initialsync/origin"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/oplog"
)

const (
	keyBegin    = "begin"
	keyGrant    = "grant"
	keyLeft     = "left"
	keyLeftOut  = "leftOut"
	keyNumber   = "number"
	keyOldest   = "oldest"
	keyOpTime   = "optime"
	keyPosition = "position"
	keyStop     = "stop"
)

var (
	_ event.Event = CopyEnded{}
	_ event.Event = Unguarded{}
	_ event.Event = CopyVoid{}
	_ event.Event = Consistent{}
	_ event.Event = SpoolDiscarded{}
	_ event.Event = WindowShort{}
)

// CopyEnded says that everything is copied. The target is consistent once the log
// has been applied up to Stop.
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

// Unguarded says that the member that is about to be copied does not let us see by
// what a member is known that was filled anew.
type Unguarded struct{ Host string }

// Message implements event.Event.
func (Unguarded) Message() string {
	return "the initial-sync id of the member that is copied may not be seen: if it is filled anew meanwhile, that is not noticed"
}

// Level implements event.Event.
func (Unguarded) Level() slog.Level { return slog.LevelWarn }

// LogValue implements slog.LogValuer.
func (e Unguarded) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyHost, e.Host), slog.String(keyGrant, origin.GrantSyncID))
}

// CopyVoid says that a copy cannot become consistent any more, and is made anew.
type CopyVoid struct {
	Number int64
	Err    error
}

// Message implements event.Event.
func (CopyVoid) Message() string { return "the copy is void, and made anew" }

// Level implements event.Event.
func (CopyVoid) Level() slog.Level { return slog.LevelWarn }

// LogValue implements slog.LogValuer.
func (e CopyVoid) LogValue() slog.Value {
	return slog.GroupValue(slog.Int64(keyNumber, e.Number), slog.String(keyError, e.Err.Error()))
}

// Consistent says that the target is what the source was at OpTime, and has been
// kept up with it since.
type Consistent struct {
	OpTime oplog.OpTime
	// LeftOut are collections that are being copied again, of which it is not.
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

// SpoolDiscarded says that the log on disk cannot be used. It is read again from
// the source.
type SpoolDiscarded struct{ Err error }

// Message implements event.Event.
func (SpoolDiscarded) Message() string {
	return "the spool is damaged: the log is read again from the source"
}

// Level implements event.Event.
func (SpoolDiscarded) Level() slog.Level { return slog.LevelWarn }

// LogValue implements slog.LogValuer.
func (e SpoolDiscarded) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyError, e.Err.Error()))
}

// timestampText is that of an entry whose term is not known.
func timestampText(at oplog.OpTime) string { return fmt.Sprintf("%d:%d", at.TS.T, at.TS.I) }

// WindowShort says that the source's oldest entry comes close to where the link
// reads.
type WindowShort struct {
	Host             string
	Oldest, Position oplog.OpTime
	// Left is the estimate of when it passes.
	Left time.Duration
}

// Message implements event.Event.
func (WindowShort) Message() string {
	return "the source's oplog is about to lose what the link has not read; a larger oplog (replSetResizeOplog) gives it more time"
}

// Level implements event.Event.
func (WindowShort) Level() slog.Level { return slog.LevelWarn }

// LogValue implements slog.LogValuer.
func (e WindowShort) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyHost, e.Host), slog.String(keyOldest, timestampText(e.Oldest)),
		slog.String(keyPosition, timestampText(e.Position)), slog.Duration(keyLeft, e.Left.Round(time.Second)))
}
