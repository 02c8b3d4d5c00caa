package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
)

const (
	// guardSave is how often the entry is stored up to which the target's oplog is examined.
	guardSave = 10 * time.Second
	// guardTell is how often a foreign write of one kind on one namespace is announced.
	guardTell = 10 * time.Second
	// guardKinds limits how many kinds on namespaces are counted for that.
	guardKinds = 1000
)

// guardian watches the target's oplog for foreign writes while this process leads. A nil one
// does nothing.
type guardian struct {
	p     *Pipeline
	store guard.Store
	// last is the last term of this process in which begin has been called; all terms from first
	// to it were, and no other process had one of them.
	first, last int64
	// told are the last announcements.
	told map[toldKey]*toldOf

	examining sync.Mutex // guards watch, saved and deletes, and the order of writes of the state
	watch     *guard.Watch
	saved     time.Time
	link      *checkpoint.Link
	// deletes are the collections that were looked at for the present reply: see guard.Deletes.
	deletes map[oplog.Namespace]bool

	mu  sync.Mutex // guards now
	now guard.Status
}

type toldKey struct {
	kind string
	ns   oplog.Namespace
}

type toldOf struct {
	at   time.Time
	more int64
}

// newGuard makes the guardian, and announces the commands that are sent to the target. A part has
// those of the whole link.
func (p *Pipeline) newGuard() {
	if p.cfg.part != nil || p.cfg.Guard == guard.Off {
		return
	}
	p.target = announce(p.target, p.cfg.MetaDB, p.cfg.Link)
	p.guard = &guardian{
		p: p, store: guard.Store{Target: p.target, DB: p.cfg.MetaDB, Link: p.cfg.Link}, told: map[toldKey]*toldOf{},
		now: guard.Status{Mode: p.cfg.Guard, Why: "this process does not lead"},
	}
}

// status returns what is known, nil of a nil guardian.
func (g *guardian) status() *guard.Status {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now
	return &now
}

// foreign returns what is known of foreign writes, nil for a part.
func (p *Pipeline) foreign() *guard.Status {
	if p.guard == nil && p.cfg.part == nil {
		return &guard.Status{Mode: guard.Off}
	}
	return p.guard.status()
}

// set publishes what is known.
func (g *guardian) set(change func(*guard.Status)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change(&g.now)
}

// examined publishes the state. The caller has examining locked.
func (g *guardian) examined() {
	st := g.watch.State()
	g.set(func(now *guard.Status) { now.State, now.At = st, time.Now() })
}

// blind says why the target's oplog is not read. An error that passes is no warning: the status
// shows it while it lasts.
func (g *guardian) blind(why error) {
	before := g.status()
	g.set(func(now *guard.Status) { now.Watching, now.Why = false, why.Error() })
	level := slog.LevelWarn
	if servererr.Classify(why).Passes() {
		level = slog.LevelInfo
	}
	if before.Watching || before.Why != why.Error() {
		g.p.cfg.Observer.Log(level, "the target is not watched for foreign writes", slog.String(keyWhy, why.Error()))
	}
}

// begin reads what is known, before anything is written in a term. It returns a
// *guard.ForeignError if the link must not go on.
func (g *guardian) begin(ctx context.Context, link *checkpoint.Link) error {
	if g == nil {
		return nil
	}
	if link.Term() != g.last+1 {
		g.first = link.Term()
	}
	g.last, g.link = link.Term(), link
	g.examining.Lock()
	defer g.examining.Unlock()
	err := g.load(ctx)
	if err == nil {
		err = g.check(ctx)
	}
	switch {
	case err == nil && g.p.cfg.Guard == guard.Stop:
		return g.catchUp(ctx)
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case g.p.cfg.Guard == guard.Stop, errors.Is(err, lease.ErrFenced), Classify(err).Action == Retry:
		return fmt.Errorf("watch the target for foreign writes: %w", err)
	}
	// Nobody may lose a link for an alarm that cannot be given.
	g.watch = nil
	if servererr.Classify(err) == servererr.Auth {
		err = fmt.Errorf("the user of the target may not read local.oplog.rs: %w", err)
	}
	g.blind(err)
	return nil
}

