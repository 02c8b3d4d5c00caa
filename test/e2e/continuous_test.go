package e2e

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/scope"
	"github.com/oplogrep/replicator/verify"
	"github.com/oplogrep/replicator/verify/continuous"
	"github.com/oplogrep/replicator/verify/standing"
)

// Environment variables of TestVerifyContinuous: the first seed, and how many.
const (
	envContinuousSeed  = "CONTINUOUS_SEED"
	envContinuousSeeds = "CONTINUOUS_SEEDS"
)

const (
	// roundsWanted is how many rounds have to be complete while members are killed and clients write.
	roundsWanted = 1
	// firstLife is for how long the first process lives, and lifeGrowth by how much longer the next one
	// does: so rounds become complete on any machine, and none of them within one life on most.
	firstLife, lifeGrowth = 300 * time.Millisecond, 1.3
)

// TestVerifyContinuous has a link verified by one process after the other, each of which is killed,
// while clients write, collections are made and dropped, and members of both sets and the mirror are
// killed: nothing differs, and rounds become complete. Then other clients write to the target: that, and
// nothing else, is found.
func TestVerifyContinuous(t *testing.T) {
	race.Skip(t, "its processes compare too little in their lives")
	first := number(t, envContinuousSeed, 1)
	for seed := first; seed < first+number(t, envContinuousSeeds, 1); seed++ {
		t.Run(strconv.FormatInt(seed, 10), func(t *testing.T) {
			t.Parallel()
			a := &audit{bank: openBank(t, seed)}
			(&relay{audit: a}).run(t)
		})
	}
}

// relay is one run of TestVerifyContinuous.
type relay struct {
	*audit
	mu     sync.Mutex // guards the rest
	newest checkpoint.Cut
	// quiet means that nothing may differ.
	quiet bool
	// planted is a time of the target by which differences were there, zero before that.
	planted bson.Timestamp
	found   map[string]bool
}

// Cut implements continuous.CutMaker. At its interval the link makes few of them: after a failover of the
// target it rests for long.
func (r *relay) Cut() {
	if p := r.mirror.p.Load(); p != nil {
		p.Cut()
	}
}

// NewestCut implements continuous.CutMaker.
func (r *relay) NewestCut() (checkpoint.Cut, string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.newest, ""
}

func (r *relay) made(c checkpoint.Cut) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.newest = c
}

func (r *relay) run(t *testing.T) {
	told := r.mirror.cfg.OnCut
	r.mirror.cfg.OnCut = func(c checkpoint.Cut) {
		r.made(c)
		if told != nil {
			told(c)
		}
	}
	r.quiet, r.found = true, map[string]bool{}
	r.mirror.begin()
	defer r.mirror.end(errEnd)
	r.mirror.await(r.limit, "the link exists", func(s monitor.Snapshot) bool { return s.Attempts > 0 })
	source, target := connect(t, r.source.uriFor(admin)), connect(t, r.target.uriFor(admin))
	r.fill(t, source)
	ctx, stop := context.WithCancelCause(t.Context())
	var work sync.WaitGroup
	defer func() {
		stop(errEnd)
		work.Wait()
	}()
	writing, enough := context.WithCancelCause(ctx)
	r.bursts(writing, &work, source, target,
		func(ctx context.Context, n int) { r.transfers(ctx, ctx, source, n) },
		func(ctx context.Context, n int) { r.churn(ctx, source, n) },
		func(ctx context.Context, n int) { r.define(ctx, source, n) },
	)
	work.Go(func() { r.processes(ctx, t, source, target) })
	r.hurt(t, func() (string, error) { return r.injury(t) })
	r.whole(t)
	r.await(t, target, "rounds are complete", func(s *standing.Standing) bool { return s.Round.Complete >= roundsWanted })
	enough(errEnd)
	r.await(t, target, "everything is verified", func(s *standing.Standing) bool { return s.AsOf != nil && s.Differences == 0 })

	r.mu.Lock()
	r.quiet = false
	r.mu.Unlock()
	r.plant(t, target)
	must.Succeed(t, client.ThroughElections(t.Context(), func() (err error) {
		r.planted, err = mongo.OperationTime(t.Context(), target)
		return err
	}))
	want := []string{ // as many as differencesPlanted
		"differs bank.big {\"$numberInt\":\"7\"}", "extra bank.big {\"$numberInt\":\"-9\"}", "extra bank.names \"nobody\"",
		"index bank.big planted", "missing bank.big {\"$numberInt\":\"8\"}",
	}
	r.await(t, target, "what was planted is found", func(s *standing.Standing) bool {
		return slices.Equal(foundIn(s), want) && s.Differences == differencesPlanted
	})
	// A difference is stored before it is told.
	r.await(t, target, "what was stored is told", func(*standing.Standing) bool { return r.told() >= len(want) })
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.found) != len(want) {
		t.Errorf("found besides: %v", r.found)
	}
}

