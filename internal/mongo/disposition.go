package mongo

import (
	"time"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// longTxn is the age from which NoSuchTransaction means that the server aborted the
// transaction for its age.
const longTxn = 20 * time.Second

// Disposition is the way to continue after a failed transaction.
type Disposition uint8

// The dispositions.
const (
	// End: the caller must not retry it. The cause is the server, the session or
	// missing privileges, or the outcome is unknown.
	End Disposition = iota
	// Again: it had no effect, and the cause is transient.
	Again
	// Smaller: it had no effect, and a smaller transaction may succeed.
	Smaller
	// Other: it had no effect, for another reason: one of its statements is at fault.
	Other
)

// String returns the disposition's name.
func (f Disposition) String() string {
	return [...]string{"end", "again", "smaller", "other"}[f]
}

// CommitError is a failed commit. It may only be retried if the server reports that the
// transaction was aborted.
type CommitError struct {
	// Err is the error of the commit.
	Err error
}

func (e *CommitError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *CommitError) Unwrap() error { return e.Err }

// Kind returns the kind of a failed commit: see [servererr.ClassifyCommit].
func (e *CommitError) Kind() servererr.Kind { return servererr.ClassifyCommit(e.Err) }

// agedError reports a transaction that the server aborted because it took too long.
type agedError struct {
	// Err is the server's error.
	Err error
}

func (e *agedError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *agedError) Unwrap() error { return e.Err }

// Kind returns Split: a smaller transaction takes less time.
func (e *agedError) Kind() servererr.Kind { return servererr.Split }

// Aged distinguishes, by its duration, a transaction that was aborted for its age from
// one that a new primary does not know: the server returns the same error for both. If
// the guess is wrong, the next transaction fails with the right error.
func Aged(err error, took time.Duration) error {
	if servererr.IsGoneTransaction(err) && took >= longTxn {
		return &agedError{Err: err}
	}
	return err
}

// DispositionOf returns the disposition for an error of a transaction or its commit. It
// is End for an error that does not come from a server: callers check for their own
// errors first.
func DispositionOf(err error) Disposition {
	switch servererr.Classify(err) {
	case servererr.Transient, servererr.Expired:
		return Again
	case servererr.Split:
		return Smaller
	case servererr.Isolate:
		return Other
	default:
		// Another primary, another user of the session, or a cause that an immediate
		// retry does not change.
		return End
	}
}
