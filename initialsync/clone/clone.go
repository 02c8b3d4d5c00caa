// Package clone copies the documents of collections from one member of the source
// into the target: in ranges, side by side, each of which goes on where it was.
package clone

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/call"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/oplog"
)

// ReadConcern is how documents are read.
type ReadConcern string

// The read concerns.
const (
	Majority ReadConcern = "majority"
	Local    ReadConcern = "local"
)

// Pacer slows the copy down.
type Pacer interface {
	// Wait returns when so much may be written.
	Wait(ctx context.Context, docs, bytes int) error
	// Took is told how long it took to read or write it.
	Took(side Side, d time.Duration, docs, bytes int)
}

// Side is one of the two clusters.
type Side string

// The sides.
const (
	Source Side = "source"
	Target Side = "target"
)

// Config says how collections are copied.
type Config struct {
	// Source runs commands on the member that is copied, Target on the target's
	// primary. Writing goes through lanes.
	Source, Target call.Caller
	ReadConcern    ReadConcern
	// After is a time that every read has to show.
	After bson.Timestamp
	// RangeBytes is the size of a part that is copied by itself. Zero means
	// 512 MiB.
	RangeBytes int64
	// FlushDocs and FlushBytes bound one transaction. Zero means 2,000 and 8 MiB.
	FlushDocs, FlushBytes int
	// Memory bounds what was read and is not written, of all parts together, in
	// bytes. Zero means 256 MiB; the least is 64 MiB.
	Memory int64
	// Pacer may be nil.
	Pacer    Pacer
	Observer event.Observer
	// Moved is told of each step of a range: so many more documents and bytes, and
	// whether it is done. It must not block. May be nil.
	Moved func(r *checkpoint.CopyRange, docs, bytes int64)
}

// Lane is a *checkpoint.Lane.
type Lane interface {
	Session() *call.Session
	MoveRange(ctx context.Context, txn *call.Txn, r, next *checkpoint.CopyRange) error
}

// Cloner copies ranges. It is safe for concurrent use, one call of Copy for each
// lane at a time.
type Cloner struct{}

// New checks cfg. It does no I/O.
func New(cfg Config) (*Cloner, error) { panic("not written yet") }

// Split returns the ranges of a collection: one for a small one, or a capped one,
// several for a large one. to is its namespace in the target. A collection that
// is gone has none (ErrGone).
func (c *Cloner) Split(ctx context.Context, coll *checkpoint.CopyCollection, to oplog.Namespace) ([]checkpoint.CopyRange, error) {
	panic("not written yet")
}

// Copy copies what is left of a range, through a lane, to the namespace `to` of the
// target. A collection that was dropped at the source ends with ErrGone. For a
// capped collection the result is the time as of which all of it has been read.
func (c *Cloner) Copy(ctx context.Context, lane Lane, coll *checkpoint.CopyCollection, to oplog.Namespace, r checkpoint.CopyRange) (complete bson.Timestamp, err error) {
	panic("not written yet")
}
