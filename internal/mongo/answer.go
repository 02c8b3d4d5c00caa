package mongo

import (
	"context"
	"slices"
	"time"
)

// AnswerWithin is how long to wait for the reply to a command that a server answers in any case: a
// statement of a transaction, which it ends after transactionLifetimeLimitSeconds (60 by default), or a
// read of its primary. The monitor of a server has a connection of its own: it does not notice that
// the network has lost another one, on which no reply ever arrives.
const AnswerWithin = 3 * time.Minute

// reads are the commands that only read.
var reads = []string{"find", "listCollections", "listIndexes", "listDatabases"}

// isAnswered reports whether a server answers the command within AnswerWithin, if it can be
// reached. It may wait for a majority of its set, and for a lock that a command of the catalog
// needs, for any time.
func (f *flight) isAnswered() bool {
	return f.inTxn && !f.majority || f.host == "" && slices.Contains(reads, f.command)
}

// bound returns a context for the command that is cancelled with a *SilentError if no reply arrives
// for AnswerWithin, and the function to call with each reply to several commands.
func (f *flight) bound(ctx context.Context) (_ context.Context, answered func(), cancel func()) {
	if !f.isAnswered() {
		return ctx, func() {}, func() {}
	}
	// Without a deadline: the driver would handle each command with one separately.
	bounded, end := context.WithCancelCause(ctx)
	timer := time.AfterFunc(AnswerWithin, func() { end(&SilentError{After: AnswerWithin}) })
	return bounded, func() { timer.Reset(AnswerWithin) }, func() {
		timer.Stop()
		end(nil)
	}
}
