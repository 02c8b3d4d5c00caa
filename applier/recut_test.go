package applier

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/batch"
)

// recut moves the ends of batches.
func (m *model) recut(t *rapid.T) {
	every := rapid.IntRange(1, 20).Draw(t, "every")
	for i := range m.entries {
		e := &m.entries[i]
		next := i+1 < len(m.entries) && m.entries[i+1].alone
		e.last = e.alone || next || i == len(m.entries)-1 || i%every == 0
	}
}

// cappedTail checks a capped collection that trims itself: it has the newest of the
// documents that the log inserted up to some entry, in order.
func (m *model) cappedTail(t *rapid.T, target *simTarget, most int, final bool) {
	var order []int
	for _, d := range target.documents(t, oplog.Namespace(m.db+".cap")) {
		id, _ := d.Lookup("_id").AsInt64OK()
		order = append(order, int(id))
	}
	if len(order) == 0 {
		if final && len(m.capped) > 0 {
			t.Fatalf("the capped collection is empty, the log has %v", m.capped)
		}
		return
	}
	to := order[len(order)-1] + 1
	if final {
		to = len(m.capped)
	}
	if want := m.capped[max(0, to-most):to]; !slices.Equal(order, want) {
		for i, e := range m.entries {
			t.Logf("%d: %s", i, e.raw)
		}
		t.Fatalf("capped collection: %v, want %v", order, want)
	}
}

// TestPropertyRecut is TestProperty with batches that end elsewhere after each start,
// runs that are drained before the log's end, and a capped collection that trims itself.
func TestPropertyRecut(t *testing.T) {
	target := &simTarget{set: mongosim.StartTest(t, mongosim.Options{Members: 1})}
	links := 0
	rapid.Check(t, func(t *rapid.T) {
		links++
		target.intercept(nil)
		link := fmt.Sprintf("link%d", links)
		r := rigOn(t, target, link, rapid.SampledFrom([]int{1, 2, 4}).Draw(t, "writers"))
		r.db = target.drawDB(t)
		for _, c := range modelled {
			target.run(t, r.db, bson.D{{Key: "create", Value: c}})
		}
		most := rapid.IntRange(1, 6).Draw(t, "most")
		target.run(t, r.db, bson.D{
			{Key: "create", Value: "cap"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}, {Key: "max", Value: most},
		})
		m := drawModel(t, r.db, most, false, false, false)
		kinds := []string{"lost before", "lost after", "late", "cancel"}
		late := func() {}
		for attempts := 0; ; attempts++ {
			if attempts > 50 {
				t.Fatalf("it does not get on")
			}
			ctx, cancel := context.WithCancelCause(context.Background())
			ctx, stop := context.WithTimeout(ctx, 20*time.Second)
			target.intercept(nil)
			a, err := r.begin(ctx, func(c *Config) {
				c.Relaxed = rapid.Bool().Draw(t, "relaxed")
				c.FlushDocs = rapid.IntRange(1, 30).Draw(t, "docs")
				c.CoalesceWindow = rapid.IntRange(1, 40).Draw(t, "window")
				c.WindowBytes = int64(rapid.IntRange(1, 40_000).Draw(t, "bytes"))
				c.Plan.MinMass = 2
				c.ShareOps, c.ShareRest = rapid.SampledFrom([]int{3, 5, 10}).Draw(t, "shares"), 1
				c.RetryFor = 10 * time.Second
			})
			must.Succeed(t, err)
			late()
			var mishaps []mishap
			if attempts < 5 {
				mishaps = append(mishaps, mishap{
					at: int64(rapid.IntRange(1, 60).Draw(t, "at")), kind: rapid.SampledFrom(kinds).Draw(t, "mishap"),
				})
			}
			m.recut(t)
			state := a.link.State()
			batches := m.after(state.Applied)
			whole := attempts > 5 || rapid.Bool().Draw(t, "whole")
			if !whole && len(batches) > 0 {
				n := rapid.IntRange(0, len(batches)-1).Draw(t, "batches")
				closeTxns(batches[n:])
				batches = batches[:n]
			}
			late = hurt(target, mishaps, cancel)
			err = a.run(ctx, batches, rapid.IntRange(0, 3).Draw(t, "advance"))
			stop()
			cancel(nil)
			t.Logf("attempt %d: begun %v at %v, barrier %v begun %v: %v", attempts, state.LanesAnnounced, state.Lanes, state.Barrier, state.Announced, err)
			target.intercept(nil)
			if err == nil && whole {
				m.cappedTail(t, target, most, true)
				return
			}
			if err != nil && !isMishap(err) && !errors.Is(err, ErrLogIncomplete) {
				t.Fatalf("attempt %d: %v", attempts, err)
			}
			m.cappedTail(t, target, most, false)
		}
	})
}

func closeTxns(batches []batch.Batch) {
	for i := range batches {
		for _, item := range batches[i].Items {
			if item.Txn != nil {
				_ = item.Txn.Close()
			}
		}
	}
}
