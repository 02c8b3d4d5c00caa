package guard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
)

const (
	// saveEvery is how often the entry is stored up to which the target's oplog is examined.
	saveEvery = 10 * time.Second
	// tellEvery is how often a foreign write of one kind on one namespace is announced.
	tellEvery = 10 * time.Second
	// tellKinds limits how many kinds on namespaces are counted for that.
	tellKinds = 1000
)

// Target is the target's replica set.
type Target interface {
	mongo.Caller
	// Member returns a caller of one member.
	Member(host string) mongo.Caller
	// Hosts returns the known members.
	Hosts() []string
	// Direct reports whether there is only one host, which is addressed by that name.
	Direct() bool
}

// Config is the configuration of a Guard.
type Config struct {
	// Mode is Alarm or Stop.
	Mode Mode
	// Target is the link's target, DB its metadata database, Link its name.
	Target   Target
	DB, Link string
	// Scope is the whole link's.
	Scope Scope
	// Await is how long the target waits for new entries before it sends an empty reply.
	// Zero means the fetcher's default.
	Await time.Duration

	Observer event.Observer
}

// Guard watches the target's oplog for foreign writes while this process leads: [Guard.Begin] at
// the start of each term, then [Guard.Run]. Only Status may be called concurrently with others.
type Guard struct {
	cfg   Config
	store Store
	// last is the last term of this process in which Begin has been called; all terms from first
	// to it were, and no other process had one of them.
	first, last int64
	// told are the last announcements.
	told map[toldKey]*toldOf

	examining sync.Mutex // guards watch, saved and deletes, and the order of writes of the state
	watch     *Watch
	saved     time.Time
	link      *checkpoint.Link
	// deletes are the collections already examined for the present reply: see [Deletes].
	deletes map[named]bool

	mu  sync.Mutex // guards now
	now Status
}

type toldKey struct {
	kind string
	ns   oplog.Namespace
}

type toldOf struct {
	at   time.Time
	more int64
}

// New returns the Guard of a link. It does no I/O and starts nothing.
func New(cfg Config) *Guard {
	return &Guard{
		cfg: cfg, store: Store{Target: cfg.Target, DB: cfg.DB, Link: cfg.Link}, told: map[toldKey]*toldOf{},
		now: Status{Mode: cfg.Mode, Why: "this process does not lead"},
	}
}

// Status returns the foreign writes that are known. It may be called at any time.
func (g *Guard) Status() *Status {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now
	return &now
}

// set publishes the state.
func (g *Guard) set(change func(*Status)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change(&g.now)
}

// examined publishes the state. The caller has examining locked.
func (g *Guard) examined() {
	st := g.watch.State()
	g.set(func(now *Status) { now.State = st })
}

// blind records why the target's oplog is not read. A transient error is not logged as a warning:
// the status shows it while it lasts.
func (g *Guard) blind(why error) {
	before := g.Status()
	g.set(func(now *Status) { now.Watching, now.Why = false, why.Error() })
	level := slog.LevelWarn
	if servererr.Classify(why).Passes() {
		level = slog.LevelInfo
	}
	if before.Watching || before.Why != why.Error() {
		g.cfg.Observer.Log(level, "the target is not watched for foreign writes", slog.String(keyWhy, why.Error()))
	}
}

// Run watches the target until ctx is done.
func (g *Guard) Run(ctx context.Context) error {
	if g.watch == nil {
		<-ctx.Done()
		return nil
	}
	g.set(func(now *Status) { now.Why = "its oplog is being opened" })
	defer g.set(func(now *Status) { now.Watching, now.Why = false, "no attempt runs" })
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() error { return g.tailLoop(ctx) })
	both.Go(func() error { return g.clearLoop(ctx) })
	return both.Wait()
}

// clearLoop takes what an operator clears.
func (g *Guard) clearLoop(ctx context.Context) error {
	tick := time.NewTicker(saveEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		upTo, err := g.store.Cleared(ctx)
		if err != nil {
			continue // The next one may succeed.
		}
		g.examining.Lock()
		if g.watch.Clear(upTo) {
			_ = g.save(ctx, true) // It is read again at the next start.
		}
		g.examining.Unlock()
	}
}

func (g *Guard) at() oplog.OpTime {
	g.examining.Lock()
	defer g.examining.Unlock()
	return g.watch.State().At
}

// gap continues with the newest entry.
func (g *Guard) gap(ctx context.Context, why error) error {
	g.examining.Lock()
	defer g.examining.Unlock()
	st := g.watch.State()
	from := st.Wall
	if err := g.startAtNewest(ctx, &st); err != nil {
		return err
	}
	gap := Gap{From: time.UnixMilli(from).UTC(), To: time.UnixMilli(st.Wall).UTC(), Why: why.Error()}
	st.AddGap(gap)
	g.watch.Reset(st)
	g.cfg.Observer.Log(slog.LevelWarn, "a part of the target's oplog was not examined for foreign writes",
		slog.Time(keyFrom, gap.From), slog.Time(keyUntil, gap.To), slog.String(keyWhy, gap.Why))
	return g.save(ctx, true)
}

// see examines the entries of a reply.
func (g *Guard) see(ctx context.Context, r oplog.Reply) error {
	g.examining.Lock()
	defer g.examining.Unlock()
	g.deletes = map[named]bool{}
	var found, list []Write
	var seeing, foreign, settled error
	for i := 0; i < len(r.Entries) && seeing == nil; i++ {
		st := &g.watch.state
		open := len(st.Touched)
		list, seeing = g.watch.See(ctx, &r.Entries[i])
		found = append(found, list...)
		switch {
		case g.cfg.Mode != Stop:
		case len(list) > 0:
			foreign = st.Err() // nil after a temporary collection that is gone
		case len(st.Touched) < open:
			settled = foreign // by what the link does after it, as to drop the collection
		}
	}
	foreign = cmp.Or(foreign, settled)
	g.examined()
	if len(found) == 0 && (seeing != nil || time.Since(g.saved) < saveEvery) {
		return seeing
	}
	err := errors.Join(seeing, g.save(ctx, len(found) > 0))
	for i := range found {
		g.tell(&found[i])
	}
	if foreign != nil && !errors.Is(err, lease.ErrFenced) {
		return foreign // Were the state not stored, the next leader finds them again.
	}
	return err
}

// save stores the state. The caller has examining locked.
func (g *Guard) save(ctx context.Context, majority bool) error {
	g.examined()
	st := g.watch.State()
	g.saved = time.Now()
	err := mongo.Retry{Again: func(err error) bool { return servererr.Classify(err).Passes() }}.Do(ctx, func() error {
		return g.store.Write(ctx, &st, majority)
	})
	if errors.Is(err, ErrSuperseded) {
		return fmt.Errorf("%w: %w", lease.ErrFenced, err)
	}
	return err
}

// tell announces a foreign write, or counts it if one like it was announced shortly before.
func (g *Guard) tell(w *Write) {
	k, now := toldKey{w.Kind, w.NS}, time.Now()
	before := g.told[k]
	if before != nil && now.Sub(before.at) < tellEvery {
		before.more++
		return
	}
	if len(g.told) >= tellKinds {
		clear(g.told)
	}
	more := int64(0)
	if before != nil {
		more = before.more
	}
	g.told[k] = &toldOf{at: now}
	g.cfg.Observer.Tell(Found{Write: *w, More: more})
}
