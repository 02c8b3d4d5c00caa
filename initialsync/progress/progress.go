package progress

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/oplog"
)

// State is how far a collection is copied.
type State string

const (
	// Planned is one of which nothing is in the target.
	Planned State = "planned"
	// Created is one that is there, without documents, and whose ranges
	// are in the metadata.
	Created State = "created"
	// Filled is one whose documents are all copied.
	Filled State = "filled"
	// Done is one whose indexes are built as well, as far as they can be.
	Done State = "done"
)

// Collection is a collection of a copy. A view, or the view side of a time
// series, is none; the buckets of a time series are.
type Collection struct {
	UUID oplog.UUID
	// NS is the source's namespace of it at Copy.Begin, under which it is put
	// into the target, by way of the link's names.
	NS oplog.Namespace
	// Options are the collection's, IDIndex the spec of its index on _id (nil
	// for none), Indexes those of its other finished indexes, as the source
	// listed them.
	Options bson.Raw
	IDIndex bson.Raw
	Indexes []bson.Raw
	// Docs and Bytes are the source's estimate when it was listed.
	Docs, Bytes int64
	State       State
	// Gone tells that the source has dropped it while it was copied. The log
	// does the same to what the target has of it.
	Gone bool
	// Failed are the indexes that could not be built.
	Failed []FailedIndex
}

// FailedIndex is an index that could not be built on the target.
type FailedIndex struct{ Name, Why string }

// Range is a part of a collection that is copied in one order. It is
// identified by UUID and Index.
type Range struct {
	UUID  oplog.UUID
	Index int
	// Spec is what is to be copied and At how far it is, nil for nothing yet:
	// both belong to package initialsync/clone and mean nothing here.
	Spec, At bson.Raw
	// Docs and Bytes are what is copied.
	Docs, Bytes int64
	// Steps counts the moves of At.
	Steps int64
	Done  bool
}
