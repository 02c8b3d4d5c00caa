package checkpoint

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// Kinds of documents of a copy, as their _ids have them.
const (
	kindCollection = "c"
	kindRange      = "r"
)

// copyPrefix is what the _ids of a copy's documents begin with, before a slash.
func copyPrefix(link string, number int64, more ...string) string {
	return strings.Join(append([]string{link, strconv.FormatInt(number, 10)}, more...), "/")
}

func hexUUID(u oplog.UUID) string { return hex.EncodeToString(u[:]) }

// collectionID returns the _id of a collection of a copy.
func collectionID(link string, number int64, u oplog.UUID) string {
	return copyPrefix(link, number, kindCollection, hexUUID(u))
}

// rangeID returns the _id of a range of a copy.
func rangeID(link string, number int64, u oplog.UUID, index int) string {
	return copyPrefix(link, number, kindRange, hexUUID(u), fmt.Sprintf("%04d", index))
}

// appendCopy appends the link's copy, and for operators whether the target is
// consistent, which it is not while collections are left out.
func appendCopy(dst []byte, c *Copy, out []LeftOut) []byte {
	dst = appendDoc(dst, "copy", func(dst []byte) []byte {
		dst = bsoncore.AppendInt64Element(dst, "number", c.Number)
		dst = bsoncore.AppendStringElement(dst, "phase", string(c.Phase))
		dst = bsoncore.AppendStringElement(dst, "host", c.Host)
		dst = bsoncore.AppendInt64Element(dst, "rbid", c.RBID)
		if !c.SyncID.IsZero() {
			dst = bsoncore.AppendValueElement(dst, "syncId",
				bsoncore.Value{Type: bsoncore.Type(c.SyncID.Type), Data: c.SyncID.Value})
		}
		if c.SyncIDUnread {
			dst = bsoncore.AppendBooleanElement(dst, "syncIdUnread", true)
		}
		if c.SyncMark != "" {
			dst = bsoncore.AppendStringElement(dst, "syncMark", c.SyncMark)
		}
		dst = appendOpTime(dst, "fetchFrom", c.FetchFrom)
		dst = appendOpTime(dst, "begin", c.Begin)
		if !c.Stop.IsNull() {
			dst = appendOpTime(dst, "stop", c.Stop)
		}
		dst = bsoncore.AppendBooleanElement(dst, "cleared", c.Cleared)
		dst = bsoncore.AppendBooleanElement(dst, "listed", c.Listed)
		dst = bsoncore.AppendDateTimeElement(dst, "started", c.Started.UnixMilli())
		return bsoncore.AppendStringElement(dst, "why", c.Why)
	})
	return bsoncore.AppendBooleanElement(dst, "consistent", c.Phase == Copied && len(out) == 0)
}

// copy reads the copy of a link, nil where it has none.
func (r *reader) copy(name string) *Copy {
	sub, ok := r.sub(name, true)
	if !ok {
		return nil
	}
	c := &Copy{
		Number: sub.int64("number"), Phase: CopyPhase(sub.text("phase")), Host: sub.text("host"), RBID: sub.int64("rbid"),
		FetchFrom: sub.opTime("fetchFrom", false), Begin: sub.opTime("begin", false), Stop: sub.opTime("stop", true),
		Cleared: sub.flag("cleared"), Listed: sub.flag("listed"),
		Started: time.UnixMilli(sub.date("started")).UTC(), Why: sub.text("why"),
	}
	if e, ok := rawbson.Lookup(sub.doc, "syncIdUnread"); ok {
		c.SyncIDUnread = e.Truth()
	}
	if _, ok := rawbson.Lookup(sub.doc, "syncMark"); ok {
		c.SyncMark = sub.text("syncMark")
	}
	if id, ok := rawbson.Lookup(sub.doc, "syncId"); ok {
		c.SyncID = bson.RawValue{Type: id.Type, Value: append([]byte(nil), id.Value...)}
	}
	r.take(sub)
	if err := c.validate(); err != nil && r.err == nil {
		r.err = fmt.Errorf("%s%s: %w", r.path, name, err)
	}
	return c
}

