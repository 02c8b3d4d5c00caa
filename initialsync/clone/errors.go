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

// ErrGone reports a collection that the source does not have any more.
var ErrGone = errors.New("the source has dropped the collection")

// ErrHole reports, with Config.NoHoles, that a capped collection has discarded the
// document to resume after: the documents copied before it would stay, with a hole
// after them.
var ErrHole = errors.New("the source's capped collection has deleted the document that was copied last")

// UniqueError reports a document that a unique index of the target refused. It is never
// skipped: a document would be lost.
type UniqueError struct {
	// NS is the collection as the target names it.
	NS oplog.Namespace
	// Index is the index's name, if the server reported it.
	Index string
	// Key is the existing key, nil if the server did not report it.
	Key bson.Raw
	// Err is the server's error.
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

// Unwrap returns the server's error.
func (e *UniqueError) Unwrap() error { return e.Err }

// RefusedError reports a document that the target refuses.
type RefusedError struct {
	// NS is the collection as the target names it.
	NS oplog.Namespace
	// ID is the document's _id; its Type is zero if it is not known.
	ID bson.RawValue
	// Err is the server's error.
	Err error
}

func (e *RefusedError) Error() string {
	id := "a document"
	if e.ID.Type != 0 {
		id = "the document with _id " + printable.Text(bsontext.Value(e.ID))
	}
	return fmt.Sprintf("write %s to %s: %v", id, e.NS, e.Err)
}

// Unwrap returns the server's error.
func (e *RefusedError) Unwrap() error { return e.Err }

// TooLargeError reports a document that does not fit the storage cache of the target, which may have more room later.
type TooLargeError struct {
	// NS is the collection as the target names it, ID the document's _id.
	NS oplog.Namespace
	ID bson.RawValue
	// Tried is how long it was retried.
	Tried time.Duration
	// Err is the server's error.
	Err error
}

func (e *TooLargeError) Error() string { return fmt.Sprintf("write %s: %v", e.Document(), e.Err) }

// Document returns the document's _id and namespace as a text.
func (e *TooLargeError) Document() string {
	return "the document with _id " + printable.Text(bsontext.Value(e.ID)) + " to " + string(e.NS)
}

// Unwrap returns the server's error.
func (e *TooLargeError) Unwrap() error { return e.Err }

// crowdedError reports a flush that kept failing on conflicts, so that a smaller one
// should be tried.
type crowdedError struct{ err error }

func (e *crowdedError) Error() string { return e.err.Error() }

// Unwrap returns the error of the last try.
func (e *crowdedError) Unwrap() error { return e.err }
