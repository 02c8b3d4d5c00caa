package clone

import (
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/oplog"
)

// ErrGone is a collection that the source does not have any more.
var ErrGone = errors.New("the source has dropped the collection")

// ErrHole is a capped collection that has pushed out the place to go on after, where
// Config.NoHoles: what was copied before that place would stay, with a hole after it.
var ErrHole = errors.New("the source has pushed out what was copied last")

// UniqueError is a document that a unique index of the target refused. It is never
// passed over: a document would be lost.
type UniqueError struct {
	// NS is the collection as the target names it.
	NS oplog.Namespace
	// Index is the index's name, as far as the server told it.
	Index string
	// Key is the key that is there already, nil where it was not told.
	Key bson.Raw
	// Err is what the server said.
	Err error
}

func (e *UniqueError) Error() string {
	index, key := e.Index, "its key"
	if index == "" {
		index = "without a known name"
	}
	if e.Key != nil {
		key = "the key " + printable.Text(bsontext.Document(e.Key))
	}
	return fmt.Sprintf("write to %s: unique index %s has %s already: %v", e.NS, index, key, e.Err)
}

// Unwrap returns what the server said.
func (e *UniqueError) Unwrap() error { return e.Err }

// RefusedError is a document that the target does not take.
type RefusedError struct {
	// NS is the collection as the target names it.
	NS oplog.Namespace
	// ID is the document's _id; its Type is zero where it is not known.
	ID bson.RawValue
	// Err is what the server said.
	Err error
}

func (e *RefusedError) Error() string {
	id := "a document"
	if e.ID.Type != 0 {
		id = "the document with _id " + printable.Text(bsontext.Value(e.ID))
	}
	return fmt.Sprintf("write %s to %s: %v", id, e.NS, e.Err)
}

// Unwrap returns what the server said.
func (e *RefusedError) Unwrap() error { return e.Err }

// StuckError is something that was tried again and again in vain.
type StuckError struct {
	// What was tried, for how long.
	What  string
	Tried time.Duration
	// Err is what was said last.
	Err error
}

func (e *StuckError) Error() string {
	return fmt.Sprintf("%s: tried for %s: %v", e.What, e.Tried.Round(time.Millisecond), e.Err)
}

// Unwrap returns what was said last.
func (e *StuckError) Unwrap() error { return e.Err }

// crowdedError is a flush that has met others again and again, of which less may be
// written at once.
type crowdedError struct{ err error }

func (e *crowdedError) Error() string { return e.err.Error() }

// Unwrap returns the error of the last try.
func (e *crowdedError) Unwrap() error { return e.err }
