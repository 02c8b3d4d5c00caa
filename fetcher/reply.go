package fetcher

import (
	"fmt"
	"unsafe"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// entrySize is the memory that an entry takes in addition to its bytes, in bytes.
const entrySize = int64(unsafe.Sizeof(oplog.Entry{}))

// The names of the array of documents in a cursor's replies.
const (
	firstBatch = "firstBatch"
	nextBatch  = "nextBatch"
)

// page is one reply of a cursor, as views into it.
type page struct {
	raw bson.Raw
	// cursor is the cursor's id, 0 if it has ended.
	cursor int64
	// docs is the array of documents, n how many there are.
	docs bson.Raw
	n    int
}

// replyFault is the error of a reply that does not have the form of a cursor's.
func replyFault(field, what string) error {
	return fmt.Errorf("reply of a cursor: %s: %s", field, what)
}

// parsePage reads a reply of a cursor, whose documents are in the array batch.
func parsePage(raw bson.Raw, batch string) (page, error) {
	p := page{raw: raw}
	e, _ := rawbson.Lookup(raw, "cursor")
	cursor, ok := e.Document()
	if !ok {
		return p, replyFault("cursor", "missing, or not a document")
	}
	e, _ = rawbson.Lookup(cursor, "id")
	if p.cursor, ok = e.Int64(); !ok {
		return p, replyFault("cursor.id", "missing, or not a number")
	}
	e, _ = rawbson.Lookup(cursor, batch)
	if p.docs, ok = e.Array(); !ok {
		return p, replyFault("cursor."+batch, "missing, or not an array")
	}
	docs := rawbson.NewIter(p.docs)
	for docs.Next() {
		if _, ok := docs.Document(); !ok {
			return p, replyFault(fmt.Sprintf("cursor.%s.%d", batch, p.n), "not a document but "+docs.Type.String())
		}
		p.n++
	}
	if err := docs.Err(); err != nil {
		return p, replyFault("cursor."+batch, err.Error())
	}
	return p, nil
}

// entries parses the documents except the first skip. They must ascend, and all come
// after the optime after.
func (p *page) entries(skip int, after oplog.OpTime) ([]oplog.Entry, error) {
	if p.n <= skip {
		return nil, nil
	}
	list := make([]oplog.Entry, p.n-skip)
	i := -skip
	docs := rawbson.NewIter(p.docs)
	for ; docs.Next(); i++ {
		if i < 0 {
			continue
		}
		e := &list[i]
		if err := e.Parse(docs.Value); err != nil {
			return nil, err
		}
		at := e.OpTime
		if oplog.CompareTimestamps(at.TS, after.TS) <= 0 || regresses(at.Term, after.Term) {
			return nil, fmt.Errorf("%w: %s comes after %s", ErrOutOfOrder, at, after)
		}
		after = at
	}
	return list, nil
}

// regresses reports whether a term is older than that of the entry before.
func regresses(term, before int64) bool {
	return term < before && term != oplog.UninitializedTerm
}

// first returns the optime of the first document.
func (p *page) first() (oplog.OpTime, error) {
	docs := rawbson.NewIter(p.docs)
	docs.Next()
	e, err := replset.ReadEntry(docs.Value)
	return e.OpTime, err
}

// bytes is the memory that the reply takes with n entries.
func (p *page) bytes(n int) int64 { return int64(cap(p.raw)) + int64(n)*entrySize }
