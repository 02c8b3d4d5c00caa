package mongo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

const (
	// RetryFor is for how long something is tried by default.
	RetryFor = 30 * time.Second
	// The pauses between two tries: they double, and half of each is by chance, so
	// that those who met each other do not meet again.
	firstPause, longestPause = 5 * time.Millisecond, time.Second
	// abortTimeout bounds giving up a transaction when all is ending.
	abortTimeout = 2 * time.Second
)

// Retry is how something is tried again while what is in its way goes by itself. What
// is tried for long, Waits knows.
type Retry struct {
	// For is for how long. Zero is RetryFor.
	For time.Duration
	// Again tells whether the same can be tried once more after an error, of which
	// nothing was done. Nil asks DispositionOf.
	Again func(err error) bool
	// Failed, if not nil, is told of each error that is followed by another try.
	Failed func(err error)
}

// StuckError is something that was refused for as long as it was tried.
type StuckError struct {
	// Tried is for how long, Tries how often.
	Tried time.Duration
	Tries int
	// Err is that of the last try.
	Err error
}

func (e *StuckError) Error() string {
	return fmt.Sprintf("tried %d times in %s: %v", e.Tries, e.Tried.Round(time.Millisecond), e.Err)
}

// Unwrap returns the error of the last try.
func (e *StuckError) Unwrap() error { return e.Err }

// Kind returns Stuck.
func (e *StuckError) Kind() servererr.Kind { return servererr.Stuck }

// Passes reports whether nothing was done of a transaction that failed, and the same
// may be done later: for what cannot be made smaller. It is also for commands outside
// of transactions that may be carried out twice.
func Passes(err error) bool {
	switch servererr.Classify(err) {
	case servererr.Transient, servererr.Split, servererr.Expired, servererr.Ended:
		return true
	default:
		return false
	}
}

// Do calls try until it succeeds, or fails for a reason that does not go by itself
// (with that error), or has been tried for long enough (with a *StuckError), or ctx
// is done (with its cause).
func (r Retry) Do(ctx context.Context, try func() error) error {
	limit, again := r.For, r.Again
	if limit <= 0 {
		limit = RetryFor
	}
	if again == nil {
		again = func(err error) bool { return DispositionOf(err) == Again }
	}
	start := time.Now()
	for tries, wait := 1, firstPause; ; tries, wait = tries+1, min(2*wait, longestPause) {
		err := try()
		if err == nil || !again(err) {
			return err
		}
		if tried := time.Since(start); tried >= limit {
			return &StuckError{Tried: tried, Tries: tries, Err: err}
		}
		if r.Failed != nil {
			r.Failed(err)
		}
		if err := Pause(ctx, wait); err != nil {
			return err
		}
	}
}

// Pause waits for about d, or until ctx is done.
func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d/2 + rand.N(d))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// InTxn runs work in a transaction of the session, and commits it, with a majority
// or by the primary alone. DispositionOf says of its error whether the same can be done
// again, under the next number: nothing was done then. It tries once; see Retry.
func (s *Session) InTxn(ctx context.Context, majority bool, work func(txn *Txn) error) error {
	start := time.Now()
	txn := s.Begin()
	if err := work(txn); err != nil {
		if mayBeOpen(ctx, err) {
			// Its locks should not outlast it.
			ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
			defer cancel()
			txn.Abort(ending)
		}
		return Aged(err, time.Since(start))
	}
	if _, err := txn.Commit(ctx, majority); err != nil {
		return Aged(&CommitError{Err: err}, time.Since(start))
	}
	return nil
}

// mayBeOpen tells whether the server may still hold a transaction open in which
// something has failed: it does not if it refused, or cannot be asked.
func mayBeOpen(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		return true
	}
	if _, lost := errors.AsType[*LostError](err); lost {
		return false
	}
	_, refused := errors.AsType[*servererr.Error](err)
	return !refused || DispositionOf(err) != End
}

// Patient is a Caller that sends a command again which was refused while what was in
// its way goes by itself. It is for commands outside of transactions, of which a
// server that refused them has done nothing, or that may be carried out twice.
type Patient struct {
	Caller
	Retry Retry
}

// Call implements Caller.
func (p Patient) Call(ctx context.Context, cmd Command) (bson.Raw, error) {
	var reply bson.Raw
	err := p.Retry.Do(ctx, func() (err error) {
		reply, err = p.Caller.Call(ctx, cmd)
		if err == nil {
			err = PassingStatement(reply)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return reply, nil
}

// PassingStatement returns the first refusal of a statement of a write after which
// the same can be sent again: a server that has no room refuses statements one by one.
func PassingStatement(reply bson.Raw) error {
	refused, err := WriteErrors(reply)
	for i := range refused {
		if DispositionOf(&refused[i].Error) == Again {
			return &refused[i].Error
		}
	}
	return err
}