// appendCollection appends the fields of a collection of a copy but for its _id.
// What the source wrote is kept as binary data: its field names are not ours to
// store, they may begin with a dollar.
func appendCollection(dst []byte, number int64, c *CopyCollection) []byte {
	dst = bsoncore.AppendInt64Element(dst, "number", number)
	dst = bsoncore.AppendBinaryElement(dst, "uuid", bson.TypeBinaryUUID, c.UUID[:])
	dst = bsoncore.AppendStringElement(dst, "ns", string(c.NS))
	dst = appendRaw(dst, "options", c.Options)
	dst = appendRaw(dst, "idIndex", c.IDIndex)
	i, dst := bsoncore.AppendArrayElementStart(dst, "indexes")
	for j, spec := range c.Indexes {
		dst = bsoncore.AppendBinaryElement(dst, strconv.Itoa(j), bson.TypeBinaryGeneric, spec)
	}
	dst = closeDoc(dst, i)
	dst = bsoncore.AppendInt64Element(dst, "docs", c.Docs)
	dst = bsoncore.AppendInt64Element(dst, "bytes", c.Bytes)
	dst = bsoncore.AppendStringElement(dst, "state", string(c.State))
	dst = bsoncore.AppendBooleanElement(dst, "gone", c.Gone)
	i, dst = bsoncore.AppendArrayElementStart(dst, "failed")
	for j, f := range c.Failed {
		dst = appendDoc(dst, strconv.Itoa(j), func(dst []byte) []byte {
			dst = bsoncore.AppendStringElement(dst, "name", f.Name)
			return bsoncore.AppendStringElement(dst, "why", f.Why)
		})
	}
	return closeDoc(dst, i)
}

// appendRange appends the fields of a range of a copy but for its _id.
func appendRange(dst []byte, number int64, r *CopyRange) []byte {
	dst = bsoncore.AppendInt64Element(dst, "number", number)
	dst = bsoncore.AppendBinaryElement(dst, "uuid", bson.TypeBinaryUUID, r.UUID[:])
	dst = bsoncore.AppendInt64Element(dst, "index", int64(r.Index))
	dst = appendRaw(dst, "spec", r.Spec)
	return appendMoves(dst, r)
}

// appendMoves appends the fields that MoveRange changes.
func appendMoves(dst []byte, r *CopyRange) []byte {
	dst = appendRaw(dst, "at", r.At)
	dst = bsoncore.AppendInt64Element(dst, "docs", r.Docs)
	dst = bsoncore.AppendInt64Element(dst, "bytes", r.Bytes)
	dst = bsoncore.AppendInt64Element(dst, "steps", r.Steps)
	return bsoncore.AppendBooleanElement(dst, "done", r.Done)
}

// appendRaw appends a document as binary data, null for none.
func appendRaw(dst []byte, name string, doc bson.Raw) []byte {
	if doc == nil {
		return bsoncore.AppendNullElement(dst, name)
	}
	return bsoncore.AppendBinaryElement(dst, name, bson.TypeBinaryGeneric, doc)
}

// copyDoc is a document of copies: one of the two.
type copyDoc struct {
	collection *CopyCollection
	part       *CopyRange
}

