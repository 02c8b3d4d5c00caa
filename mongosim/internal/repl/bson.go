package repl

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// endDocument closes the document that began at i. The error that bsoncore can
// give is a start out of range, which cannot be.
func endDocument(dst []byte, i int32) []byte {
	dst, _ = bsoncore.AppendDocumentEnd(dst, i)
	return dst
}

// document builds a document from what fill appends.
func document(fill func(dst []byte) []byte) bson.Raw {
	i, dst := bsoncore.AppendDocumentStart(nil)
	return endDocument(fill(dst), i)
}

// command builds {name: 1, …fields, $db: "admin"}.
func command(name string, fill func(dst []byte) []byte) bson.Raw {
	return document(func(dst []byte) []byte {
		dst = fill(bsoncore.AppendInt32Element(dst, name, 1))
		return bsoncore.AppendStringElement(dst, "$db", "admin")
	})
}

func appendOpTime(dst []byte, name string, o oplog.OpTime) []byte {
	i, dst := bsoncore.AppendDocumentElementStart(dst, name)
	dst = bsoncore.AppendTimestampElement(dst, "ts", o.TS.T, o.TS.I)
	dst = bsoncore.AppendInt64Element(dst, "t", o.Term)
	return endDocument(dst, i)
}

func appendWall(dst []byte, name string, wall time.Time) []byte {
	return bsoncore.AppendDateTimeElement(dst, name, millis(wall))
}

// millis is the date of a wall time; the zero time is the epoch.
func millis(wall time.Time) int64 {
	if wall.IsZero() {
		return 0
	}
	return wall.UnixMilli()
}

// fields reads a command or reply. The first missing field or wrong type is
// kept in err; later reads return zero.
type fields struct {
	doc bson.Raw
	err error
}

func (f *fields) fault(name, want string) {
	if f.err == nil {
		f.err = fmt.Errorf("field %q: want %s", name, want)
	}
}

func (f *fields) has(name string) bool {
	_, ok := rawbson.Lookup(f.doc, name)
	return ok
}

func (f *fields) int64(name string) int64 {
	e, ok := rawbson.Lookup(f.doc, name)
	if ok {
		if v, ok := e.Int64(); ok {
			return v
		}
	}
	f.fault(name, "an integer")
	return 0
}

// maybeInt64 is for optional fields: absent gives def.
func (f *fields) maybeInt64(name string, def int64) int64 {
	if !f.has(name) {
		return def
	}
	return f.int64(name)
}

func (f *fields) text(name string) string {
	e, ok := rawbson.Lookup(f.doc, name)
	if ok {
		if v, ok := e.Text(); ok {
			return strings.Clone(v)
		}
	}
	f.fault(name, "a string")
	return ""
}

func (f *fields) maybeText(name string) string {
	if !f.has(name) {
		return ""
	}
	return f.text(name)
}

func (f *fields) bool(name string, def bool) bool {
	e, ok := rawbson.Lookup(f.doc, name)
	if !ok {
		return def
	}
	if v, ok := e.Bool(); ok {
		return v
	}
	if v, ok := e.Int64(); ok {
		return v != 0
	}
	f.fault(name, "a boolean")
	return def
}

func (f *fields) document(name string) bson.Raw {
	e, ok := rawbson.Lookup(f.doc, name)
	if ok {
		if v, ok := e.Document(); ok {
			return v
		}
	}
	f.fault(name, "a document")
	return nil
}

func (f *fields) array(name string) bson.Raw {
	e, ok := rawbson.Lookup(f.doc, name)
	if ok {
		if v, ok := e.Array(); ok {
			return v
		}
	}
	f.fault(name, "an array")
	return nil
}

func (f *fields) opTime(name string) oplog.OpTime {
	e, ok := rawbson.Lookup(f.doc, name)
	if ok {
		if d, ok := e.Document(); ok {
			if o, err := readOpTime(d); err == nil {
				return o
			}
		}
	}
	f.fault(name, "an optime {ts, t}")
	return nullMoment.at
}

func (f *fields) wall(name string) time.Time {
	e, ok := rawbson.Lookup(f.doc, name)
	if ok {
		if v, ok := e.DateTime(); ok {
			if v == 0 {
				return time.Time{}
			}
			return time.UnixMilli(v)
		}
	}
	f.fault(name, "a date")
	return time.Time{}
}

// readOpTime reads ts and t of an optime or an entry; t may be missing.
func readOpTime(doc bson.Raw) (oplog.OpTime, error) {
	o := oplog.OpTime{Term: oplog.UninitializedTerm}
	e, ok := rawbson.Lookup(doc, "ts")
	if ok {
		o.TS, ok = e.Timestamp()
	}
	if !ok {
		return o, errors.New(`read an optime: field "ts": want a timestamp`)
	}
	if e, there := rawbson.Lookup(doc, "t"); there {
		if o.Term, ok = e.Int64(); !ok {
			return o, errors.New(`read an optime: field "t": want an integer`)
		}
	}
	return o, nil
}

// entryMoment is the optime of an entry and its wall time.
func entryMoment(raw bson.Raw) (moment, error) {
	at, err := readOpTime(raw)
	if err != nil {
		return nullMoment, err
	}
	m := moment{at: at}
	if e, ok := rawbson.Lookup(raw, "wall"); ok {
		if v, ok := e.DateTime(); ok {
			m.wall = time.UnixMilli(v)
		}
	}
	return m, nil
}

// okReply reports whether a reply is ok, and if not, its code and message.
func okReply(reply bson.Raw) (ok bool, code int64, message string) {
	f := fields{doc: reply}
	if e, there := rawbson.Lookup(reply, "ok"); there {
		if v, _ := e.Int64(); v == 1 {
			return true, 0, ""
		}
	}
	code = f.maybeInt64("code", 0)
	return false, code, f.maybeText("errmsg")
}
