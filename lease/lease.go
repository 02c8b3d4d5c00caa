package lease

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
)

// TouchEvery is how often Touch must be called: a server records the use of sessions
// every 5 minutes, and forgets those unused for 30.
const TouchEvery = 5 * time.Minute

// OwnSession is the name of the session that changes the lease's document.
const OwnSession = "lease"

// Config identifies the document with the lease, and the process that acquires it.
type Config struct {
	// Target runs commands on the primary of the replica set that has the document. It
	// must not retry.
	Target mongo.Caller
	// Retry is for commands that fail with a transient error.
	Retry mongo.Retry
	// DB, Collection and ID identify the document.
	DB, Collection, ID string
	// Holder is unique to this process: Acquire recognizes its own terms by it.
	Holder string
	Claim
	// Keeper, if not nil, ends all writes of the lease's sessions, and Check, once its own
	// lease is over. With a TTL it must be the Keeper of this document, which renews the
	// lease.
	Keeper *Keeper
}

// Claim says how a lease is acquired, and for how long. The zero Claim takes it over from
// any process, and has no end.
type Claim struct {
	// TTL is how long the lease lasts after it was granted or renewed, by the store's
	// clock. Acquire then does not wait: it returns a *HeldError while another process
	// has the lease.
	TTL time.Duration
	// Why is the reason, for status and logs of other processes.
	Why string
	// TakeOver acquires the lease even if another process has it.
	TakeOver bool
	// AcceptOffer acquires the lease from a process that offers it.
	AcceptOffer bool
	// Above is the fencing token of a lock in another store that decides which process leads, 0 for none:
	// the term is above it, and above all terms before, max(both) + 1. So the tokens of that
	// store and the terms here are in one order, and late writes of the previous leader are
	// refused here, which the other store cannot do.
	Above int64
	// Unmoved is the record of a lease that the caller has seen unchanged for its whole TTL,
	// nil for none: it counts as ended unless it has changed, though by the store's clock it
	// has not. The clock may have gone back.
	Unmoved *Record
}

// Lease is the right to write under one term. Its methods are safe for concurrent
// use; each of its sessions is for one goroutine.
type Lease struct {
	cfg      Config
	target   mongo.Caller // retries according to Config.Retry
	instance string
	term     int64
	own      *mongo.Session
	sessions []bson.Raw // ids of all sessions, for Touch
	grant    bson.ObjectID
	// raiseBy is the time by which the write that acquires the lease has to be sent.
	raiseBy time.Time

	// locked is full while a goroutine uses own or spent.
	locked chan struct{}
	spent  bool
}

func newLease(cfg Config, found Record) *Lease {
	l := &Lease{
		cfg: cfg, target: mongo.Patient{Caller: mongo.Bounded{Caller: cfg.Target, Limit: AnswerWithin}, Retry: cfg.Retry},
		instance: found.Instance, locked: make(chan struct{}, 1),
	}
	if cfg.TTL > 0 {
		l.grant = bson.NewObjectID()
	}
	return l
}

// Term returns the term.
func (l *Lease) Term() int64 { return l.term }

// Instance identifies the document among all of the same name: those on other
// clusters, and those that were removed and created again.
func (l *Lease) Instance() string { return l.instance }

// Own returns the session that changes the lease's document. Only the goroutine that has
// called Lock may use it.
func (l *Lease) Own() *mongo.Session { return l.own }

// SessionID returns the id of a session of the lease with an id in a metadata database: of
// that name, for all terms of an instance.
func SessionID(db, id, instance, name string) bson.Raw {
	return mongo.SessionID(db, id, instance, name)
}

// Session returns the session of that name, at the first number of the term. It must be
// called once for each name, and not concurrently with other methods.
func (l *Lease) Session(name string) *mongo.Session {
	id := SessionID(l.cfg.DB, l.cfg.ID, l.instance, name)
	l.sessions = append(l.sessions, id)
	return mongo.NewSession(l.cfg.Keeper.guard(l.cfg.Target), id, l.term<<mongo.NumberBits)
}

// Touch keeps the server from forgetting the lease's sessions. It must be called every
// TouchEvery.
func (l *Lease) Touch(ctx context.Context) error {
	body := metadata.Document(func(dst []byte) []byte {
		i, dst := bsoncore.AppendArrayElementStart(dst, "refreshSessions")
		for j, id := range l.sessions {
			dst = bsoncore.AppendDocumentElement(dst, strconv.Itoa(j), id)
		}
		return metadata.CloseDoc(dst, i)
	})
	if _, err := l.target.Call(ctx, mongo.Command{DB: "admin", Body: body}); err != nil {
		return fmt.Errorf("refresh its %d sessions: %w", len(l.sessions), err)
	}
	return nil
}

// Lock blocks until no other goroutine uses the session Own, and reserves it until
// unlock is called. After Spend it returns ErrSpent, and the cause once ctx is done.
func (l *Lease) Lock(ctx context.Context) (unlock func(), err error) {
	if ctx.Err() != nil { // select would choose either
		return nil, context.Cause(ctx)
	}
	select {
	case l.locked <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if l.spent {
		<-l.locked
		return nil, ErrSpent
	}
	return func() { <-l.locked }, nil
}

// Spend makes each later Lock return ErrSpent, because the documents no longer match
// this lease's sessions. The caller must have it locked.
func (l *Lease) Spend() { l.spent = true }