// readCopyDoc reads a document of a link's copy.
func readCopyDoc(link string, number int64, doc bson.Raw) (copyDoc, error) {
	if err := doc.Validate(); err != nil {
		return copyDoc{}, &DamagedError{Link: link, What: "a copy: " + err.Error()}
	}
	r := &reader{doc: doc}
	id := r.text("_id")
	var d copyDoc
	var want string
	switch prefix := copyPrefix(link, number) + "/"; {
	case strings.HasPrefix(id, prefix+kindCollection+"/"):
		d.collection = r.collection()
		want = collectionID(link, number, d.collection.UUID)
	case strings.HasPrefix(id, prefix+kindRange+"/"):
		d.part = r.part()
		want = rangeID(link, number, d.part.UUID, d.part.Index)
	default:
		r.fault("_id", "that of a collection or a range")
	}
	if n := r.int64("number"); n != number {
		r.fault("number", strconv.FormatInt(number, 10))
	}
	if id != want {
		r.fault("_id", "that of its other fields")
	}
	if r.err != nil {
		return copyDoc{}, &DamagedError{Link: link, What: fmt.Sprintf("copy %q: field %v", id, r.err)}
	}
	return d, nil
}

func (r *reader) collection() *CopyCollection {
	c := &CopyCollection{
		UUID: r.uuid("uuid"), NS: oplog.Namespace(r.text("ns")), Options: r.raw("options"), IDIndex: r.raw("idIndex"),
		Docs: r.int64("docs"), Bytes: r.int64("bytes"), State: CollectionState(r.text("state")),
		Gone: r.flag("gone"),
	}
	switch c.State {
	case CollectionPlanned, CollectionCreated, CollectionFilled, CollectionDone:
	default:
		r.fault("state", "one of a collection")
	}
	r.list("indexes", func(e *rawbson.Elem) bool {
		spec, ok := rawOf(e)
		c.Indexes = append(c.Indexes, spec)
		return ok
	})
	r.list("failed", func(e *rawbson.Elem) bool {
		doc, ok := e.Document()
		sub := &reader{doc: doc}
		c.Failed = append(c.Failed, FailedIndex{Name: sub.text("name"), Why: sub.text("why")})
		return ok && sub.err == nil
	})
	return c
}

func (r *reader) part() *CopyRange {
	p := &CopyRange{
		UUID: r.uuid("uuid"), Index: int(r.int64("index")), Spec: r.raw("spec"), At: r.raw("at"),
		Docs: r.int64("docs"), Bytes: r.int64("bytes"), Steps: r.int64("steps"), Done: r.flag("done"),
	}
	if p.Index < 0 {
		r.fault("index", "0 or more")
	}
	return p
}

func (r *reader) flag(name string) bool {
	e, _ := rawbson.Lookup(r.doc, name)
	v, ok := e.Bool()
	if !ok {
		r.fault(name, "a boolean")
	}
	return v
}

func (r *reader) uuid(name string) oplog.UUID {
	e, _ := rawbson.Lookup(r.doc, name)
	subtype, data, ok := e.Binary()
	if !ok || subtype != bson.TypeBinaryUUID || len(data) != len(oplog.UUID{}) {
		r.fault(name, "a UUID")
		return oplog.UUID{}
	}
	return oplog.UUID(data)
}

// raw reads a document that is kept as binary data, nil for null.
func (r *reader) raw(name string) bson.Raw {
	e, found := rawbson.Lookup(r.doc, name)
	if found && e.Type == bson.TypeNull {
		return nil
	}
	doc, ok := rawOf(&e)
	if !ok {
		r.fault(name, "a document in binary data")
	}
	return doc
}

// rawOf returns the document that binary data hold, as one of its own.
func rawOf(e *rawbson.Elem) (bson.Raw, bool) {
	subtype, data, ok := e.Binary()
	if !ok || subtype != bson.TypeBinaryGeneric || rawbson.Validate(data) != nil {
		return nil, false
	}
	return bytes.Clone(data), true
}

// list reads an array; each tells whether an element is what it has to be.
func (r *reader) list(name string, each func(e *rawbson.Elem) bool) {
	e, _ := rawbson.Lookup(r.doc, name)
	array, ok := e.Array()
	it := rawbson.NewIter(array)
	for ok && it.Next() {
		ok = each(&it.Elem)
	}
	if !ok || it.Err() != nil {
		r.fault(name, "a list as it has to be")
	}
}
