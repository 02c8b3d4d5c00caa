package applier

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/batch"
)

// drawBusy draws a log in which other collections are busy after a while, or many are thin, with
// a number of lanes, and numbers of operations after which their shares are compared.
func drawBusy(t *rapid.T, db string) (h *history, lanes int, shares []int) {
	h = &history{sourceLog: newLog(t), db: db, docs: map[oplog.Namespace]map[int]int{}}
	names, least, entries := make([]oplog.Namespace, 6), 1, rapid.IntRange(20, 60)
	few, most := 4, 16
	shares = []int{8, 16, 24}
	if rapid.Bool().Draw(t, "many") {
		names, least, entries = make([]oplog.Namespace, 24), 16, rapid.IntRange(60, 120)
		few, most = 2, 4
		shares = []int{32, 48, 64}
	}
	for i := range names {
		names[i] = oplog.Namespace(fmt.Sprint(db, ".c", i))
		h.docs[names[i]] = map[int]int{}
	}
	for range rapid.IntRange(2, 5-least/8).Draw(t, "phases") {
		busy := names[:rapid.IntRange(least, len(names)).Draw(t, "busy")]
		for range entries.Draw(t, "entries") {
			h.op(t, rapid.SampledFrom(busy).Draw(t, "collection"))
			if rapid.IntRange(0, 4).Draw(t, "end") == 0 {
				h.end()
			}
		}
	}
	h.end()
	return h, rapid.IntRange(few, most).Draw(t, "writers"), shares
}

// upTo returns the batches of a log that end at or before an optime.
func upTo(batches []batch.Batch, last oplog.OpTime) []batch.Batch {
	return slices.DeleteFunc(batches, func(b batch.Batch) bool { return b.Last.After(last) })
}

// TestPropertyFewLanes: collections whose lanes become few, one, another one, or all again, attempts that crash
// anywhere, other numbers of lanes, and releases that do not know few lanes: at the end everything
// is in the target once.
func TestPropertyFewLanes(t *testing.T) {
	target := &simTarget{set: mongosim.StartTest(t, mongosim.Options{Members: 1})}
	var links, apart, few, one, void, resized int
	rapid.Check(t, func(t *rapid.T) {
		links++
		target.intercept(nil)
		db := fmt.Sprintf("f%d", links)
		h, lanes, shares := drawBusy(t, db)
		r := rigOn(t, target, db, lanes)
		r.db = db
		for ns := range h.docs {
			target.create(t, db, ns.Collection())
		}
		half := optimeOf(len(h.entries) / 2)
		for attempts, end := 0, half; ; attempts++ {
			if attempts > 50 {
				t.Fatalf("it does not get on")
			}
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			link := r.endTransactions(t)
			st := link.State()
			recorded := must.Get(link.Routes(ctx))(t)
			few += len(recorded.Few)
			for _, f := range recorded.Few {
				one += 1 / f.Lanes
			}
			if _, _, is := st.Apart(); is {
				apart += len(recorded.Few)
			} else {
				switch rapid.IntRange(0, 3).Draw(t, "meanwhile") {
				case 0: // a release that does not know few lanes begins, and nothing reaches it
					must.Succeed(t, link.SetRouting(ctx, Routing))
					void += len(recorded.Few)
				case 1:
					if !st.Furthest().After(st.Applied) {
						must.Succeed(t, link.Resize(ctx, checkpoint.Progress{Applied: st.Applied, FetchFrom: st.FetchFrom}, rapid.IntRange(2, 16).Draw(t, "writers")))
						resized += len(recorded.Few)
					}
				}
			}
			a := must.Get(r.begin(ctx, func(c *Config) {
				c.FlushDocs = rapid.IntRange(1, 4).Draw(t, "docs")
				c.CoalesceWindow = c.FlushDocs
				c.ShareOps, c.ShareRest = rapid.SampledFrom(shares).Draw(t, "shares"), 1
			}))(t)
			if commits := rapid.IntRange(1, 60).Draw(t, "commits"); attempts%3 < 2 {
				target.crashAfter(commits)
			}
			err := a.run(ctx, upTo(h.after(a.link.State().Applied), end), rapid.IntRange(0, 2).Draw(t, "advance"))
			target.intercept(nil)
			switch {
			case err != nil && !isMishap(err):
				t.Fatalf("attempt %d: %v", attempts, err)
			case err == nil && end == half:
				if n := len(a.seen); n > 0 {
					must.Succeed(t, a.link.Advance(ctx, a.seen[n-1].Progress, a.seen[n-1].Lanes, checkpoint.Source{SetName: "rs0", RBID: 1}))
				}
				end = optimeOf(len(h.entries))
			case err == nil:
				h.check(t, target)
				cancel()
				return
			}
			cancel()
		}
	})
	t.Logf("%d links, few lanes %d times, %d of them one, %d with lanes apart, %d void, %d before another number", links, few, one, apart, void, resized)
	if apart < links/3 || one < links/20 || void == 0 || resized == 0 {
		t.Error("too few of them")
	}
}
