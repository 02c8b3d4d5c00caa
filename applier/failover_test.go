package applier

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/mongosim"
)

// A target that steps down during an attempt ends it; the next attempt continues from the
// lanes' positions.
func TestStepDown(t *testing.T) {
	for _, writers := range []int{1, 4, 16} {
		t.Run(strconv.Itoa(writers), func(t *testing.T) {
			r := newRig(t, writers, mongosim.Options{Members: 3})
			r.target.run(t, "db", bson.D{{Key: "create", Value: "a"}, {Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}})
			l := newLog(t)
			var want []bson.D
			for round := range 20 {
				for i := range 30 {
					if round == 0 {
						l.add(insertOp("db.a", doc(i, 0)))
						want = append(want, doc(i, 19))
					} else {
						l.add(setOp("db.a", i, round))
					}
				}
				l.add(l.transactionOp(insertOp("db.a", doc(fmt.Sprint(round, "x"), 1)), insertOp("db.a", doc(fmt.Sprint(round, "y"), 1))))
				want = append(want, doc(fmt.Sprint(round, "x"), 1), doc(fmt.Sprint(round, "y"), 1))
				l.end()
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			attempts := 0
			for ; ; attempts++ {
				a, err := r.begin(ctx, func(c *Config) { c.FlushDocs, c.CoalesceWindow = 10, 10 })
				if err != nil {
					if attempts > 50 || errors.Is(err, lease.ErrFenced) {
						t.Fatal(err)
					}
					continue // a primary that is about to step down
				}
				if attempts == 0 {
					r.target.stepDownAt(ctx, t, 5)
				}
				err = a.run(ctx, l.after(a.link.State().Applied), 1)
				r.target.intercept(nil)
				if err == nil {
					break
				}
				if errors.Is(err, lease.ErrFenced) || isStop(err) || ctx.Err() != nil {
					t.Fatal(err)
				}
				t.Logf("attempt %d: %v", attempts, err)
			}
			if attempts == 0 {
				t.Error("the step-down was not noticed")
			}
			wantDocs(t, r.target, "db.a", want...)
		})
	}
}

// stepDownAt makes the target's primary step down at the nth commit of a flush: in the
// middle of a transaction, so that it must be detected. The commits of checkpoints do not
// count, as those are tried again.
func (g *simTarget) stepDownAt(ctx context.Context, t *testing.T, n int) {
	t.Helper()
	var mu sync.Mutex
	flushes := map[string]bool{} // sessions that have written data
	g.intercept(func(cmd mongo.Command) (error, bool) {
		session := cmd.Body.Lookup("lsid", "id").String()
		mu.Lock()
		defer mu.Unlock()
		switch {
		case cmd.DB == "db":
			flushes[session] = true
		case simcaller.Name(cmd) == "commitTransaction" && flushes[session]:
			if n--; n == 0 {
				if err := g.set.Do(ctx, mongosim.Action{Verb: "stepdown"}); err != nil {
					t.Error(err)
				}
			}
		}
		return nil, false
	})
}

// A target that fails over loses writes that only its old primary had acknowledged:
// during an attempt the lanes detect that, and in either case the next attempt applies
// the lost operations again, and no others.
func TestLostFlushes(t *testing.T) {
	for _, drained := range []bool{true, false} {
		t.Run(fmt.Sprintf("drained=%t", drained), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			// The attempt ends before the primary that is cut off steps down.
			r := newRig(t, 4, mongosim.Options{Members: 3, ElectionTimeout: 5 * time.Second})
			r.target.run(t, "db", bson.D{{Key: "create", Value: "a"}, {Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}})
			l := newLog(t)
			var want []bson.D
			for i := range 100 {
				l.add(insertOp("db.a", doc(i, 0)))
				want = append(want, doc(i, 1))
			}
			l.end()
			one, _ := manyInserts(200, 220)
			l.add(l.transactionOp(one...))
			l.end()
			for i := range 100 {
				l.add(setOp("db.a", i, 1))
			}
			l.end()
			for i := 200; i < 220; i++ {
				l.add(setOp("db.a", i, 2))
				want = append(want, doc(i, 2))
			}
			a := must.Get(r.begin(ctx, nil))(t)
			old := must.Get(r.target.set.AwaitPrimary(ctx))(t)
			r.target.direct(old)
			r.target.set.Isolate(old.ID())
			var n atomic.Int64
			if !drained {
				r.target.intercept(func(cmd mongo.Command) (error, bool) {
					if simcaller.Name(cmd) == "commitTransaction" && n.Add(1) == 6 {
						failOver(ctx, t, r.target, old)
					}
					return nil, false
				})
			}
			err := a.run(ctx, l.batches(), 0)
			if (err == nil) != drained {
				t.Fatalf("the first attempt ended with %v", err)
			}
			r.target.intercept(nil)
			if drained {
				failOver(ctx, t, r.target, old)
			}
			b := must.Get(r.begin(ctx, nil))(t)
			must.Succeed(t, b.run(ctx, l.after(b.link.State().Applied), 0))
			if s := b.Stats(); s.Ops != 240 {
				t.Errorf("%d operations were done again, want all 240", s.Ops)
			}
			wantDocs(t, r.target, "db.a", want...)
		})
	}
}

// failOver waits until the other members have a new primary, and reconnects the old one.
func failOver(ctx context.Context, t *testing.T, target *simTarget, old *mongosim.Member) {
	t.Helper()
	for {
		now, err := target.set.AwaitPrimary(ctx)
		if err != nil {
			t.Error(err)
			return
		}
		if now.ID() != old.ID() {
			break
		}
		if mongo.Pause(ctx, 10*time.Millisecond) != nil {
			t.Error("no other primary")
			return
		}
	}
	target.set.HealAll()
	target.direct(nil)
}
