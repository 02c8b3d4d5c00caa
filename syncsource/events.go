package syncsource

import "log/slog"

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

// SourceChosen announces that a source was set, possibly the same as before.
type SourceChosen struct {
	// From is the previous source, empty before the first.
	From, To string
	Reason   string
	// Refused has every member that was not chosen.
	Refused []Refusal
	// Equal reports whether the source has nothing newer than the last fetched entry.
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

// NoSource announces that no source was found, and why. It is sent when the reason
// changes, not with each try, and of members that are only behind once that has lasted.
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

// refused formats the refusals as sentences.
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
