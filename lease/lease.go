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

// ownSession is the name of the session that changes the lease's document.
const ownSession = "lease"

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

	// locked is full while a goroutine uses own or spent.
	locked chan struct{}
	spent  bool
}

func newLease(cfg Config, found Record) *Lease {
	return &Lease{
		cfg: cfg, target: mongo.Patient{Caller: cfg.Target, Retry: cfg.Retry},
		instance: found.Instance, locked: make(chan struct{}, 1),
	}
}

// Term returns the term.
func (l *Lease) Term() int64 { return l.term }

// Instance identifies the document among all of the same name: those on other
// clusters, and those that were removed and created again.
func (l *Lease) Instance() string { return l.instance }

// Own returns the session that changes the lease's document. Only the goroutine that has
// called Lock may use it.
func (l *Lease) Own() *mongo.Session { return l.own }

// Session returns the session of that name, at the first number of the term. It must be
// called once for each name, and not concurrently with other methods.
func (l *Lease) Session(name string) *mongo.Session {
	id := mongo.SessionID(l.cfg.DB, l.cfg.ID, l.instance, name)
	l.sessions = append(l.sessions, id)
	return mongo.NewSession(l.cfg.Target, id, l.term<<mongo.NumberBits)
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
// unlock is called. After Spend it returns ErrSpent.
func (l *Lease) Lock(ctx context.Context) (unlock func(), err error) {
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
