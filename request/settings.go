package request

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
)

// Settings has the settings that operators have made for a link. They stay until they are changed.
type Settings struct {
	// Paused is nil if the link is not paused.
	Paused *Paused
	// Throttle limits applying. The limits of the copy are in Requests.
	Throttle Limits
	// Level is the level of the log, empty for the one that the process was started with.
	Level string

	// asked counts the requests, rev the changes; term is that of the lease under which the
	// last one was made.
	asked, rev, term int64
	found            bool
}

// Count changes with each request.
func (s *Settings) Count() int64 { return s.asked }

// Paused records a pause: the operator, when, and why.
type Paused struct {
	// Request is the ID of the Record.
	Request string
	Since   time.Time
	By, Why string
}

// Limits are those of applying, 0 for none.
type Limits struct {
	BytesPerSecond, OpsPerSecond int64
	Adaptive                     bool
	// Request, By, At and Why are those of the last Throttle, empty if there was none.
	Request string
	At      time.Time
	By, Why string
}

// settingsFormat is the newest format of the document that this release understands.
const settingsFormat = 1

// Fields of the document.
const (
	formatField = "format"
	askedField  = "asked"
	revField    = "rev"
	termField   = "term"
	pausedField = "paused"
	limitsField = "throttle"
	levelField  = "logLevel"
)

func (s *Store) parseSettings(doc bson.Raw) (Settings, error) {
	r := metadata.NewReader(doc)
	st := Settings{found: true, asked: r.Int64(askedField), rev: r.Int64(revField), term: r.Int64(termField)}
	if f := r.Int64(formatField); f > settingsFormat {
		return Settings{}, fmt.Errorf("the settings of operators are of format %d, this release understands %d: start a newer one", f, settingsFormat)
	}
	if sub, ok := r.Doc(pausedField, true); ok {
		st.Paused = &Paused{Request: sub.Text("request"), Since: date(sub, "since"), By: sub.Text("by"), Why: sub.Text("why")}
		r.Take(sub)
	}
	if sub, ok := r.Doc(limitsField, true); ok {
		st.Throttle = Limits{
			BytesPerSecond: readLimit(sub, bytesField), OpsPerSecond: readLimit(sub, opsField), Adaptive: sub.Bool("adaptive"),
			Request: sub.Text("request"), At: date(sub, "at"), By: sub.Text("by"), Why: sub.Text("why"),
		}
		r.Take(sub)
	}
	if r.Has(levelField) {
		if st.Level = r.Text(levelField); !slices.Contains(levels(), st.Level) {
			r.Fault(levelField, "a level")
		}
	}
	if r.Err() != nil {
		return Settings{}, s.damaged("field " + r.Err().Error())
	}
	return st, nil
}

// sameSettings reports whether two documents have the same Settings: a request that is counted changes none. One that cannot be read is
// like no other.
func (s *Store) sameSettings(a, b []bson.Raw) bool {
	was, _, errA := s.parseAll(a)
	now, _, errB := s.parseAll(b)
	if errA != nil || errB != nil {
		return slices.EqualFunc(a, b, func(a, b bson.Raw) bool { return bytes.Equal(a, b) })
	}
	return was.found == now.found && was.rev == now.rev
}

// damaged returns the error for a document that was changed by something else.
func (s *Store) damaged(what string) error {
	return fmt.Errorf("the document %q of the collection %s.%s is damaged: %s; remove it, and pause or throttle the link again", s.link, s.db, metadata.Control, what)
}

func date(r *metadata.Reader, name string) time.Time { return time.UnixMilli(r.Date(name)).UTC() }

// change returns the update that stores Settings.
func (s *Settings) change(dst []byte) []byte {
	dst = metadata.AppendDoc(dst, "$set", func(dst []byte) []byte {
		dst = bsoncore.AppendInt64Element(dst, formatField, settingsFormat)
		dst = bsoncore.AppendInt64Element(dst, revField, s.rev)
		dst = bsoncore.AppendInt64Element(dst, termField, s.term)
		if p := s.Paused; p != nil {
			dst = metadata.AppendDoc(dst, pausedField, func(dst []byte) []byte {
				dst = bsoncore.AppendStringElement(dst, "request", p.Request)
				dst = bsoncore.AppendDateTimeElement(dst, "since", p.Since.UnixMilli())
				dst = bsoncore.AppendStringElement(dst, "by", p.By)
				return bsoncore.AppendStringElement(dst, "why", p.Why)
			})
		}
		dst = metadata.AppendDoc(dst, limitsField, s.Throttle.append)
		if s.Level != "" {
			dst = bsoncore.AppendStringElement(dst, levelField, s.Level)
		}
		return dst
	})
	var unset []string
	if s.Paused == nil {
		unset = append(unset, pausedField)
	}
	if s.Level == "" {
		unset = append(unset, levelField)
	}
	if len(unset) == 0 {
		return dst
	}
	return metadata.AppendDoc(dst, "$unset", func(dst []byte) []byte {
		for _, name := range unset {
			dst = bsoncore.AppendStringElement(dst, name, "")
		}
		return dst
	})
}

func (l *Limits) append(dst []byte) []byte {
	dst = bsoncore.AppendInt64Element(dst, bytesField, l.BytesPerSecond)
	dst = bsoncore.AppendInt64Element(dst, opsField, l.OpsPerSecond)
	dst = bsoncore.AppendBooleanElement(dst, "adaptive", l.Adaptive)
	dst = bsoncore.AppendStringElement(dst, "request", l.Request)
	dst = bsoncore.AppendDateTimeElement(dst, "at", l.At.UnixMilli())
	dst = bsoncore.AppendStringElement(dst, "by", l.By)
	return bsoncore.AppendStringElement(dst, "why", l.Why)
}

// Describe describes the limits of applying.
func (l *Limits) Describe() string {
	out := Describe(l.OpsPerSecond, l.BytesPerSecond)
	if l.Adaptive {
		out += ", less while the target is under pressure"
	}
	return out
}

// Describe describes limits; 0 is none, a negative one that of the start.
func Describe(opsPerSecond, bytesPerSecond int64) string {
	text := func(n int64, what string) string {
		switch {
		case n < 0:
			return what + " as it was started with"
		case n == 0:
			return what + " without a limit"
		}
		return fmt.Sprintf("at most %d %s per second", n, what)
	}
	if opsPerSecond == 0 && bytesPerSecond == 0 {
		return "without a limit"
	}
	return text(opsPerSecond, "operations") + " and " + text(bytesPerSecond, "bytes")
}
