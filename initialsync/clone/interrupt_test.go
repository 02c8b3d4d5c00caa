package clone

import (
	"errors"
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/initialsync/progress"
	"github.com/oplogrep/replicator/internal/idrange"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/oplog"
)

// interruptEach copies the collections that makes creates. For each k, the connection
// is lost at command k, and a new attempt without a fault completes the copy, until a
// copy needs fewer than k commands. This is done for the source, and for the target
// with the lost command carried out or not. It returns the number of commands. Under
// the race detector it tries every third k.
func (w *world) interruptEach(
	makes func(ns oplog.Namespace) *progress.Collection, between func(ns oplog.Namespace), check func(ns oplog.Namespace),
) (commands int) {
	w.t.Helper()
	ctx := within(w.t)
	step := 1
	if race.Enabled {
		step = 3
	}
	for i, side := range []*gate{w.source, w.target, w.target} {
		for k := i % step; ; k += step {
			coll := makes(oplog.Namespace(fmt.Sprintf("d.c%d_%d", i, k)))
			w.begin(ctx)
			w.plan(ctx, coll)
			count, hit := 0, false
			side.intercept(func(mongo.Command) (error, bool) {
				count++
				hit = hit || count > k
				if hit {
					// Everything after it fails, too: the process has ended.
					return errInjected, i == 1 && count == k+1
				}
				return nil, false
			}, nil)
			w.docs = 0
			err := w.copyAll(ctx, coll)
			side.intercept(nil, nil)
			if err != nil && !errors.Is(err, errInjected) {
				w.t.Fatalf("command %d: %v", k, err)
			}
			before := w.docs
			w.begin(ctx)
			kept := int64(0)
			for _, r := range must.Get(w.rangesOf(ctx, coll))(w.t) {
				kept += r.Docs
			}
			if kept < before {
				w.t.Fatalf("command %d: %d documents were copied, %d are known of", k, before, kept)
			}
			if between != nil && hit {
				between(coll.NS)
			}
			must.Succeed(w.t, w.copyAll(ctx, coll))
			check(coll.NS)
			if !hit {
				break
			}
			commands += step
		}
	}
	return commands
}

// TestCopyInterrupted does this for collections in several ranges.
func TestCopyInterrupted(t *testing.T) {
	t.Parallel()
	for _, order := range []order{natural, byID} {
		t.Run(string(order), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if order == byID {
				w.idOrder(false)
			}
			w.cfg.FlushDocs, w.cfg.RangeBytes = 60, 1
			var docs []bson.Raw
			var uuid oplog.UUID
			rest := int64(0)
			for i, d := range mixed(t) {
				if i%6 == 0 {
					docs = append(docs, d)
					if _, bracketed := idrange.Of(d.Lookup("_id").Type); !bracketed {
						rest++
					}
				}
			}
			n := w.interruptEach(func(ns oplog.Namespace) *progress.Collection {
				insertRaw(t, w.source, ns, docs...)
				coll := w.collection(ns)
				w.cfg.RangeBytes = coll.Bytes / 3
				uuid = coll.UUID
				return coll
			}, nil, func(ns oplog.Namespace) {
				w.check(ns)
				var sum int64
				for _, r := range must.Get(w.ranges(within(t)))(t) {
					if r.UUID == uuid {
						sum += r.Docs
					}
				}
				// Documents in no bracket are read again from the start.
				if n := int64(len(docs)); sum < n || sum > n+rest {
					t.Errorf("%d documents were copied, there are %d", sum, n)
				}
			})
			if n < 30 {
				t.Errorf("%d interruptions", n)
			}
		})
	}
}

// TestCopyFailover: the target's primary steps down repeatedly.
func TestCopyFailover(t *testing.T) {
	t.Parallel()
	for _, ns := range []oplog.Namespace{"d.c", "d.system.js"} {
		w := newWorldWith(t, "5.0", 3)
		insertRaw(t, w.source, ns, numbered(t, 0, 1000, 100)...)
		w.cfg.FlushDocs = 20
		coll := w.collection(ns)
		ctx := within(t)
		w.begin(ctx)
		w.plan(ctx, coll)
		ended := 0
		for attempt := 0; ; attempt++ {
			writes := 0
			w.target.intercept(nil, func(cmd mongo.Command) {
				// In the middle of a transaction, if there is one.
				if n := name(cmd); n == "insert" || n == "update" {
					if writes++; writes == 20 && attempt < 4 {
						_ = w.sets[1].StepDown(ctx)
					}
				}
			})
			err := w.copyAll(ctx, coll)
			w.target.intercept(nil, nil)
			if err == nil {
				break
			}
			ended++
			if attempt > 20 {
				t.Fatal(err)
			}
			for {
				link, err := w.store.Acquire(ctx, 0)
				if err == nil {
					w.link = progress.Of(link)
					break
				}
				if ctx.Err() != nil {
					t.Fatal(err)
				}
			}
		}
		if ended == 0 {
			t.Error("nothing was interrupted")
		}
		must.Succeed(t, w.differ(ns))
		// It is found there, and waited for, that all ranges are done.
		coll.State = progress.Filled
		must.Succeed(t, w.link.Lane(0).SaveCollection(ctx, coll, nil))
	}
}
