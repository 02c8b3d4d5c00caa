package mongo

import (
	"time"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// longTxn is how long a transaction has lasted of which the server says that it
// does not know it, if that is for its age.
const longTxn = 20 * time.Second

// Disposition is what can be done about a transaction that failed.
type Disposition uint8

// The dispositions.
const (
	// End: the caller must not retry it. That it failed is about
	// the server, the session or our rights, or what became of it is not known.
	End Disposition = iota
	// Again: nothing of it was done, and what was in its way goes by itself.
	Again
	// Smaller: nothing of it was done, and less of it at once may be.
	Smaller
	// Other: nothing of it was done, for what is known to no other disposition: one of its
	// statements is at fault.
	Other
)

// String returns the disposition's name.
func (f Disposition) String() string {
	return [...]string{"end", "again", "smaller", "other"}[f]
}

// CommitError is a failed commit. What would be worth another try before it is
// so only if the server says that the transaction is aborted.
type CommitError struct {
	// Err is how it failed.
	Err error
}

func (e *CommitError) Error() string { return e.Err.Error() }

// Unwrap returns how it failed.
func (e *CommitError) Unwrap() error { return e.Err }

// Kind returns the kind of how it failed: see [servererr.ClassifyCommit].
func (e *CommitError) Kind() servererr.Kind { return servererr.ClassifyCommit(e.Err) }

// agedError is a transaction that the server gave up because it took too long.
type agedError struct {
	// Err is what the server said.
	Err error
}

func (e *agedError) Error() string { return e.Err.Error() }

// Unwrap returns what the server said.
func (e *agedError) Unwrap() error { return e.Err }

// Kind returns Split: less of it at once takes less time.
func (e *agedError) Kind() servererr.Kind { return servererr.Split }

// Aged tells a transaction that was given up for its age from one that a new
// primary does not know, by how long it took: the server says the same of both. If
// it was the other the next transaction finds out.
func Aged(err error, took time.Duration) error {
	if servererr.IsGoneTransaction(err) && took >= longTxn {
		return &agedError{Err: err}
	}
	return err
}

// DispositionOf says what is done about an error of a transaction, that of its commit
// included. An error that is not a server's is the End: callers check for errors of their
// own first.
func DispositionOf(err error) Disposition {
	switch servererr.Classify(err) {
	case servererr.Transient, servererr.Expired:
		return Again
	case servererr.Split:
		return Smaller
	case servererr.Isolate:
		return Other
	default:
		// Another primary, another holder of the session, or what another try of the
		// same does not change at once.
		return End
	}
}