// told returns how many differences were told.
func (r *relay) told() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.found)
}

// processes verifies the link with one process after the other.
func (r *relay) processes(ctx context.Context, t *testing.T, source, target mongo.Caller) {
	for life := float64(firstLife); ctx.Err() == nil; life *= lifeGrowth {
		one, kill := context.WithTimeout(ctx, time.Duration(life))
		w := continuous.NewWatcher(continuous.WatcherConfig{
			Store: standing.Store{Target: target, DB: "replicator", Link: "cuts"}, State: steadily,
		})
		rounds := continuous.New(continuous.Config{
			Verify: verify.Config{
				Source: source, Target: target, Scope: must.Get(scope.New(scope.Config{}))(t), RangeBytes: 50_000,
				Deferred: func(ctx context.Context) (verify.Overlay, error) {
					specs, err := ddl.ReadDeferred(ctx, mongo.Reads(target), "replicator", "cuts")
					return specs.Overlay, err
				},
				Found: func(d *verify.Difference) error { r.differs(t, d); return nil },
			},
			MetaDB: "replicator", Link: "cuts", Maker: r, State: steadily, Budget: continuous.Budget{Share: 1}, Every: 100 * time.Millisecond, Watcher: w,
		})
		var both sync.WaitGroup
		both.Go(func() { w.Run(one) })
		both.Go(func() { rounds.Run(one) })
		both.Wait()
		kill()
	}
}

func steadily() continuous.State { return continuous.State{Leads: true, Steady: true} }

func (r *relay) differs(t *testing.T, d *verify.Difference) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.quiet {
		t.Errorf("while clients write: %+v", *d)
	}
	r.found[fmt.Sprint(d.Kind, d.NS, d.Name, string(d.ID))] = true
}

// await waits until the standing satisfies is.
func (r *relay) await(t *testing.T, target mongo.Caller, what string, is func(*standing.Standing) bool) {
	t.Helper()
	var last standing.Standing
	for deadline := time.Now().Add(auditLimit); time.Now().Before(deadline); {
		s, err := standing.Read(t.Context(), target, "replicator", "cuts")
		if err == nil {
			r.honest(t, &s)
			if last = s; is(&s) {
				return
			}
		}
		if mongo.Pause(t.Context(), 20*time.Millisecond) != nil {
			break
		}
	}
	r.mirror.fatal("not so: %s: %+v", what, last)
}

// differencesPlanted is how many differences audit.plant makes.
const differencesPlanted = 5

// honest checks that the standing does not claim too much: the link is verified as of no later cut than there
// is, not before a round was complete, and not as of a time at which there were differences that are not
// known.
func (r *relay) honest(t *testing.T, s *standing.Standing) {
	t.Helper()
	if s.AsOf == nil {
		return
	}
	r.mu.Lock()
	newest := r.newest.Target
	r.mu.Unlock()
	switch {
	case s.Round.Complete == 0, oplog.CompareTimestamps(s.AsOf.Target, newest) > 0:
		t.Errorf("verified as of %v, and the newest cut is at %v: %+v", s.AsOf, newest, s)
	case r.planted.T > 0 && oplog.CompareTimestamps(s.AsOf.Target, r.planted) > 0 && s.Differences < differencesPlanted:
		t.Errorf("verified as of %v, and what was planted by %v is not known: %+v", s.AsOf, r.planted, s)
	}
}

// foundIn are the differences that are known.
func foundIn(s *standing.Standing) []string {
	var all []string
	for _, d := range s.Differing {
		for _, f := range d.Found {
			all = append(all, strings.Join([]string{f.Kind, string(d.NS), f.Name + f.ID}, " "))
		}
	}
	slices.Sort(all)
	return all
}
