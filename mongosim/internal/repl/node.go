package repl

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/replay"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// Transport carries commands between members. cmd has $db. An error of the
// command is a reply (ok: 0), not an error; an error means that there was no
// reply. Call must return when ctx is done.
type Transport interface {
	// Call sends cmd to the member at a host and returns its reply. The caller keeps
	// the command, and may keep the reply.
	Call(ctx context.Context, to string, cmd bson.Raw) (bson.Raw, error)
}

// Config configures a Node.
type Config struct {
	// Host is this member's host:port as the set's configuration names it.
	Host string
	// SetName is the set's name.
	SetName string
	Store   *storage.Store
	Dialect opwrite.Dialect
	// Transport reaches the other members.
	Transport Transport
	// Seed decides the random parts of election timeouts and all identifiers. Name
	// distinguishes members with the same seed, and the runs of one member; default
	// Host.
	Seed int64
	Name string
	// Now is the member's own clock (it may be skewed); timers use real durations.
	// Default time.Now.
	Now func() time.Time
	// Log may be nil.
	Log *slog.Logger
	// HeartbeatInterval and ElectionTimeout override those of the set's
	// configuration, for tests that must be fast; 0 means those of the config. With
	// ElectionTimeout the server's other periods shrink in the same proportion.
	HeartbeatInterval, ElectionTimeout time.Duration
	// JournalDelay is how long after it was applied an optime becomes durable.
	JournalDelay time.Duration
	// NoopInterval makes a primary write a "periodic noop" when nothing else was
	// written for that long; 0, the default, never. The server's is 10 s.
	NoopInterval time.Duration
	// Clone makes the copy of an initial sync: the current contents of the store
	// of the member at the host, its oplog included (storage.Store.CloneAt).
	// Without it, a member whose store is empty stays in STARTUP2.
	Clone func(ctx context.Context, host string) (*storage.Store, error)
	// Played, if not nil, is for a set of one member that shows a log which another
	// set wrote: the store holds the log's first entry, at least, from the start,
	// Node.Play brings the others, and nothing else is ever logged. It says how they
	// are applied.
	Played *replay.Options
	// Unclean says that the member was not shut down in order: its rollback id is raised,
	// although nothing was rolled back.
	Unclean bool
	// Hooks notify the rest of the member. All may be nil.
	Hooks Hooks
}

// Hooks are called without any lock of the Node held, one at a time and in the
// order of their events, and must return soon.
type Hooks struct {
	// SteppedUp is called after this member became primary, drained its source's
	// log and wrote the "new primary" entry, and before it accepts writes; prepared
	// are the transactions that it takes over.
	SteppedUp func(term int64, prepared []opwrite.Prepared)
	// SteppedDown is called when this member stops being primary, before it applies
	// anything: open transactions must be aborted and waiting writers woken.
	// Prepared transactions survive, but their units must be released: the applier
	// prepares them again from the oplog.
	SteppedDown func()
	// RollingBack is called when this member enters the state ROLLBACK: the server
	// closes the connections of its clients then.
	RollingBack func()
	// RolledBack is called after a rollback or an initial sync has changed the data:
	// caches of sessions and cursors are invalid.
	RolledBack func()
}

// Node is one member. It is safe for concurrent use.
type Node struct{ impl }

// applier is the part of replay.Applier that a Node uses.
type applier interface {
	Apply(entries []bson.Raw) (last oplog.OpTime, err error)
	Prepared() []opwrite.Prepared
	Close() error
}

type impl struct {
	cfg     Config
	log     *slog.Logger
	process bson.ObjectID
	born    time.Time // for uptime

	newApplier func(*storage.Store) (applier, error)
	// apply belongs to the data loop. nil: make one when it is needed.
	apply applier

	// saving serialises the writes to the database local, and is taken before the
	// store; mu is never held while calling into the store, because the store calls
	// WriteTerm.
	saving sync.Mutex
	// playing lets one Play at a time, and guards player. It is taken before the
	// store and mu.
	playing sync.Mutex
	player  *replay.Applier

	// background is Run's goroutines.
	background sync.WaitGroup
	stepUps    chan stepUpRequest
	// ended is closed when Run has returned.
	ended chan struct{}

	mu sync.Mutex
	state
}

