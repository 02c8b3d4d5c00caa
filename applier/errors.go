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

// ErrLogIncomplete reports a log that ends inside of a span that an earlier attempt had announced
// outside of transactions. Only the complete span shows which part of it is in the
// target, so the next attempt applies it.
var ErrLogIncomplete = errors.New("the log was not read to the end of what an earlier attempt had begun")

// ErrLeft reports an attempt that has ended before an index build, as Config.Leave asked for.
// The target continues the build, and the next attempt repeats the commit.
var ErrLeft = errors.New("an index build continues, and the link does not wait for its end")

// Diverged is the message of the event that announces a divergence after which the run continues; its
// attribute ns is the namespace of the target.
const Diverged = "target diverged"

// DivergenceError reports a target that differs from the log: an operation met a state
// that is impossible at the source.
type DivergenceError struct {
	// NS is the collection as the target names it.
	NS oplog.Namespace
	// ID is the document's _id.
	ID bson.RawValue
	// OpTime is the entry's.
	OpTime oplog.OpTime
	// What describes that state.
	What string

	source oplog.Namespace // the collection as the source names it
	op     int64           // the operation within the entry
}

func (e *DivergenceError) Error() string {
	return fmt.Sprintf("apply entry %s: %s, _id %s: the target differs from what the link wrote: %s",
		e.OpTime, e.NS, showID(e.ID), e.What)
}

func divergence(op *plan.Op, what string) *DivergenceError {
	return &DivergenceError{NS: op.Target, ID: cloneValue(op.ID), OpTime: op.At.OpTime, What: what, source: op.NS.Clone(), op: op.At.Op}
}

// UniqueError reports an operation that a unique index of the target refused. It is never
// skipped: a document would be lost.
type UniqueError struct {
	// NS is the collection as the target names it.
	NS oplog.Namespace
	// Index is the index's name, as far as the server's message has it.
	Index string
	// Key is the key that exists already, nil where it is not known.
	Key bson.Raw
	// ID is the document that could not be written, Other the one that has the key; its
	// Type is zero where it is not known.
	ID, Other bson.RawValue
	// OpTime is the entry's.
	OpTime oplog.OpTime
	// Err is the server's error.
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

// Unwrap returns the server's error.
func (e *UniqueError) Unwrap() error { return e.Err }

// OpError reports an operation that the target refused for another reason.
type OpError struct {
	NS     oplog.Namespace
	ID     bson.RawValue
	OpTime oplog.OpTime
	Kind   oplog.Kind
	// Err is the server's error.
	Err error
}

func (e *OpError) Error() string { return fmt.Sprintf("apply %s: %v", e.Operation(), e.Err) }

// Operation returns the operation's entry, namespace and _id as a text.
func (e *OpError) Operation() string {
	return fmt.Sprintf("entry %s: %s to %s, _id %s", e.OpTime, e.Kind, e.NS, showID(e.ID))
}

// Unwrap returns the server's error.
func (e *OpError) Unwrap() error { return e.Err }

func opError(op *plan.Op, err error) error {
	return &OpError{NS: op.Target, ID: cloneValue(op.ID), OpTime: op.At.OpTime, Kind: op.Kind, Err: err}
}

// StuckError reports a flush that was retried up to the limit, and met the same kind of
// conflict each time.
type StuckError struct {
	Lane string
	// At is the position of the first operation.
	At  checkpoint.Position
	Ops int
	// Tried is how long it was retried.
	Tried time.Duration
	// Err is the error of the last try; of a single operation, an *OpError.
	Err error
}

func (e *StuckError) Error() string {
	return fmt.Sprintf("write %d operations from %s on through lane %s: refused for %s: %v",
		e.Ops, e.At, e.Lane, e.Tried.Round(time.Millisecond), e.Err)
}

// Unwrap returns the error of the last try.
func (e *StuckError) Unwrap() error { return e.Err }

// crowdedError reports a flush that met repeated conflicts and should be split.
type crowdedError struct{ err error }

func (e *crowdedError) Error() string { return e.err.Error() }

// Unwrap returns the error of the last try.
func (e *crowdedError) Unwrap() error { return e.err }

// shortError reports a write command that matched fewer documents than it had to. One of
// its statements is the cause.
type shortError struct {
	want, got int64
	// guarded: some statements require the absence of fields, so that no match is not
	// a divergence.
	guarded bool
}

func (e *shortError) Error() string {
	return fmt.Sprintf("%d of %d statements took effect", e.got, e.want)
}

func cloneValue(v bson.RawValue) bson.RawValue {
	return bson.RawValue{Type: v.Type, Value: bytes.Clone(v.Value)}
}

// longestID is how many bytes of an _id, as text, an error message contains.
const longestID = 128

// showID formats an _id as the server's messages do: 3, "x", ObjectId('...').
func showID(v bson.RawValue) string {
	s := bsontext.Value(v)
	if len(s) > longestID {
		s = fmt.Sprintf("%s... (%d bytes)", strings.ToValidUTF8(s[:longestID], ""), len(v.Value))
	}
	return printable.Text(s)
}
