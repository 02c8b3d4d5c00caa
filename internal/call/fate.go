package call

import (
	"errors"
	"slices"
	"time"

	"github.com/oplogrep/replicator/internal/servererr"
)

// Labels with which a server says more of an error of a transaction.
const (
	LabelTransient = servererr.LabelTransient
	LabelUnknown   = servererr.LabelUnknownCommit
)

// longTxn is how long a transaction has lasted of which the server says that it
// does not know it, if that is for its age.
const longTxn = 20 * time.Second

// Fate is what is to become of a transaction that failed.
type Fate uint8

// The fates.
const (
	// End: it is not to be tried again by whoever sent it. That it failed is about
	// the server, the session or our rights, or what became of it is not known.
	End Fate = iota
	// Again: nothing of it was done, and what was in its way goes by itself.
	Again
	// Smaller: nothing of it was done, and less of it at once may be.
	Smaller
	// Other: nothing of it was done, for what is known to no other fate: one of its
	// statements is at fault.
	Other
)

// String returns the fate's name.
func (f Fate) String() string {
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

// AgedError is a transaction that the server gave up because it took too long.
type AgedError struct {
	// Err is what the server said.
	Err error
}

func (e *AgedError) Error() string { return e.Err.Error() }

// Unwrap returns what the server said.
func (e *AgedError) Unwrap() error { return e.Err }

// Aged tells a transaction that was given up for its age from one that a new
// primary does not know, by how long it took: the server says the same of both. If
// it was the other the next transaction finds out.
func Aged(err error, took time.Duration) error {
	if e, ok := errors.AsType[*servererr.Error](err); ok && e.Code == servererr.NoSuchTransaction && took >= longTxn {
		return &AgedError{Err: err}
	}
	return err
}

// FateOf judges an error of a transaction, that of its commit included. What is no
// refusal of a server is the End: whoever has errors of their own asks for those
// before.
func FateOf(err error) Fate {
	if _, stuck := errors.AsType[*StuckError](err); stuck {
		return End // it was tried again, for as long as may be
	}
	if _, lost := errors.AsType[*LostError](err); lost {
		return End
	}
	if _, unconfirmed := errors.AsType[*UnconfirmedError](err); unconfirmed {
		return End
	}
	if _, old := errors.AsType[*AgedError](err); old {
		return Smaller
	}
	refusal, ok := errors.AsType[*servererr.Error](err)
	if !ok {
		return End
	}
	f := FateOfRefusal(refusal)
	if _, committing := errors.AsType[*CommitError](err); committing {
		switch {
		case slices.Contains(refusal.Labels, LabelUnknown):
			return End
		case f == Other, f == Again && !slices.Contains(refusal.Labels, LabelTransient):
			// Whether it is aborted has not been said.
			return End
		}
	}
	return f
}

// FateOfRefusal judges a refusal of a command of a transaction, or of a statement.
func FateOfRefusal(e *servererr.Error) Fate {
	switch e.Kind() {
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
