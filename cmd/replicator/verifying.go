package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/memory"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/resync"
	"github.com/oplogrep/replicator/status"
	"github.com/oplogrep/replicator/verify"
	"github.com/oplogrep/replicator/verify/continuous"
	"github.com/oplogrep/replicator/verify/standing"
)

// verifyContinuous is the value of --verify that has a link verify itself.
const verifyContinuous = "continuous"

// keyNamespace is the key of the namespace in events of the stages.
const keyNamespace = "ns"

// verifies reports whether the link verifies itself.
func (f *runFlags) verifies() bool { return f.Verify == verifyContinuous }

// linkMemory returns the part of this much memory that is left for the link.
func (f *runFlags) linkMemory(total int64) int64 {
	if f.verifies() {
		return total - continuous.Memory
	}
	return total
}

// leastMemory is the minimum for the link and its verification.
func (f *runFlags) leastMemory() int64 {
	if f.verifies() {
		return memory.MinLink + continuous.Memory
	}
	return memory.MinLink
}

// budget returns how much verification may read.
func (f *runFlags) budget() (continuous.Budget, error) {
	b, err := continuous.ParseBudget(f.VerifyBudget, func(text string) (int64, error) {
		var n cli.Size
		err := n.UnmarshalText([]byte(text))
		return int64(n), err
	})
	switch why := tooSlow(b.BytesPerSecond); {
	case err != nil:
	case why != "":
		err = errors.New(why)
	case b.Share == 0 && b.BytesPerSecond == 0:
		err = fmt.Errorf("%q would verify nothing", f.VerifyBudget)
	}
	if err != nil {
		return b, fmt.Errorf("--verify-budget: %w", err)
	}
	return b, nil
}

// verifying records how far the link is verified, and verifies it.
type verifying struct {
	watcher *continuous.Watcher
	rounds  *continuous.Rounds // nil if the link does not verify itself
	budget  string
}

// verifyState returns the state of a link in this process.
func verifyState(s monitor.Snapshot) continuous.State {
	switch s.State {
	case monitor.Starting, monitor.InitialSync, monitor.CatchingUp, monitor.Steady:
		return continuous.State{Leads: true, Steady: s.State == monitor.Steady}
	case monitor.Standby, monitor.Stale, monitor.Failed, monitor.Stopped:
	}
	return continuous.State{}
}

// newVerifying returns the verifying of the link. The pipeline is made later.
func (c *runCommand) newVerifying(target *driver.Set, live func() monitor.Snapshot, observer event.Observer) *verifying {
	return &verifying{budget: c.VerifyBudget, watcher: continuous.NewWatcher(continuous.WatcherConfig{
		Store:    standing.Store{Target: target, DB: c.MetadataDB, Link: c.Link},
		State:    func() continuous.State { return verifyState(live()) },
		Foreign:  func() (map[oplog.Namespace]standing.Moment, standing.Moment) { return touched(live().Guard) },
		Observer: observer,
	})}
}

// touched are the collections with foreign writes, by their names at the source, and when the last write
// was to others that are not listed.
func touched(g *guard.Status) (listed map[oplog.Namespace]standing.Moment, others standing.Moment) {
	if g == nil {
		return nil, standing.Moment{}
	}
	return standing.Foreign(&g.State)
}

// changes passes to a Watcher the events after which a collection may differ from its comparison.
func changes(w *continuous.Watcher, scope verify.Scope) event.Observer {
	return func(e event.Event) {
		switch e := e.(type) {
		case resync.Began:
			w.Changed(e.NS, "it was copied again")
		case event.Line:
			if e.Message() != applier.Diverged {
				return
			}
			if ns, ok := scope.Source(oplog.Namespace(event.Attr(e, keyNamespace).String())); ok {
				w.Changed(ns, whyDiverged)
			}
		}
	}
}

const whyDiverged = standing.WhyDiverged

// begin starts the verification of the link, if configured.
func (v *verifying) begin(c *runCommand, p *plan, source, target *driver.Set, link *pipeline.Pipeline, observer event.Observer) {
	if !c.verifies() {
		return
	}
	v.rounds = continuous.New(continuous.Config{
		Verify: verify.Config{
			Source: source, Target: target, Scope: p.scope,
			Deferred: func(ctx context.Context) (verify.Overlay, error) {
				specs, err := ddl.ReadDeferred(ctx, mongo.Reads(target), c.MetadataDB, c.Link)
				return specs.Overlay, err
			},
		},
		MetaDB: c.MetadataDB, Link: c.Link, Maker: link, State: func() continuous.State { return verifyState(link.Snapshot()) },
		Budget: p.budget, Every: c.VerifyEvery, Watcher: v.watcher, Observer: observer,
	})
}

// repaired has differences forgotten that a repair has found gone.
func (c *runCommand) repaired(target *driver.Set) func(context.Context, oplog.Namespace, []bson.RawValue, *checkpoint.Cut) error {
	store := standing.Store{Target: target, DB: c.MetadataDB, Link: c.Link}
	return func(ctx context.Context, ns oplog.Namespace, ids []bson.RawValue, cut *checkpoint.Cut) error {
		texts := make([]string, len(ids))
		for i, id := range ids {
			texts[i] = verify.IDText(id)
		}
		return store.Repaired(ctx, ns, texts, cut.Target)
	}
}

// Ask implements control.Verification. The link is not run before begin.
func (v *verifying) Ask(ctx context.Context, sourceNS []oplog.Namespace, why string) error {
	return v.rounds.Ask(ctx, sourceNS, why) //nolint:wrapcheck // it says what it did
}

// verification is its part of the status.
func (v *verifying) verification() status.Verification {
	out := status.Verification{Standing: v.watcher.Known()}
	if v.rounds != nil {
		out.Continuous, out.Budget, out.Why = true, v.budget, v.rounds.Why()
	}
	return out
}

// ended marks the collection of a divergence that has ended the link.
func (v *verifying) ended(err error, scope verify.Scope) {
	if d, ok := errors.AsType[*applier.DivergenceError](err); ok {
		if ns, mirrored := scope.Source(d.NS); mirrored {
			v.watcher.Changed(ns, whyDiverged)
		}
	}
}

// run watches and verifies until ctx is done.
func (v *verifying) run(ctx context.Context, along *sync.WaitGroup) {
	along.Go(func() { v.watcher.Run(ctx) })
	if v.rounds != nil {
		along.Go(func() { v.rounds.Run(ctx) })
	}
}