// catchUp examines what was written while no process was leading, before anything follows it.
// The caller has examining locked.
func (g *guardian) catchUp(ctx context.Context) error {
	newest, err := replset.NewestEntry(ctx, g.p.target, replset.Majority)
	if err != nil {
		return err
	}
	g.examining.Unlock()
	err = g.tail(ctx, newest.OpTime)
	g.examining.Lock()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case as[*guard.ForeignError](err):
		return err
	case err != nil && !errors.Is(err, errExamined):
		g.blind(err) // The loop tries again.
	}
	return nil
}

// errExamined ends reading once the oplog is examined as far as it is to be.
var errExamined = errors.New("examined")

// check stores the state in the link's term, and returns the error of one with which it must not
// go on. The caller has examining locked.
func (g *guardian) check(ctx context.Context) error {
	if err := g.save(ctx, true); err != nil {
		return err
	}
	if st := g.watch.State(); g.p.cfg.Guard == guard.Stop {
		return st.Err()
	}
	return nil
}

// load makes the Watch of a term.
func (g *guardian) load(ctx context.Context) error {
	stored, err := g.store.Read(ctx)
	if _, damaged := errors.AsType[*metadata.DamagedError](err); damaged {
		g.p.cfg.Observer.Log(slog.LevelWarn, "what was known of foreign writes to the target is lost", slog.String(keyWhy, err.Error()))
		stored, err = nil, nil
	}
	if err != nil {
		return err
	}
	var st guard.State
	switch {
	case stored == nil || stored.At.IsNull():
		err = g.anew(ctx, &st)
	default:
		st = *stored
		if st.Term < g.first-1 { // A process that announced nothing may have led.
			err = g.unannounced(ctx, &st)
		}
	}
	if err != nil {
		return err
	}
	if err := g.store.Forget(ctx, time.Now()); err != nil {
		return err
	}
	cleared, err := g.store.Cleared(ctx)
	if err != nil {
		return err
	}
	st.Clear(cleared)
	left := g.link.Gaps().LeftOut
	st.Copies(func(ns oplog.Namespace) bool {
		source, _ := g.p.cfg.Scope.Source(ns)
		for i := range left {
			if left[i].NS == source {
				return true
			}
		}
		return false
	})
	st.Term = g.link.Term()
	cfg := g.link.Config()
	g.watch = guard.NewWatch(guard.Config{
		Link: cfg.Link, Instance: g.link.Instance(), MetaDB: cfg.DB, Scope: g.p.cfg.Scope,
		Sessions: func(link, instance string) []bson.Raw {
			return checkpoint.Sessions(cfg.DB, link, instance, checkpoint.MaxWriters)
		},
		Deletes: g.targetDeletes,
	}, st)
	return nil
}

// targetDeletes is guard.Deletes, once for each collection in a reply. The caller has examining
// locked.
func (g *guardian) targetDeletes(ctx context.Context, ns oplog.Namespace) (bool, error) {
	if does, known := g.deletes[ns]; known {
		return does, nil
	}
	does, err := guard.Deletes(ctx, g.p.target, ns)
	if err == nil {
		g.deletes[ns] = does
	}
	return does, err
}

// anew sets a state to the newest entry of the target.
func (g *guardian) anew(ctx context.Context, st *guard.State) error {
	from, err := replset.NewestEntry(ctx, g.p.target, replset.Majority)
	if err != nil {
		return err
	}
	st.At, st.Wall = from.OpTime, from.Wall
	return g.unannounced(ctx, st)
}

