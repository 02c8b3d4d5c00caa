package metadata

import (
	"bytes"
	"cmp"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// Document builds a document from what fill appends.
func Document(fill func(dst []byte) []byte) bson.Raw {
	i, dst := bsoncore.AppendDocumentStart(nil)
	return CloseDoc(fill(dst), i)
}

// AppendDoc appends an embedded document.
func AppendDoc(dst []byte, name string, fill func(dst []byte) []byte) []byte {
	i, dst := bsoncore.AppendDocumentElementStart(dst, name)
	return CloseDoc(fill(dst), i)
}

// CloseDoc ends the document or array that was started at i. It cannot fail: i is
// what the start returned.
func CloseDoc(dst []byte, i int32) []byte {
	dst, err := bsoncore.AppendDocumentEnd(dst, i)
	if err != nil {
		panic("metadata: invariant broken: a document ends where it began: " + err.Error())
	}
	return dst
}

// AppendOpTime appends the document {ts, t}.
func AppendOpTime(dst []byte, name string, o oplog.OpTime) []byte {
	i, dst := bsoncore.AppendDocumentElementStart(dst, name)
	dst = bsoncore.AppendTimestampElement(dst, "ts", o.TS.T, o.TS.I)
	dst = bsoncore.AppendInt64Element(dst, "t", o.Term)
	return CloseDoc(dst, i)
}

// AppendRaw appends a document as binary data, null for none, because the field names of
// a document of the source may begin with a dollar.
func AppendRaw(dst []byte, name string, doc bson.Raw) []byte {
	if doc == nil {
		return bsoncore.AppendNullElement(dst, name)
	}
	return bsoncore.AppendBinaryElement(dst, name, bson.TypeBinaryGeneric, doc)
}

// DamagedError reports metadata that something other than this program wrote or
// changed.
type DamagedError struct {
	Link string
	// What describes the fault.
	What string
	// Remedy is the action to take; empty if the link has to be made again.
	Remedy string
}

func (e *DamagedError) Error() string {
	remedy := cmp.Or(e.Remedy, "the link has to be made again with a new copy of the data")
	return fmt.Sprintf("the metadata of link %q are damaged: %s; %s", e.Link, e.What, remedy)
}

// Reader reads the fields of one document. It keeps the first error, and returns the zero
// value for a field that is missing or has a wrong type.
type Reader struct {
	doc  bson.Raw
	path string
	err  error
}

// NewReader returns a reader of a document.
func NewReader(doc bson.Raw) *Reader { return &Reader{doc: doc} }

// Err returns the first error: the field, and its expected type.
func (r *Reader) Err() error { return r.err }

// Fault records that a field is missing or wrong; want is the expected type.
func (r *Reader) Fault(name, want string) {
	if r.err == nil {
		r.err = fmt.Errorf("%s%s is missing or not %s", r.path, name, want)
	}
}

// Fail records an error of a field.
func (r *Reader) Fail(name string, err error) {
	if r.err == nil {
		r.err = fmt.Errorf("%s%s: %w", r.path, name, err)
	}
}

// Has reports whether the document has a field.
func (r *Reader) Has(name string) bool {
	_, found := rawbson.Lookup(r.doc, name)
	return found
}

// read reads a field with value; want is the expected type.
func read[V any](r *Reader, name, want string, value func(e *rawbson.Elem) (V, bool)) V {
	e, _ := rawbson.Lookup(r.doc, name)
	v, ok := value(&e)
	if !ok {
		r.Fault(name, want)
	}
	return v
}

// Int64 reads a number.
func (r *Reader) Int64(name string) int64 { return read(r, name, "a number", (*rawbson.Elem).Int64) }

// Text reads a string, and returns a copy of it.
func (r *Reader) Text(name string) string {
	// A substring would keep the whole reply in memory.
	return strings.Clone(read(r, name, "a string", (*rawbson.Elem).Text))
}

// Bool reads a boolean.
func (r *Reader) Bool(name string) bool { return read(r, name, "a boolean", (*rawbson.Elem).Bool) }

// Date reads a date, in milliseconds since the epoch.
func (r *Reader) Date(name string) int64 { return read(r, name, "a date", (*rawbson.Elem).DateTime) }

// Timestamp reads a timestamp.
func (r *Reader) Timestamp(name string) bson.Timestamp {
	return read(r, name, "a timestamp", (*rawbson.Elem).Timestamp)
}

// UUID reads a UUID.
func (r *Reader) UUID(name string) oplog.UUID {
	e, _ := rawbson.Lookup(r.doc, name)
	subtype, data, ok := e.Binary()
	if !ok || subtype != bson.TypeBinaryUUID || len(data) != len(oplog.UUID{}) {
		r.Fault(name, "a UUID")
		return oplog.UUID{}
	}
	return oplog.UUID(data)
}

// Value reads a value of any type, and returns a copy of it; the zero value if the field
// is missing.
func (r *Reader) Value(name string) bson.RawValue {
	e, found := rawbson.Lookup(r.doc, name)
	if !found {
		return bson.RawValue{}
	}
	return bson.RawValue{Type: e.Type, Value: bytes.Clone(e.Value)}
}

// Raw reads a document that AppendRaw wrote, and returns a copy of it; nil for null.
func (r *Reader) Raw(name string) bson.Raw {
	e, found := rawbson.Lookup(r.doc, name)
	if found && e.Type == bson.TypeNull {
		return nil
	}
	doc, ok := RawOf(&e)
	if !ok {
		r.Fault(name, "a document in binary data")
	}
	return doc
}

// RawOf returns a copy of the document that binary data contains.
func RawOf(e *rawbson.Elem) (bson.Raw, bool) {
	subtype, data, ok := e.Binary()
	if !ok || subtype != bson.TypeBinaryGeneric || rawbson.Validate(data) != nil {
		return nil, false
	}
	return bytes.Clone(data), true
}

// Doc returns a reader of an embedded document; Take has to be called with it. It returns
// false if there is none, which is an error unless optional.
func (r *Reader) Doc(name string, optional bool) (*Reader, bool) {
	e, found := rawbson.Lookup(r.doc, name)
	doc, ok := e.Document()
	if !ok && (found || !optional) {
		r.Fault(name, "a document")
	}
	return &Reader{doc: doc, path: r.path + name + "."}, ok
}

// Take adopts the error of a reader that Doc returned.
func (r *Reader) Take(sub *Reader) {
	if r.err == nil {
		r.err = sub.err
	}
}

// OpTime reads a document {ts, t}; null if it is absent and optional.
func (r *Reader) OpTime(name string, optional bool) oplog.OpTime {
	sub, ok := r.Doc(name, optional)
	if !ok {
		return oplog.OpTime{}
	}
	o := oplog.OpTime{TS: sub.Timestamp("ts"), Term: sub.Int64("t")}
	r.Take(sub)
	return o
}

// Docs reads an array of documents, and calls each with a reader of each of them.
func (r *Reader) Docs(name string, each func(sub *Reader)) {
	r.List(name, func(e *rawbson.Elem) bool {
		doc, ok := e.Document()
		sub := &Reader{doc: doc, path: r.path + name + "."}
		if ok {
			each(sub)
			r.Take(sub)
		}
		return ok
	})
}

// List reads an array; each reports whether an element is valid.
func (r *Reader) List(name string, each func(e *rawbson.Elem) bool) {
	e, _ := rawbson.Lookup(r.doc, name)
	array, ok := e.Array()
	it := rawbson.NewIter(array)
	for ok && it.Next() {
		ok = each(&it.Elem)
	}
	if !ok || it.Err() != nil {
		r.Fault(name, "a list as it has to be")
	}
}
