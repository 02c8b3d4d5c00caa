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
	// pieces are walks of docs, each before the first document of a piece of
	// pieceEntries.
	pieces []rawbson.Iter
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
	p.pieces = make([]rawbson.Iter, 0, 1+len(p.docs)/(pieceEntries*leastEntry))
	docs := rawbson.NewIter(p.docs)
	for {
		if p.n%pieceEntries == 0 {
			p.pieces = append(p.pieces, docs)
		}
		if !docs.Next() {
			break
		}
		if _, ok := docs.Document(); !ok {
			return p, replyFault(fmt.Sprintf("cursor.%s.%d", batch, p.n), "not a document but "+docs.Type.String())
		}
		p.n++
	}
	if err := docs.Err(); err != nil {
		return p, replyFault("cursor."+batch, err.Error())
	}
	p.pieces = p.pieces[:(p.n+pieceEntries-1)/pieceEntries]
	return p, nil
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
