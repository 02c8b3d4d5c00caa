package mongo

import (
	"context"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// answerWithin is how long nothing may pass before the reply to a command that a server answers in any case: a
// statement of a transaction, which it ends after transactionLifetimeLimitSeconds (60 by default), or a
// read of its primary. A slow line may take longer for a large command. The monitor of a server has a connection of its own: it does not notice that
// the network has lost another one, on which no reply ever arrives.
//
// A write that waits for a majority may wait for any time. It is given up once a majority has everything
// that the primary had after that time, and there is still no reply.
const answerWithin = 3 * time.Minute

// majorityEvery is how often the primary is asked how far a majority is, and majorityWithin how long
// its answer is waited for.
const majorityEvery, majorityWithin = 10 * time.Second, 10 * time.Second

// reads are the commands that only read, writes those that write documents.
var (
	reads  = []string{"find", "listCollections", "listIndexes", "listDatabases", "hello", "isMaster", "getParameter"}
	writes = []string{"insert", "update", "delete"}
)

// oplogNamespace is the collection without indexes: a search of it may read all of it before the first reply.
const oplogNamespace = "local.oplog.rs"

// isAnswered reports whether a server answers the command within answerWithin, or so long after the command's own time
// limit, or once a majority has its writes, if it can be reached. Other commands may wait for a lock, for
// an index build or for a search of the oplog, for any time. They end with their connection, which the driver's
// package limits: a network that has lost it acknowledges nothing.
func (f *flight) isAnswered() bool {
	isRead := slices.Contains(reads, f.command) && f.namespace != oplogNamespace
	return f.inTxn || f.host == "" && (f.limit > 0 || isRead || f.majority && slices.Contains(writes, f.command))
}

// bound returns a context for the command that is cancelled with a *SilentError if nothing of it or of the reply has
// passed for answerWithin, and the function to call with each reply to several commands.
func (f *flight) bound(ctx context.Context, server Caller) (_ context.Context, answered func(), cancel func()) {
	if !f.isAnswered() {
		return ctx, func() {}, func() {}
	}
	// Without a deadline: the driver would handle each command with one separately.
	bounded, end := context.WithCancelCause(ctx)
	s := &silence{patience: f.limit + answerWithin}
	s.timer = time.AfterFunc(s.patience, func() {
		silent := &SilentError{After: s.patience, Read: f.reads}
		if f.majority && f.limit == 0 {
			awaitMajority(bounded, server)
			silent.After = time.Since(f.began).Round(time.Second)
		}
		end(silent)
	})
	return WithPassing(bounded, s.heard), s.heard, func() {
		s.end()
		end(nil)
	}
}

// awaitMajority blocks until a majority of a primary's set has had what the primary has now for some seconds, or ctx
// is done.
func awaitMajority(ctx context.Context, primary Caller) {
	var want bson.Timestamp
	for ctx.Err() == nil {
		newest, committed, ok := lastWrite(ctx, primary)
		switch {
		case !ok:
		case want.IsZero():
			want = newest
		case !want.After(committed):
			_ = Pause(ctx, majorityEvery) // a reply that it sends now is on its way
			return
		}
		_ = Pause(ctx, majorityEvery)
	}
}

// lastWrite asks a primary for its newest entry, and for the newest one that a majority has.
func lastWrite(ctx context.Context, primary Caller) (newest, committed bson.Timestamp, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, majorityWithin)
	defer cancel()
	reply, err := Hello(ctx, primary)
	if err != nil {
		return newest, committed, false
	}
	e, _ := rawbson.Lookup(reply, "lastWrite")
	last, _ := e.Document()
	at := func(name string) (ts bson.Timestamp, ok bool) {
		e, _ := rawbson.Lookup(last, name)
		optime, _ := e.Document()
		e, _ = rawbson.Lookup(optime, "ts")
		return e.Timestamp()
	}
	newest, known := at("opTime")
	committed, ok = at("majorityOpTime")
	return newest, committed, ok && known
}
