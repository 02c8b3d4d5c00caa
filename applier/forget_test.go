package applier

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/mongosim"
)

// TestPropertyForgetfulTarget is TestProperty with a target whose primary is cut off at
// any command, accepts more of them, and is then replaced by one without their effects.
func TestPropertyForgetfulTarget(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for elections: not with -short")
	}
	outer := t
	target := &simTarget{set: mongosim.StartTest(t, mongosim.Options{Members: 3})}
	links := 0
	rapid.Check(t, func(t *rapid.T) {
		if links++; links > 6 {
			return
		}
		target.intercept(nil)
		target.direct(nil)
		link := fmt.Sprintf("link%d", links)
		r := rigOn(t, target, link, rapid.SampledFrom([]int{1, 4}).Draw(t, "writers"))
		r.db = "db" + link
		all := bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}
		for _, c := range modelled {
			target.run(t, r.db, bson.D{{Key: "create", Value: c}, all})
		}
		target.run(t, r.db, bson.D{{Key: "create", Value: "cap"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}, all})
		m := drawModel(t, r.db, 1000, false, false, true)
		limit := time.Now().Add(3 * time.Minute)
		for attempts := 0; ; attempts++ {
			ctx, stop := context.WithTimeout(context.Background(), time.Minute)
			a, err := r.begin(ctx, func(c *Config) {
				c.Relaxed = rapid.Bool().Draw(t, "relaxed")
				c.FlushDocs = rapid.IntRange(1, 4).Draw(t, "docs")
				c.CoalesceWindow = rapid.IntRange(1, 8).Draw(t, "window")
				c.Plan.MinMass = rapid.SampledFrom([]int{2, 3}).Draw(t, "mass")
				c.ShareOps, c.ShareRest = rapid.SampledFrom([]int{3, 10}).Draw(t, "shares"), 1
			})
			if err != nil {
				stop()
				if attempts > 40 || time.Now().After(limit) || errors.Is(err, lease.ErrFenced) {
					t.Fatal(err)
				}
				_ = mongo.Pause(context.Background(), 20*time.Millisecond)
				continue
			}
			var over sync.WaitGroup
			if attempts == 0 {
				forget(ctx, outer, t, target, &over)
			}
			state := a.link.State()
			err = a.run(ctx, m.after(state.Applied), rapid.IntRange(0, 3).Draw(t, "advance"))
			over.Wait()
			stop()
			target.intercept(nil)
			target.direct(nil)
			if err == nil {
				// Acknowledged writes may still be lost: only a checkpoint makes sure
				// that they are not.
				ctx, stop := context.WithTimeout(context.Background(), time.Minute)
				for _, last := range a.seen[max(0, len(a.seen)-1):] {
					err = a.link.Advance(ctx, last.Progress, last.Lanes, checkpoint.Source{SetName: "rs0", RBID: 1})
				}
				stop()
				if err == nil {
					m.check(t, target, m.optime(), true)
					return
				}
			}
			t.Logf("attempt %d: %v", attempts, err)
			if time.Now().After(limit) || errors.Is(err, lease.ErrFenced) || isStop(err) {
				t.Fatalf("attempt %d: %v", attempts, err)
			}
		}
	})
}

// forget isolates the target's primary at a command and, a little later, replaces it. over
// ends with that.
func forget(ctx context.Context, outer *testing.T, t *rapid.T, target *simTarget, over *sync.WaitGroup) {
	old, err := target.set.AwaitPrimary(ctx)
	must.Succeed(t, err)
	target.direct(old)
	cut, more := rapid.IntRange(1, 40).Draw(t, "cut"), rapid.IntRange(0, 100).Draw(t, "more")
	var n atomic.Int64
	target.intercept(func(mongo.Command) (error, bool) {
		if n.Add(1) == int64(cut) {
			target.set.Isolate(old.ID())
			over.Go(func() {
				_ = mongo.Pause(ctx, time.Duration(more)*time.Millisecond+1)
				failOver(ctx, outer, target, old)
			})
		}
		return nil, false
	})
}
