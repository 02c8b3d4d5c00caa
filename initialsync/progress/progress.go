package progress

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/oplog"
)

// State is the state of a collection's copy.
type State string

const (
	// Planned means: nothing of it is in the target, unless it is to be copied Again.
	Planned State = "planned"
	// Created means: it exists, without documents, and its ranges are in the metadata.
	Created State = "created"
	// Filled means: all its documents are copied.
	Filled State = "filled"
	// Done means: its indexes are built as well, as far as possible.
	Done State = "done"
)

// Collection is a collection of a copy. The buckets of a time series are one; a view,
// or the view of a time series, is not.
type Collection struct {
	UUID oplog.UUID
	// NS is the source's namespace of it at Copy.Begin; the link maps it to the
	// target's.
	NS oplog.Namespace
	// Options are the collection's, IDIndex the spec of its index on _id (nil for
	// none), Indexes those of its other finished indexes, as listed by the source.
	Options bson.Raw
	IDIndex bson.Raw
	Indexes []bson.Raw
	// Docs and Bytes are the source's estimates at the time of the listing.
	Docs, Bytes int64
	State       State
	// Gone means that the source dropped it while it was copied. The oplog drops it in
	// the target.
	Gone bool
	// Again means that a part of it was copied from another member, and that it is created
	// and copied again. Only a Planned one is.
	Again bool
	// ByID means that it is read in the order of _id: a copy in another order was lost
	// with a member.
	ByID bool
	// Failed are the indexes that could not be built.
	Failed []FailedIndex
}

// FailedIndex is an index that could not be built on the target.
type FailedIndex struct{ Name, Why string }

// Range is a part of a collection that is copied in one order. It is identified by UUID
// and Index.
type Range struct {
	UUID  oplog.UUID
	Index int
	// Spec is the definition of the range and At its progress, nil for none: both
	// belong to package initialsync/clone and are opaque here.
	Spec, At bson.Raw
	// Docs and Bytes are copied.
	Docs, Bytes int64
	// Steps counts the moves of At.
	Steps int64
	Done  bool
}
