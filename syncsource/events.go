package syncsource

import (
	"log/slog"
	"time"

	"github.com/oplogrep/replicator/oplog"
)

// Keys of the events' attributes.
const (
	keyFrom   = "from"
	keyTo     = "to"
	keyHost   = "host"
	keyReason = "reason"
	keyTerm   = "term"
	keyFor    = "for"
	keyEqual  = "nothingNewer"

	keyRefused = "refused"
)

// SourceChosen is a source that was set, be it the same as before.
type SourceChosen struct {
	// From is the source before, empty for the first one.
	From, To string
	Reason   string
	// Refused has every member that was not chosen.
	Refused []Refusal
	// Equal tells that the source has nothing newer than what was fetched.
	Equal bool
}

// Message implements event.Event.
func (SourceChosen) Message() string { return "source chosen" }

// Level implements event.Event.
func (SourceChosen) Level() slog.Level { return slog.LevelInfo }

// LogValue implements slog.LogValuer.
func (e SourceChosen) LogValue() slog.Value {
	attrs := []slog.Attr{slog.String(keyFrom, e.From), slog.String(keyTo, e.To), slog.String(keyReason, e.Reason)}
	if e.Equal {
		attrs = append(attrs, slog.Bool(keyEqual, true))
	}
	return slog.GroupValue(append(attrs, refused(e.Refused)...)...)
}

// SourceLeft is a source that is to be left.
type SourceLeft struct{ Host, Reason string }

// Message implements event.Event.
func (SourceLeft) Message() string { return "source to be changed" }

// Level implements event.Event.
func (SourceLeft) Level() slog.Level { return slog.LevelInfo }

// LogValue implements slog.LogValuer.
func (e SourceLeft) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyHost, e.Host), slog.String(keyReason, e.Reason))
}

// SourceDenied is a member that is not to be read from for a while.
type SourceDenied struct {
	Host   string
	For    time.Duration
	Reason string
}

// Message implements event.Event.
func (SourceDenied) Message() string { return "source denied" }

// Level implements event.Event.
func (SourceDenied) Level() slog.Level { return slog.LevelWarn }

// LogValue implements slog.LogValuer.
func (e SourceDenied) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyHost, e.Host), slog.Duration(keyFor, e.For), slog.String(keyReason, e.Reason))
}

// NoSource is a search that found nobody, with why. It is announced when that
// changes, not with each try.
type NoSource struct {
	Reason  string
	Refused []Refusal
}

// Message implements event.Event.
func (NoSource) Message() string { return "no member to read from" }

// Level implements event.Event.
func (NoSource) Level() slog.Level { return slog.LevelWarn }

// LogValue implements slog.LogValuer.
func (e NoSource) LogValue() slog.Value {
	return slog.GroupValue(append([]slog.Attr{slog.String(keyReason, e.Reason)}, refused(e.Refused)...)...)
}

// MemberDown is a member that cannot be read from any more.
type MemberDown struct{ Host, Reason string }

// Message implements event.Event.
func (MemberDown) Message() string { return "member at fault" }

// Level implements event.Event.
func (MemberDown) Level() slog.Level { return slog.LevelWarn }

// LogValue implements slog.LogValuer.
func (e MemberDown) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyHost, e.Host), slog.String(keyReason, e.Reason))
}

// MemberUp is a member that answers as it should, for the first time or again.
type MemberUp struct{ Host string }

// Message implements event.Event.
func (MemberUp) Message() string { return "member up" }

// Level implements event.Event.
func (MemberUp) Level() slog.Level { return slog.LevelInfo }

// LogValue implements slog.LogValuer.
func (e MemberUp) LogValue() slog.Value { return slog.GroupValue(slog.String(keyHost, e.Host)) }

// PrimaryChanged is another primary than before, or none.
type PrimaryChanged struct {
	// From and To are empty where there was, or is, no primary that we know of.
	From, To string
	// Term is that of To. It is oplog.UninitializedTerm where that is not known.
	Term int64
}

// Message implements event.Event.
func (PrimaryChanged) Message() string { return "primary of the source changed" }

// Level implements event.Event.
func (PrimaryChanged) Level() slog.Level { return slog.LevelInfo }

// LogValue implements slog.LogValuer.
func (e PrimaryChanged) LogValue() slog.Value {
	attrs := []slog.Attr{slog.String(keyFrom, e.From), slog.String(keyTo, e.To)}
	if e.To != "" && e.Term != oplog.UninitializedTerm {
		attrs = append(attrs, slog.Int64(keyTerm, e.Term))
	}
	return slog.GroupValue(attrs...)
}

// ConfigUnreadable is a configuration that cannot be read, so that hidden members
// are not known.
type ConfigUnreadable struct{ Reason string }

// Message implements event.Event.
func (ConfigUnreadable) Message() string { return "the source's configuration cannot be read" }

// Level implements event.Event.
func (ConfigUnreadable) Level() slog.Level { return slog.LevelWarn }

// LogValue implements slog.LogValuer.
func (e ConfigUnreadable) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyReason, e.Reason))
}

// refused gives the refusals as sentences.
func refused(refusals []Refusal) []slog.Attr {
	if len(refusals) == 0 {
		return nil
	}
	sentences := make([]string, 0, len(refusals))
	for _, r := range refusals {
		sentences = append(sentences, r.String())
	}
	return []slog.Attr{slog.Any(keyRefused, sentences)}
}
