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
	// retryFor is the default of Retry.For.
	retryFor = 30 * time.Second
	// Forever means until the context is done.
	Forever time.Duration = -1
	// The pause before a retry doubles from the first to the longest.
	firstPause, longestPause = 5 * time.Millisecond, time.Second
	// abortTimeout limits how long aborting a transaction may take after ctx is done.
	abortTimeout = 2 * time.Second
)

// Retry is the one retry loop for transient errors, with pauses that double from 5 ms to
// 1 s. Waits reports commands that are retried for long.
type Retry struct {
	// For limits how long Do retries. Zero means retryFor; see Forever.
	For time.Duration
	// Again reports whether Do may retry after an error: the failed try must have had
	// no effect, or be idempotent. Nil means that DispositionOf decides.
	Again func(err error) bool
	// Failed, if not nil, is called with each error that is followed by a retry.
	Failed func(err error)
}

// StuckError is returned by Retry.Do after Retry.For.
type StuckError struct {
	// Tried is the duration of all tries, Tries their number.
	Tried time.Duration
	Tries int
	// Err is the error of the last try.
	Err error
}

func (e *StuckError) Error() string {
	return fmt.Sprintf("tried %d times in %s: %v", e.Tries, e.Tried.Round(time.Millisecond), e.Err)
}

// Unwrap returns the error of the last try.
func (e *StuckError) Unwrap() error { return e.Err }

// Kind returns Stuck.
func (e *StuckError) Kind() servererr.Kind { return servererr.Stuck }

// Passes reports whether a failed transaction, which cannot be split, had no effect and
// may be retried. It is also the rule for idempotent commands outside of transactions.
func Passes(err error) bool {
	switch servererr.Classify(err) {
	case servererr.Transient, servererr.Split, servererr.Expired, servererr.Ended:
		return true
	default:
		return false
	}
}

// Do calls try until it succeeds. It returns errors that must not be retried unchanged,
// a *StuckError after Retry.For, and the cause of ctx once that is done.
func (r Retry) Do(ctx context.Context, try func() error) error {
	tries := r.Start()
	for {
		err := try()
		if err == nil {
			return nil
		}
		if err := tries.Wait(ctx, err); err != nil {
			return err
		}
	}
}

// Last is Do, but returns the error of the last try where Do returns a *StuckError.
func (r Retry) Last(ctx context.Context, try func() error) error {
	err := r.Do(ctx, try)
	if stuck, ok := err.(*StuckError); ok { //nolint:errorlint // Do's own, not one of try that is wrapped
		return stuck.Err
	}
	return err
}

// Tries is Retry.Do for callers with a loop of their own.
type Tries struct {
	retry Retry
	start time.Time
	n     int
	pause time.Duration
}

// Start begins the first try.
func (r Retry) Start() Tries {
	if r.For == 0 {
		r.For = retryFor
	}
	return Tries{retry: r, start: time.Now(), n: 1, pause: firstPause}
}

// Wait pauses after a try that failed with err, and returns nil if the caller should try
// again. Otherwise it returns the error that Retry.Do would return.
func (t *Tries) Wait(ctx context.Context, err error) error {
	switch r := &t.retry; {
	case r.Again == nil && DispositionOf(err) != Again, r.Again != nil && !r.Again(err):
		return err
	case r.For >= 0 && time.Since(t.start) >= r.For:
		return &StuckError{Tried: time.Since(t.start), Tries: t.n, Err: err}
	case r.Failed != nil:
		r.Failed(err)
	}
	pause := t.pause
	t.n, t.pause = t.n+1, min(2*pause, longestPause)
	return Pause(ctx, pause)
}

// Pause blocks for d, with a random jitter of up to a half, or until ctx is done. The
// jitter keeps conflicting operations from conflicting again.
func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d/2 + rand.N(max(1, d))) //nolint:gosec // spreads load, keeps no secret
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// InTxn runs work in a transaction of the session, and ends it: see Txn.End. It does not
// retry.
func (s *Session) InTxn(ctx context.Context, majority bool, work func(txn *Txn) error) error {
	txn := s.Begin()
	return txn.End(ctx, majority, work(txn))
}

// End commits the transaction, with write concern majority or 1, if err, the error of
// its commands, is nil, and aborts it otherwise. DispositionOf of the error that End
// returns decides whether the transaction had no effect and may be retried, under the
// next transaction number.
func (t *Txn) End(ctx context.Context, majority bool, err error) error {
	_, err = t.EndWith(ctx, majority, err)
	return err
}

// EndWith is End. It returns the reply to the commit, whose operationTime is the cluster
// time of the transaction's effects.
func (t *Txn) EndWith(ctx context.Context, majority bool, err error) (bson.Raw, error) {
	if err != nil {
		if mayBeOpen(ctx, err) {
			// The transaction must not keep its locks after ctx is done.
			ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
			defer cancel()
			t.Abort(ending)
		}
		return nil, Aged(err, time.Since(t.start))
	}
	reply, err := t.Commit(ctx, majority)
	if err != nil {
		return nil, Aged(&CommitError{Err: err}, time.Since(t.start))
	}
	return reply, nil
}

// mayBeOpen reports whether a transaction may still be open on the server after err and
// can be aborted: not if the server aborted it, and not if the server is lost.
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

// Patient is a Caller that retries commands. It is for commands outside of transactions
// that are idempotent, or have no effect if they fail.
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
			err = passingStatement(reply)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return reply, nil
}

// passingStatement returns the first write error of a reply that allows a retry: a server
// that is short of resources rejects single statements.
func passingStatement(reply bson.Raw) error {
	refused, err := WriteErrors(reply)
	for i := range refused {
		if DispositionOf(&refused[i].Error) == Again {
			return &refused[i].Error
		}
	}
	return err
}
