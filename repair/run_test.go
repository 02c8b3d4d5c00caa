package repair

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/jobs"
	"github.com/oplogrep/replicator/lease/locks"
	"github.com/oplogrep/replicator/lease/locks/lockstest"
	"github.com/oplogrep/replicator/request"
	"github.com/oplogrep/replicator/scope"
)

// away is a server that does not answer.
type away struct{}

// Call implements mongo.Caller.
func (away) Call(ctx context.Context, _ mongo.Command) (bson.Raw, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// cutless makes no cuts.
type cutless struct{}

// Cut implements Cuts.
func (cutless) Cut() {}

// NewestCut implements Cuts.
func (cutless) NewestCut() (checkpoint.Cut, string) { return checkpoint.Cut{}, "" }

func repairsOf(t *testing.T, store *lockstest.Memory) *Manager {
	t.Helper()
	l := jobs.New(jobs.Config{Job: "repair", Link: "l", Locks: locks.Config{Store: store}})
	return New(Config{
		Source: away{}, Target: away{}, Scope: must.Get(scope.New(scope.Config{}))(t), Cuts: cutless{}, Locks: l,
	})
}

var someDocument = request.RepairArgs{Namespace: "d.a", IDs: [][]byte{{14, 0, 0, 0, 16, 95, 105, 100, 0, 1, 0, 0, 0, 0}}}

// TestRepairEnds: the end of a leadership does not wait for a target that does not answer any more.
func TestRepairEnds(t *testing.T) {
	t.Parallel()
	for _, hangs := range []string{lockstest.Acquire, lockstest.Release, lockstest.RemovePing} {
		synctest.Test(t, func(t *testing.T) {
			store := lockstest.NewMemory()
			store.Fail(func(ctx context.Context, call string) (bool, error) {
				if call != hangs {
					return true, nil
				}
				<-ctx.Done()
				return false, context.Cause(ctx)
			})
			r := repairsOf(t, store)
			ctx, stop := context.WithCancelCause(t.Context())
			var running sync.WaitGroup
			running.Go(func() { r.Run(ctx) })
			synctest.Wait()
			r.Leads(1)
			r.Follow(1, "r", someDocument, "")
			time.Sleep(10 * time.Second)
			if hangs != lockstest.RemovePing && store.Calls(hangs) == 0 {
				t.Fatalf("%s is not called", hangs)
			}
			began := time.Now()
			stop(nil)
			running.Wait()
			if took := time.Since(began); took > 3*releaseWithin {
				t.Errorf("%s hangs: ends after %s", hangs, took)
			}
		})
	}
}

// TestRepairKilled: a lock that a killed leader has left, whose request was answered, is unlocked by the
// next leader, and that of a later one is not.
func TestRepairKilled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := lockstest.NewMemory()
		leave := func(name string, term int64) {
			t.Helper()
			l := jobs.New(jobs.Config{Job: "repair", Link: "l", Locks: locks.Config{Store: store}})
			l.Begin(t.Context())
			must.Get(l.Take(term, jobs.Want{Name: name}))(t)
			ended, end := context.WithCancelCause(t.Context())
			end(nil)
			l.End(ended) // without a word
		}
		leave("namespace/d.a", 3)
		leave("namespace/d.b", 9)
		r := repairsOf(t, store)
		ctx, stop := context.WithCancelCause(t.Context())
		var running sync.WaitGroup
		running.Go(func() { r.Run(ctx) })
		r.Leads(4)
		time.Sleep(time.Second)
		if store.Record("namespace/d.a").IsLocked() || !store.Record("namespace/d.b").IsLocked() {
			t.Errorf("%+v, %+v", store.Record("namespace/d.a"), store.Record("namespace/d.b"))
		}
		stop(nil)
		running.Wait()
	})
}
