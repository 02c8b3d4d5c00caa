package guard

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"

	"github.com/oplogrep/replicator/oplog"
)

// Mode is the reaction to foreign writes.
type Mode string

// The modes.
const (
	// Off: the target's oplog is not read.
	Off Mode = "off"
	// Alarm: they are told.
	Alarm Mode = "alarm"
	// Stop: they are told, and end the link.
	Stop Mode = "stop"
)

// Keys of log attributes.
const (
	keyNS      = "ns"
	keyTo      = "to"
	keyID      = "id"
	keyKind    = "kind"
	keySession = "session"
	keyTxn     = "txnNumber"
	keyAt      = "at"
	keyOpTime  = "optime"
	keyMore    = "more"
	keyWhy     = "why"
	keyFrom    = "from"
	keyUntil   = "until"
)

// Found announces a foreign write.
type Found struct {
	Write
	// More counts the writes of the same kind on the same namespace since the last Found of them
	// that were not announced.
	More int64
}

// Message implements event.Event.
func (Found) Message() string { return "foreign write to the target" }

// Level implements event.Event.
func (Found) Level() slog.Level { return slog.LevelWarn }

// LogValue implements slog.LogValuer.
func (e Found) LogValue() slog.Value {
	attrs := []slog.Attr{
		slog.String(keyKind, e.Kind), slog.String(keyNS, string(e.NS)), slog.Time(keyAt, e.Wall), slog.String(keyOpTime, e.OpTime.String()),
	}
	if e.To != "" {
		attrs = append(attrs, slog.String(keyTo, string(e.To)))
	}
	if e.ID != "" {
		attrs = append(attrs, slog.String(keyID, e.ID))
	}
	if e.Session != "" {
		attrs = append(attrs, slog.String(keySession, e.Session), slog.Int64(keyTxn, e.Txn))
	}
	if e.More > 0 {
		attrs = append(attrs, slog.Int64(keyMore, e.More))
	}
	return slog.GroupValue(attrs...)
}

// ForeignError ends a link in mode Stop.
type ForeignError struct {
	// NS has foreign writes, empty if none of those that have is listed; Namespaces is how many are.
	NS         oplog.Namespace
	Namespaces int
	// Newest is the newest write that is not dealt with, the zero value if it is not kept.
	Newest Write
}

func isForeign(err error) bool {
	_, ok := errors.AsType[*ForeignError](err)
	return ok
}

// Err returns the *ForeignError of a state, nil if nothing is to be dealt with.
func (s *State) Err() error {
	if !s.IsTouched() {
		return nil
	}
	e := &ForeignError{Namespaces: len(s.Touched)}
	if newest, _ := s.NewestOpen(); newest != nil {
		e.Newest = *newest
	}
	if len(s.Touched) > 0 {
		e.NS = s.Touched[0].NS
	}
	return e
}

func (e *ForeignError) Error() string {
	text := "something else writes to the target: "
	if e.Newest.Kind != "" {
		text += e.Newest.String()
	} else {
		text += "writes to " + string(cmp.Or(e.NS, "namespaces that are not listed"))
	}
	if e.Namespaces > 1 {
		text += fmt.Sprintf("; %d namespaces have such writes", e.Namespaces)
	}
	return text
}

// String returns the write in one line.
func (w *Write) String() string {
	text := fmt.Sprintf("%s of %s", w.Kind, w.NS)
	if w.To != "" {
		text += " to " + string(w.To)
	}
	if w.ID != "" {
		text += " {_id: " + w.ID + "}"
	}
	text += " at " + w.Wall.UTC().Format("2006-01-02T15:04:05.000Z")
	if w.Session != "" {
		text += fmt.Sprintf(" in session %s, transaction or write %d", w.Session, w.Txn)
	}
	return text
}
