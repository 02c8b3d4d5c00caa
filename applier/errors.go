package applier

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/oplog"
)

// ErrCut is a log that ends inside of what an earlier attempt had begun outside of
// transactions: what of that is in the target can be told only from all of it. It
// is left as it is, for the next attempt.
var ErrCut = errors.New("the log was not read to the end of what an earlier attempt had begun")

// DivergenceError is a target that is not what was left: an operation met
// something that it cannot have met at the source.
type DivergenceError struct {
	// NS is the collection as the target names it.
	NS oplog.Namespace
	// ID is the document's _id.
	ID bson.RawValue
	// OpTime is the entry's.
	OpTime oplog.OpTime
	// What was met.
	What string
}

func (e *DivergenceError) Error() string {
	return fmt.Sprintf("apply entry %s: %s, _id %s: the target is not what was left: %s",
		e.OpTime, e.NS, showID(e.ID), e.What)
}

func divergence(op *plan.Op, what string) *DivergenceError {
	return &DivergenceError{NS: op.Target, ID: cloneValue(op.ID), OpTime: op.At.OpTime, What: what}
}

// UniqueError is an operation that a unique index of the target refused. It is
// never passed over: a document would be lost.
type UniqueError struct {
	// NS is the collection as the target names it.
	NS oplog.Namespace
	// Index is the index's name, as far as the server told it.
	Index string
	// Key is the key that is there already, nil where it was not told.
	Key bson.Raw
	// ID is the document that could not be written, Other the one that has the
	// key; its Type is zero where it is not known.
	ID, Other bson.RawValue
	// OpTime is the entry's.
	OpTime oplog.OpTime
	// Err is what the server said.
	Err error
}

func (e *UniqueError) Error() string {
	index, key, other := e.Index, "its key", ""
	if index == "" {
		index = "without a known name"
	}
	if e.Key != nil {
		key = "the key " + printable.Text(bsontext.Document(e.Key))
	}
	if e.Other.Type != 0 {
		other = fmt.Sprintf(", which _id %s has", showID(e.Other))
	}
	return fmt.Sprintf("apply entry %s: %s, _id %s: unique index %s has %s already%s: %v",
		e.OpTime, e.NS, showID(e.ID), index, key, other, e.Err)
}

// Unwrap returns what the server said.
func (e *UniqueError) Unwrap() error { return e.Err }

// OpError is an operation that the target refused for a reason of its own.
type OpError struct {
	NS     oplog.Namespace
	ID     bson.RawValue
	OpTime oplog.OpTime
	Kind   oplog.Kind
	// Err is what the server said.
	Err error
}

func (e *OpError) Error() string {
	return fmt.Sprintf("apply entry %s: %s to %s, _id %s: %v", e.OpTime, e.Kind, e.NS, showID(e.ID), e.Err)
}

// Unwrap returns what the server said.
func (e *OpError) Unwrap() error { return e.Err }

func opError(op *plan.Op, err error) error {
	return &OpError{NS: op.Target, ID: cloneValue(op.ID), OpTime: op.At.OpTime, Kind: op.Kind, Err: err}
}

// StuckError is a flush that was tried for as long as may be, and met the same
// kind of conflict each time.
type StuckError struct {
	Lane string
	// At is the first operation's place.
	At  checkpoint.Position
	Ops int
	// Tried is for how long.
	Tried time.Duration
	// Err is that of the last try.
	Err error
}

func (e *StuckError) Error() string {
	return fmt.Sprintf("write %d operations from %s on through lane %s: refused for %s: %v",
		e.Ops, e.At, e.Lane, e.Tried.Round(time.Millisecond), e.Err)
}

// Unwrap returns the error of the last try.
func (e *StuckError) Unwrap() error { return e.Err }

// crowdedError is a flush that has met others again and again, of which less may be
// written at once.
type crowdedError struct{ err error }

func (e *crowdedError) Error() string { return e.err.Error() }

// Unwrap returns the error of the last try.
func (e *crowdedError) Unwrap() error { return e.err }

// shortError is a write command that found fewer documents than it had to. One of
// its statements is to blame.
type shortError struct {
	want, got int64
	// guarded: some asked for the absence of fields, and may be right about it.
	guarded bool
}

func (e *shortError) Error() string {
	return fmt.Sprintf("%d of %d statements took effect", e.got, e.want)
}

func cloneValue(v bson.RawValue) bson.RawValue {
	return bson.RawValue{Type: v.Type, Value: bytes.Clone(v.Value)}
}

// longestID is how many bytes of an _id, as text, an error shows.
const longestID = 128

// showID writes an _id as the server's messages do: 3, "x", ObjectId('...').
func showID(v bson.RawValue) string {
	s := bsontext.Value(v)
	if len(s) > longestID {
		s = fmt.Sprintf("%s... (%d bytes)", strings.ToValidUTF8(s[:longestID], ""), len(v.Value))
	}
	return printable.Text(s)
}
