package oplog

import (
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// Entry is one entry of the oplog, as views into the bytes that it was parsed from.
// Optimes of pre- and post-images, retry images, and fields of resharding and
// sharding are not kept: following a replica set does not need them.
//
// A backlog has millions of entries in memory, so that each has only what all of them are
// asked for. The rest is in Raw: see [Entry.Session].
type Entry struct {
	// Op is the entry's operation. Op.OpTime is the entry's own.
	Op
	// Wall is the primary's wall clock time when it wrote the entry, in milliseconds
	// since the epoch.
	Wall bson.DateTime
	// Raw is the whole entry.
	Raw bson.Raw
	// session has the fields of Session that the entry has.
	session fields
}

// ParseEntry parses one entry.
func ParseEntry(raw bson.Raw) (Entry, error) {
	var e Entry
	err := e.Parse(raw)
	return e, err
}

// Parse sets e from raw, in one pass and without copying: raw must not change while
// e is in use. After an error, an [*EntryError], e must not be used. Parse checks
// every field of the entry and the key of the document, but not the rest of the
// payload: a server has validated it, and the caller must validate bytes from a
// file.
func (e *Entry) Parse(raw bson.Raw) error {
	*e = Entry{Raw: raw, Op: Op{OpTime: OpTime{Term: UninitializedTerm}}}
	err := e.parse()
	if err != nil {
		// The optime comes after most other fields: search for it, so that the error
		// can name it in any case.
		at := peekOpTime(raw)
		if f, ok := err.(*EntryError); ok { //nolint:errorlint // made by parse and never wrapped
			f.OpTime = at
		}
	}
	return err
}

func (e *Entry) parse() error {
	var seen fields
	var s Session // only checked
	it := rawbson.NewIter(e.Raw)
	for it.Next() {
		known, err := e.field(&it.Elem, &seen)
		if !known {
			err = e.ownField(&it.Elem, &seen, &s)
		}
		if err != nil {
			return err
		}
	}
	if err := it.Err(); err != nil {
		return e.corrupt("", err)
	}
	switch {
	case seen&fieldTS == 0:
		return e.missing("ts")
	case seen&fieldWall == 0:
		return e.missing("wall")
	case e.OpTime.IsNull():
		return e.bad("ts", "it is zero")
	}
	e.session = seen & fieldsOfSession
	return e.check(seen)
}

// ownField reads the fields that only entries have, not elements of applyOps.
func (e *Entry) ownField(f *rawbson.Elem, seen *fields, s *Session) error {
	var bit fields
	var ok bool
	switch f.Name() {
	case "ts":
		bit = fieldTS
		e.OpTime.TS, ok = f.Timestamp()
	case "t":
		bit = fieldT
		e.OpTime.Term, ok = f.Int64()
	case "wall":
		bit = fieldWall
		var ms int64
		ms, ok = f.DateTime()
		e.Wall = bson.DateTime(ms)
	default:
		if bit, ok = s.field(f); bit == 0 {
			return nil
		}
		if n := s.MultiOpType; ok && bit == fieldMultiOpType && n != 0 && n != 1 {
			return e.Fault("multiOpType", fmt.Errorf("%w: a value of %d", ErrUnsupported, n))
		}
	}
	if !ok {
		return e.bad(f.Name(), "it is %s", describe(f))
	}
	return seen.add(bit, &e.Op, f)
}

// WallTime returns Wall as a time.
func (e *Entry) WallTime() time.Time { return e.Wall.Time() }

func opTimeOf(f *rawbson.Elem) (OpTime, bool) {
	doc, ok := f.Document()
	if !ok {
		return OpTime{}, false
	}
	o := OpTime{Term: UninitializedTerm}
	var hasTS bool
	it := rawbson.NewIter(doc)
	for it.Next() {
		switch it.Name() {
		case "ts":
			o.TS, hasTS = it.Timestamp()
			ok = ok && hasTS
		case "t":
			var isTerm bool
			o.Term, isTerm = it.Int64()
			ok = ok && isTerm
		}
	}
	return o, ok && hasTS && it.Err() == nil
}

// peekOpTime reads the optime of an entry whose other fields may be invalid. It is
// null if it cannot be read.
func peekOpTime(raw bson.Raw) OpTime {
	o := OpTime{Term: UninitializedTerm}
	it := rawbson.NewIter(raw)
	for it.Next() {
		switch it.Name() {
		case "ts":
			o.TS, _ = it.Timestamp()
		case "t":
			if t, ok := it.Int64(); ok {
				o.Term = t
			}
		}
	}
	return o
}
