// Package event is the form of what a running pipeline announces. An event is a
// value of the package that it is about; logs, metrics, the status and tests are
// observers of one stream of them.
package event

import "log/slog"

// Event is something that happened. Its LogValue is a group of attributes, with
// constant keys, that say what about.
type Event interface {
	slog.LogValuer
	// Message is a short sentence without values: the line's text in a log.
	Message() string
	// Level is Info for what belongs on the timeline of an incident, Warn for
	// what an operator should look at, Debug for the rest.
	Level() slog.Level
}

// Observer is told of events, in order for each sender. It must not block. Nil
// is no Observer: use Tell.
type Observer func(Event)

// Tell announces an event to an observer that may be nil.
func (o Observer) Tell(e Event) {
	if o != nil {
		o(e)
	}
}
