// Package event defines the events of a running pipeline's stages. Logs, metrics, the
// status and tests observe one stream of events.
//
// Most events are only logged: a stage writes them with [Observer.Log], the way it
// would write a line to a logger. An event has a type of its own only if an
// observer reads its fields; that type belongs to the package that announces it.
package event

import "log/slog"

// Event is something that happened. Its LogValue is a group of attributes with
// constant keys.
type Event interface {
	slog.LogValuer
	// Message is a short sentence without values: the text of the line in a log.
	Message() string
	// Level is Info for the timeline of an incident, Warn for an operator's
	// attention, Debug for the rest.
	Level() slog.Level
}

// Line is an event without fields that an observer would read: a line for the log.
type Line struct {
	level   slog.Level
	message string
	attrs   []slog.Attr
}

// NewLine returns an event of a level, a message and attributes.
func NewLine(level slog.Level, message string, attrs ...slog.Attr) Line {
	return Line{level, message, attrs}
}

// Message implements Event.
func (l Line) Message() string { return l.message }

// Level implements Event.
func (l Line) Level() slog.Level { return l.level }

// LogValue implements slog.LogValuer.
func (l Line) LogValue() slog.Value { return slog.GroupValue(l.attrs...) }

// Attr returns the value of an attribute, the zero Value if e does not have it.
func Attr(e Event, key string) slog.Value {
	for _, a := range e.LogValue().Resolve().Group() {
		if a.Key == key {
			return a.Value
		}
	}
	return slog.Value{}
}

// Observer receives events, in order for each sender. It must not block. It may be
// nil: Tell and Log do nothing then.
type Observer func(Event)

// Tell announces an event.
func (o Observer) Tell(e Event) {
	if o != nil {
		o(e)
	}
}

// Log announces a Line.
func (o Observer) Log(level slog.Level, message string, attrs ...slog.Attr) {
	if o != nil {
		o(Line{level, message, attrs})
	}
}
