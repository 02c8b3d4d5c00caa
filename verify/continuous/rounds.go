package continuous

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/initialsync/pace"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/verify"
)

const (
	// Memory is the share of the process's memory that Rounds uses.
	Memory = verify.LeastMemory
	// defaultEvery is the default of Config.Every.
	defaultEvery = time.Minute
	// refresh is how old the list of collections may be.
	refresh = 5 * time.Minute
	// tryAfter and tryMost are the shortest and the longest pause after a round that has failed.
	tryAfter, tryMost = time.Second, time.Minute
)

// State is the state of the link in this process.
type State struct {
	// Leads reports whether this process leads, Steady whether the link is steady besides.
	Leads, Steady bool
}

// Config configures Rounds.
type Config struct {
	// Verify selects the collections to compare; Rounds sets its cuts, pace, memory and progress.
	Verify verify.Config
	// MetaDB is the metadata database of the target, Link the link.
	MetaDB, Link string
	// Maker makes the cuts.
	Maker CutMaker
	// State returns the state of the link.
	State func() State
	// Budget limits a round.
	Budget Budget
	// Every is the minimum time from the beginning of one round to that of the next, if nothing has
	// to be compared earlier. Default 1 minute.
	Every time.Duration
	// Watcher is told when there are results; it tracks which collections have to be compared.
	Watcher *Watcher
	// Observer receives events. May be nil.
	Observer event.Observer
}

// Rounds compares source and target over and over. Make one with New.
type Rounds struct {
	cfg Config

	mu  sync.Mutex // guards what follows
	why string
	// asked means that the next round is due at once.
	asked bool
}

// New returns a Rounds. It does no I/O.
func New(cfg Config) *Rounds {
	cfg.Every = cmp.Or(cfg.Every, defaultEvery)
	cfg.Verify.Memory, cfg.Verify.Workers, cfg.Verify.Refresh = Memory, 1, refresh
	cfg.Verify.Cuts = &cuts{maker: cfg.Maker, target: cfg.Verify.Target}
	found := cfg.Verify.Found
	cfg.Verify.Found = func(d *verify.Difference) error {
		if found != nil {
			return found(d)
		}
		return nil // The Watcher announces stored differences.
	}
	return &Rounds{cfg: cfg}
}

// Why returns why nothing is compared at present, empty if something is, or the next round is not due.
func (r *Rounds) Why() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.why
}

// Ask makes the next round due as soon as the one that runs has ended. The collections that are named,
// by their names at the source, count as not verified until then: that is stored as it returns nil, so
// that the next process compares them first.
func (r *Rounds) Ask(ctx context.Context, sourceNS []oplog.Namespace, why string) error {
	if err := r.cfg.Watcher.changed(ctx, why, sourceNS); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = true
	return nil
}

// wasAsked reports whether a round was asked for since it was called last.
func (r *Rounds) wasAsked() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.asked
	r.asked = false
	return was
}

func (r *Rounds) set(why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.why = why
}

// whyUnsteady is why a round waits, or none begins.
const whyUnsteady = "the link is not steady"

var (
	errNotLeading = errors.New("this process does not lead any more")
	errEnded      = errors.New("the round has ended")
)

// Run compares until ctx is done.
func (r *Rounds) Run(ctx context.Context) {
	told, pause := "", tryAfter
	for ctx.Err() == nil {
		if r.awaitSteady(ctx) != nil {
			return
		}
		r.set("")
		began := time.Now()
		err := r.round(ctx)
		r.cfg.Watcher.readSoon()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			r.set("")
			told, pause = "", tryAfter
			_ = r.await(ctx, began) // The loop ends if it does.
			continue
		case errors.Is(err, errNotLeading):
			continue
		}
		r.set(err.Error())
		if told != err.Error() {
			told = err.Error()
			r.cfg.Observer.Log(slog.LevelWarn, "the link cannot be verified at present", slog.String(keyCause, told))
		}
		_ = mongo.Pause(ctx, pause)
		pause = min(2*pause, tryMost)
	}
}

// awaitSteady waits until this process leads, and the link is steady.
func (r *Rounds) awaitSteady(ctx context.Context) error {
	for {
		switch st := r.cfg.State(); {
		case st.Steady:
			return nil
		case st.Leads:
			r.set(whyUnsteady)
		default:
			r.set(errNotLeading.Error())
		}
		if err := mongo.Pause(ctx, steadyPoll); err != nil {
			return err
		}
	}
}

// follow says while a round runs whether it waits, as it does while the link is not steady. It returns when the round has ended,
// or with an error when this process does not lead any more.
func (r *Rounds) follow(ctx context.Context) error {
	for {
		switch st := r.cfg.State(); {
		case !st.Leads:
			return errNotLeading
		case st.Steady:
			r.set("")
		default:
			r.set(whyUnsteady)
		}
		if mongo.Pause(ctx, steadyPoll) != nil {
			return nil //nolint:nilerr // The round has ended.
		}
	}
}

// await waits until the next round is due: after a quarter of the time, if a collection is not
// verified, and at once if it was asked for.
func (r *Rounds) await(ctx context.Context, began time.Time) error {
	for {
		passed := time.Since(began)
		if r.wasAsked() || passed >= r.cfg.Every || passed >= r.cfg.Every/4 && r.cfg.Watcher.wants() {
			return nil
		}
		if err := mongo.Pause(ctx, min(r.cfg.Every/8, time.Second)); err != nil {
			return err
		}
	}
}

// round continues the stored round, or runs another one, as long as this process leads.
func (r *Rounds) round(ctx context.Context) error {
	cfg := r.cfg.Verify
	inner, err := pace.New(pace.Config{BytesPerSecond: r.cfg.Budget.BytesPerSecond, Source: cfg.Source, Target: cfg.Target})
	if err != nil {
		return err
	}
	cfg.Pacer = newPacer(inner, r.cfg.Budget.Share, func() bool { return r.cfg.State().Steady })
	cfg.Progress = &verify.Progress{Target: cfg.Target, DB: r.cfg.MetaDB, Link: r.cfg.Link, Resume: true}
	v, err := verify.New(cfg)
	if err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(ctx)
	g, within := errgroup.WithContext(ctx)
	g.Go(func() error { _ = inner.Run(within); return nil }) // It ends when the round does.
	g.Go(func() error { return r.follow(within) })
	g.Go(func() error {
		defer end(errEnded)
		_, err := v.Run(within)
		return err
	})
	return g.Wait()
}