// unannounced makes a state judge commands from now on only.
func (g *guardian) unannounced(ctx context.Context, st *guard.State) error {
	open, parts, err := g.store.Announced(ctx)
	if err != nil {
		return err
	}
	// What was announced before this entry is in open, what is announced later follows in the oplog.
	newest, err := replset.NewestEntry(ctx, g.p.target, replset.Local)
	if err != nil {
		return err
	}
	st.Open, st.CommandsFrom = open, newest.OpTime
	for _, p := range parts {
		st.AddPart(p)
	}
	return nil
}

// loop watches the target until ctx is done.
func (g *guardian) loop(ctx context.Context) error {
	if g.watch == nil {
		<-ctx.Done()
		return nil
	}
	g.set(func(now *guard.Status) { now.Why = "its oplog is being opened" })
	defer g.set(func(now *guard.Status) { now.Watching, now.Why = false, "no attempt runs" })
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() error { return g.tailLoop(ctx) })
	both.Go(func() error { return g.clearLoop(ctx) })
	return both.Wait()
}

// clearLoop takes what an operator clears.
func (g *guardian) clearLoop(ctx context.Context) error {
	tick := time.NewTicker(guardSave)
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

func (g *guardian) at() oplog.OpTime {
	g.examining.Lock()
	defer g.examining.Unlock()
	return g.watch.State().At
}

// gap continues with the newest entry.
func (g *guardian) gap(ctx context.Context, why error) error {
	g.examining.Lock()
	defer g.examining.Unlock()
	st := g.watch.State()
	from := st.Wall
	if err := g.anew(ctx, &st); err != nil {
		return err
	}
	gap := guard.Gap{From: time.UnixMilli(from).UTC(), To: time.UnixMilli(st.Wall).UTC(), Why: why.Error()}
	st.AddGap(gap)
	g.watch.Reset(st)
	g.p.cfg.Observer.Log(slog.LevelWarn, "a part of the target's oplog was not examined for foreign writes",
		slog.Time(keyFrom, gap.From), slog.Time(keyUntil, gap.To), slog.String(keyWhy, gap.Why))
	return g.save(ctx, true)
}

// see examines the entries of a reply.
func (g *guardian) see(ctx context.Context, r oplog.Reply) error {
	g.examining.Lock()
	defer g.examining.Unlock()
	g.deletes = map[oplog.Namespace]bool{}
	var found, list []guard.Write
	var seeing error
	for i := 0; i < len(r.Entries) && seeing == nil; i++ {
		list, seeing = g.watch.See(ctx, &r.Entries[i])
		found = append(found, list...)
	}
	g.examined()
	if len(found) == 0 && (seeing != nil || time.Since(g.saved) < guardSave) {
		return seeing
	}
	err := errors.Join(seeing, g.save(ctx, len(found) > 0))
	for i := range found {
		g.tell(&found[i])
	}
	if st := g.watch.State(); len(found) > 0 && g.p.cfg.Guard == guard.Stop {
		return st.Err() // Were the state not stored, the next leader finds them again.
	}
	return err
}

// save stores the state. The caller has examining locked.
func (g *guardian) save(ctx context.Context, majority bool) error {
	g.examined()
	st := g.watch.State()
	g.saved = time.Now()
	err := mongo.Retry{Again: func(err error) bool { return servererr.Classify(err).Passes() }}.Do(ctx, func() error {
		return g.store.Write(ctx, &st, majority)
	})
	if errors.Is(err, guard.ErrSuperseded) {
		return fmt.Errorf("%w: %w", lease.ErrFenced, err)
	}
	return err
}

// tell announces a foreign write, or counts it if one like it was announced shortly before.
func (g *guardian) tell(w *guard.Write) {
	k, now := toldKey{w.Kind, w.NS}, time.Now()
	before := g.told[k]
	if before != nil && now.Sub(before.at) < guardTell {
		before.more++
		return
	}
	if len(g.told) >= guardKinds {
		clear(g.told)
	}
	more := int64(0)
	if before != nil {
		more = before.more
	}
	g.told[k] = &toldOf{at: now}
	g.p.cfg.Observer.Tell(guard.Found{Write: *w, More: more})
}
