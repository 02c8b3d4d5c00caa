package history

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// version is that of the document's format.
const version = 1

const (
	// storedEvents and storedBytes limit the events in a document.
	storedEvents = 200
	storedBytes  = 24 << 10
	// latestSecond is the latest time that a document may have, in seconds since the epoch:
	// the year 9999.
	latestSecond = 253_402_300_799
)

// DamagedError reports a stored history that cannot be used. The link does
// not depend on it: it is started over.
type DamagedError struct {
	Link string
	Err  error
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("the stored history of link %q cannot be used: %v", e.Link, e.Err)
}

func (e *DamagedError) Unwrap() error { return e.Err }

// errVersion reports a document of another format.
var errVersion = errors.New("another release has written it, in a format that this one does not know")

// document returns the elements of the document of a link after its _id.
func (s *Stored) document(dst []byte) []byte {
	dst = bsoncore.AppendInt32Element(dst, "version", version)
	dst = bsoncore.AppendInt64Element(dst, "term", s.Term)
	dst = bsoncore.AppendDateTimeElement(dst, "at", s.At.UnixMilli())
	i, dst := bsoncore.AppendArrayElementStart(dst, "rings")
	for k := range s.rings {
		r := &s.rings[k]
		dst = metadata.AppendDoc(dst, strconv.Itoa(k), func(dst []byte) []byte {
			dst = bsoncore.AppendInt64Element(dst, "step", r.step)
			dst = bsoncore.AppendInt64Element(dst, "last", r.last)
			return bsoncore.AppendBooleanElement(dst, "begun", r.begun)
		})
	}
	dst = metadata.CloseDoc(dst, i)
	i, dst = bsoncore.AppendArrayElementStart(dst, "series")
	for k := range Count {
		dst = bsoncore.AppendStringElement(dst, strconv.Itoa(int(k)), k.String())
	}
	dst = metadata.CloseDoc(dst, i)
	dst = bsoncore.AppendBinaryElement(dst, "points", bson.TypeBinaryGeneric, pack(&s.rings))
	i, dst = bsoncore.AppendArrayElementStart(dst, "events")
	for k, e := range s.newest() {
		dst = metadata.AppendDoc(dst, strconv.Itoa(k), e.append)
	}
	return metadata.CloseDoc(dst, i)
}

// newest returns the events that are stored.
func (s *Stored) newest() []Event {
	from, size := len(s.events), 0
	for from > 0 && len(s.events)-from < storedEvents {
		if size += s.events[from-1].size(); size > storedBytes {
			break
		}
		from--
	}
	return s.events[from:]
}

// append appends the elements of an event. The names of its fields may have dots, which
// not every server takes in a name.
func (e *Event) append(dst []byte) []byte {
	dst = bsoncore.AppendInt64Element(dst, "id", int64(e.ID))
	dst = bsoncore.AppendDateTimeElement(dst, "at", e.At.UnixMilli())
	dst = bsoncore.AppendStringElement(dst, "level", e.Level)
	dst = bsoncore.AppendStringElement(dst, "kind", string(e.Kind))
	dst = bsoncore.AppendStringElement(dst, "message", e.Message)
	keys := make([]string, 0, len(e.Fields))
	for key := range e.Fields {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	i, dst := bsoncore.AppendArrayElementStart(dst, "fields")
	for k, key := range keys {
		dst = bsoncore.AppendStringElement(dst, strconv.Itoa(2*k), key)
		dst = bsoncore.AppendStringElement(dst, strconv.Itoa(2*k+1), e.Fields[key])
	}
	return metadata.CloseDoc(dst, i)
}

// parse reads a document.
func parse(doc bson.Raw) (*Stored, error) {
	if err := rawbson.Validate(doc); err != nil {
		return nil, err
	}
	r := metadata.NewReader(doc)
	if v := r.Int64("version"); r.Err() == nil && v != version {
		return nil, errVersion
	}
	s := &Stored{Term: r.Int64("term"), At: time.UnixMilli(r.Date("at")).UTC(), rings: *newRings()}
	i := 0
	r.Docs("rings", func(sub *metadata.Reader) {
		step, last, begun := sub.Int64("step"), sub.Int64("last"), sub.Bool("begun")
		switch {
		case i >= len(s.rings):
			sub.Fail("step", errors.New("there are too many rings"))
		case step != s.rings[i].step:
			sub.Fail("step", fmt.Errorf("it is %d s", step))
		case last < 0 || last > latestSecond/step:
			sub.Fail("last", fmt.Errorf("it is %d", last))
		default:
			s.rings[i].last, s.rings[i].begun = last, begun
		}
		i++
	})
	if r.Err() == nil && i != len(s.rings) {
		r.Fail("rings", fmt.Errorf("there are %d", i))
	}
	names := texts(r, "series")
	var data []byte
	if e, ok := rawbson.Lookup(doc, "points"); ok {
		_, data, _ = e.Binary()
	}
	if r.Err() == nil {
		if err := unpack(&s.rings, names, data); err != nil {
			r.Fail("points", err)
		}
	}
	r.Docs("events", func(sub *metadata.Reader) { s.events = append(s.events, readEvent(sub)) })
	if err := r.Err(); err != nil {
		return nil, err
	}
	if len(s.events) > mostEvents {
		return nil, fmt.Errorf("it has %d events", len(s.events))
	}
	return s, nil
}

// readEvent reads an event.
func readEvent(r *metadata.Reader) Event {
	id, at := r.Int64("id"), r.Date("at")
	e := Event{
		ID: uint64(max(0, id)), At: time.UnixMilli(at).UTC(), Level: cut(r.Text("level")), Kind: kindOf(r.Text("kind")), Message: cut(r.Text("message")),
	}
	switch {
	case id <= 0 || id > 1<<53:
		r.Fail("id", fmt.Errorf("it is %d", id))
	case at < 0 || at/1000 > latestSecond:
		r.Fail("at", fmt.Errorf("it is %d", at))
	}
	fields, list := map[string]string{}, texts(r, "fields")
	for i := 0; i+1 < len(list); i += 2 {
		fields[list[i]] = list[i+1]
	}
	e.Fields = cutFields(fields)
	return e
}

// texts reads an array of strings.
func texts(r *metadata.Reader, name string) (list []string) {
	r.List(name, func(e *rawbson.Elem) bool {
		text, ok := e.Text()
		list = append(list, strings.ToValidUTF8(string(bytes.Clone([]byte(text))), "\uFFFD"))
		return ok
	})
	return list
}

// kindOf returns a kind that is known.
func kindOf(text string) Kind {
	switch k := Kind(text); k {
	case OfSource, OfDDL, OfLease, OfControl, OfCopy, OfTarget, OfDivergence:
		return k
	default:
		return Other // of a later release
	}
}