// New makes a Node in state STARTUP; the configuration of the set, term, vote and
// rollback id are read from the database local of the store if they are there.
func New(cfg Config) (*Node, error) {
	switch {
	case cfg.Host == "":
		return nil, errors.New("repl: make a member without a host")
	case cfg.SetName == "":
		return nil, fmt.Errorf("repl: make member %s without a set name", cfg.Host)
	case cfg.Store == nil:
		return nil, fmt.Errorf("repl: make member %s without a store", cfg.Host)
	case cfg.Transport == nil:
		return nil, fmt.Errorf("repl: make member %s without a transport", cfg.Host)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Name == "" {
		cfg.Name = cfg.Host
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	n := &Node{impl{
		cfg:        cfg,
		log:        cfg.Log.With(keyMember, cfg.Host),
		born:       time.Now(),
		newApplier: replayApplier(cfg.Dialect),
		stepUps:    make(chan stepUpRequest),
		ended:      make(chan struct{}),
	}}
	n.rng = rand.New(rand.NewPCG(uint64(cfg.Seed), hashHost(cfg.Name))) //nolint:gosec // elections need no secrets
	n.made = map[string]int{}
	n.process = n.newObjectID("process")
	n.self = -1
	n.primary = -1
	n.follow = oplog.MemberStartup
	n.denied = map[string]time.Time{}
	if err := n.restore(); err != nil {
		return nil, fmt.Errorf("repl: restore member %s: %w", cfg.Host, err)
	}
	return n, nil
}

// replayApplier is the applier of every Node outside of this package's tests.
func replayApplier(d opwrite.Dialect) func(*storage.Store) (applier, error) {
	return func(s *storage.Store) (applier, error) {
		return replay.New(s, replay.Options{TrimCapped: d.TrimsCapped()})
	}
}

// hashHost spreads members that have one seed.
func hashHost(host string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(host) {
		h = (h ^ uint64(host[i])) * 1099511628211
	}
	return h
}

// Run runs the member's goroutines and returns when ctx is done. It is called
// once.
func (n *Node) Run(ctx context.Context) error {
	n.background.Go(func() { n.heartbeatLoop(ctx) })
	n.background.Go(func() { n.electionLoop(ctx) })
	n.background.Go(func() { n.dataLoop(ctx) })
	n.background.Go(func() { n.reportLoop(ctx) })
	if n.cfg.JournalDelay > 0 {
		n.background.Go(func() { n.journalLoop(ctx) })
	}
	if n.cfg.NoopInterval > 0 {
		n.background.Go(func() { n.noopLoop(ctx) })
	}
	n.background.Wait()
	n.retire()
	return context.Cause(ctx)
}

// retire makes a Node that no longer runs refuse everything, as another one may
// use its store.
func (n *Node) retire() {
	n.mu.Lock()
	n.closed = true
	n.role, n.writable, n.attempting = follower, false, false
	n.termStart = oplog.OpTime{}
	n.epoch++
	n.downPending = false
	n.bump()
	n.mu.Unlock()
	close(n.ended)
	// Writes in progress end before Run returns.
	n.saving.Lock()
	defer n.saving.Unlock()
}

// Keys of log records.
const (
	keyMember = "member"
	keyTerm   = "term"
	keySource = "source"
	keyReason = "reason"
	keyError  = "error"
	keyOpTime = "optime"
	keyConfig = "config"
)

// signal wakes all goroutines that wait for something to change. The zero value is
// ready. It is guarded by Node.mu.
type signal struct{ ch chan struct{} }

// wait returns a channel that the next fire closes.
func (s *signal) wait() <-chan struct{} {
	if s.ch == nil {
		s.ch = make(chan struct{})
	}
	return s.ch
}

func (s *signal) fire() {
	if s.ch != nil {
		close(s.ch)
		s.ch = nil
	}
}

// sleep waits until ch is closed, d has passed or ctx is done. d of 0 or less
// means without limit.
func sleep(ctx context.Context, d time.Duration, ch <-chan struct{}) {
	var fires <-chan time.Time
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		fires = timer.C
	}
	select {
	case <-ctx.Done():
	case <-ch:
	case <-fires:
	}
}

// newObjectID and newUUID make identifiers that depend on the seed, the member's
// name, what they are for and how many were made for that: not on the order of
// events, as they would with a single source of random numbers.
func (n *Node) newObjectID(what string) bson.ObjectID {
	var id bson.ObjectID
	n.fill(id[:], what)
	return id
}

func (n *Node) newUUID(what string) oplog.UUID {
	var u oplog.UUID
	n.fill(u[:], what)
	u[6], u[8] = u[6]&0x0f|0x40, u[8]&0x3f|0x80
	return u
}

func (n *Node) fill(b []byte, what string) {
	n.mu.Lock()
	n.made[what]++
	count := n.made[what]
	n.mu.Unlock()
	source := hashHost(fmt.Sprintf("%s %s %d", n.cfg.Name, what, count))
	rng := rand.New(rand.NewPCG(uint64(n.cfg.Seed), source)) //nolint:gosec // identifiers need no secrets
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
}
