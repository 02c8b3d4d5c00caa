package clone

import (
	"encoding/binary"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// page is what one reply brought.
type page struct {
	docs []document
	// piece is that of its documents.
	piece int
	order order
	// record is how far the page goes in natural order, also where it is empty.
	record int64
	// last: the range ends with it.
	last bool
	// reserved is how much of Config.Memory it uses.
	reserved int64
}

// document is one document, a view into a reply.
type document struct {
	raw bson.Raw
	// record is its record id, in natural order.
	record int64
	// insert: an insert stores it as it is; replace: a replacement
	// does.
	insert, replace bool
	// anew tells that what the target has of its _id has to be deleted first, as it
	// is spelled in another way.
	anew bool
}

// documentBytes is what a document takes.
const documentBytes = 40

// id returns the document's _id.
func (d *document) id() bson.RawValue {
	e, _ := rawbson.Lookup(d.raw, idField)
	return e.Raw()
}

// recordElem is what the server appends to a document for its record id: type,
// name, number.
const recordElem = 1 + len(recordField) + 1 + 8

// errNoRecord is a document without a record id that is a number.
var errNoRecord = errors.New("a document has no record id")

// inspect looks for what a server changes or refuses in a document: it puts the
// time of day in place of zero timestamps, and takes no second _id; in a
// replacement it takes no names with a dollar. All that is about the top level
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

// cut takes n bytes from the end of a document, in place.
func cut(raw bson.Raw, n int) bson.Raw {
	raw = raw[:len(raw)-n]
	raw[len(raw)-1] = 0
	binary.LittleEndian.PutUint32(raw, uint32(len(raw))) //nolint:gosec // It was a document.
	return raw
}
