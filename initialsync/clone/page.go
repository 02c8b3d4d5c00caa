package clone

import (
	"encoding/binary"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// page is the content of one reply.
type page struct {
	docs []document
	// piece is the piece that its documents belong to.
	piece int
	order order
	// record is how far the page goes in natural order, even if it is empty.
	record int64
	// last: it is the last page of the range.
	last bool
	// reserved is how much of Config.Memory it uses.
	reserved int64
}

// document is one document, a view into a reply.
type document struct {
	raw bson.Raw
	// record is its record id, in natural order.
	record int64
	// insert: an insert stores it unchanged; replace: a replacement does.
	insert, replace bool
	// deleteFirst means that the target's document of this _id must be deleted first: see spelledError.
	deleteFirst bool
}

// documentBytes is the memory of a document struct.
const documentBytes = 40

// id returns the document's _id.
func (d *document) id() bson.RawValue {
	e, _ := rawbson.Lookup(d.raw, idField)
	return e.Raw()
}

// recordElem is the size of the element that the server appends for the record id:
// type, name, number.
const recordElem = 1 + len(recordField) + 1 + 8

// errNoRecord reports a document without a numeric record id.
var errNoRecord = errors.New("a document has no record id")

// inspect looks for fields that a server changes or refuses: it replaces zero
// timestamps with the present time, and refuses a second _id; in a replacement, it
// refuses field names that begin with a dollar. All of this applies to the top level
// only. If numbered, the document ends with a record id, which is cut off.
func inspect(raw bson.Raw, numbered bool) (document, error) {
	d := document{raw: raw, insert: true, replace: true}
	it := rawbson.NewIter(raw)
	ids, dollars, zero := 0, 0, false
	for it.Next() {
		switch {
		case len(it.Key) == 0:
		case it.Key[0] == '_':
			if it.Is(idField) {
				ids++
			}
		case it.Key[0] == '$':
			dollars++
		}
		if it.Type == bson.TypeTimestamp && binary.LittleEndian.Uint64(it.Value) == 0 {
			zero = true
		}
	}
	if err := it.Err(); err != nil {
		return d, fmt.Errorf("read a document: %w", err)
	}
	if numbered {
		if !it.Is(recordField) || it.Type != bson.TypeInt64 {
			return d, errNoRecord
		}
		d.record = int64(binary.LittleEndian.Uint64(it.Value)) //nolint:gosec // as the server packed it
		dollars--
		d.raw = cut(raw, recordElem)
	}
	if ids == 0 {
		return d, errors.New("read a document: it has no _id")
	}
	d.insert = !zero && ids == 1
	d.replace = d.insert && dollars == 0
	return d, nil
}

// cut removes n bytes from the end of a document, in place.
func cut(raw bson.Raw, n int) bson.Raw {
	raw = raw[:len(raw)-n]
	raw[len(raw)-1] = 0
	binary.LittleEndian.PutUint32(raw, uint32(len(raw))) //nolint:gosec // It was a document.
	return raw
}
