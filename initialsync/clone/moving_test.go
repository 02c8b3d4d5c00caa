package clone

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/initialsync/progress"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

const movingNS oplog.Namespace = "d.c"

// traffic writes to a collection while it is copied, and records its documents.
type traffic struct {
	t      fataler
	source mongo.Caller
	rng    *rand.Rand
	ids    []int
	next   int
	// versions are all versions of each document.
	versions map[int][]bson.Raw
	touched  map[int]bool
}

func (f *traffic) doc(id int) bson.Raw {
	d := must.Marshal(f.t, bson.D{{Key: "_id", Value: id}, {Key: "v", Value: len(f.versions[id])}, {Key: "pad", Value: strings.Repeat("x", 100+f.rng.IntN(200))}})
	f.versions[id] = append(f.versions[id], d)
	return d
}

func (f *traffic) fill(n int) {
	var docs []bson.Raw
	for range n {
		docs = append(docs, f.doc(f.next))
		f.ids = append(f.ids, f.next)
		f.next++
	}
	insertRaw(f.t, f.source, movingNS, docs...)
}

func (f *traffic) remove(ids ...int) {
	run(f.t, f.source, "d", bson.D{{Key: "delete", Value: "c"}, {Key: "deletes", Value: bson.A{
		bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}}, {Key: "limit", Value: 0}},
	}}})
	for _, id := range ids {
		f.touched[id] = true
	}
	f.ids = slices.DeleteFunc(f.ids, func(id int) bool { return slices.Contains(ids, id) })
}

// step makes one change.
func (f *traffic) step() {
	at := f.rng.IntN(len(f.ids))
	id := f.ids[at]
	switch f.rng.IntN(6) {
	case 0:
		f.touched[f.next] = true
		f.fill(1)
	case 1:
		f.touched[id] = true
		run(f.t, f.source, "d", bson.D{{Key: "update", Value: "c"}, {Key: "updates", Value: bson.A{
			bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: id}}}, {Key: "u", Value: f.doc(id)}},
		}}})
	case 2: // it moves to the end
		f.remove(id)
		insertRaw(f.t, f.source, movingNS, f.doc(id))
		f.ids = append(f.ids, id)
	case 3: // a span goes
		if n := f.rng.IntN(60); len(f.ids) > 500 {
			f.remove(slices.Clone(f.ids[at:min(at+n, len(f.ids))])...)
		}
	default:
		f.remove(id)
	}
}

// check compares the target with the recorded versions.
func (f *traffic) check(got []bson.Raw) error {
	seen := map[int]bool{}
	for _, d := range got {
		id := int(d.Lookup("_id").AsInt64())
		if seen[id] {
			return fmt.Errorf("document %d is there twice", id)
		}
		seen[id] = true
		if !slices.ContainsFunc(f.versions[id], func(v bson.Raw) bool { return bytes.Equal(v, d) }) {
			return fmt.Errorf("document %d never was %s", id, d)
		}
	}
	for _, id := range f.ids {
		if !seen[id] && !f.touched[id] {
			return fmt.Errorf("document %d is missing", id)
		}
	}
	return nil
}

// TestCopyMoving copies while documents are written, deleted and inserted again, with
// attempts that end at any point.
func TestCopyMoving(t *testing.T) {
	t.Parallel()
	for seed := range uint64(12) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if seed%3 == 2 {
				w.idOrder(false)
			}
			rng := rand.New(rand.NewPCG(seed, 1))
			f := &traffic{t: t, source: w.source.Caller, rng: rng, versions: map[int][]bson.Raw{}, touched: map[int]bool{}}
			if u, ok := f.source.(*unnumbered); ok {
				f.source = u.Caller
			}
			f.fill(1500)
			coll := w.collection(movingNS)
			w.cfg.FlushDocs = 20 + rng.IntN(60)
			w.cfg.RangeBytes = coll.Bytes / int64(1+rng.IntN(5))
			w.batch = int32(10 + rng.IntN(200))
			ctx := within(t)
			w.begin(ctx)
			w.plan(ctx, coll)
			for attempt := 0; ; attempt++ {
				left := 1 + rng.IntN(60)
				if attempt > 40 {
					left = 1 << 30
				}
				var mu sync.Mutex
				hook := func(mongo.Command) (error, bool) {
					mu.Lock()
					defer mu.Unlock()
					if left--; left < 0 {
						return errInjected, rng.IntN(2) == 0
					}
					if rng.IntN(2) == 0 {
						f.step()
					}
					return nil, false
				}
				w.target.intercept(hook, nil)
				w.source.intercept(hook, nil)
				err := w.copyAll(ctx, coll)
				w.target.intercept(nil, nil)
				w.source.intercept(nil, nil)
				if err != nil && !errors.Is(err, errInjected) {
					t.Fatal(err)
				}
				w.begin(ctx)
				for range rng.IntN(20) {
					f.step()
				}
				ranges := must.Get(w.ranges(ctx))(t)
				if !slices.ContainsFunc(ranges, func(r progress.Range) bool { return !r.Done }) {
					break
				}
			}
			must.Succeed(t, f.check(read(t, w.target.Caller, movingNS)))
		})
	}
}

// TestCopyAnchors: the record to resume after is deleted, with some before it or all.
func TestCopyAnchors(t *testing.T) {
	t.Parallel()
	for _, gone := range []int{1, 30, 1000} {
		w := newWorld(t)
		docs := numbered(t, 0, 1000, 100)
		insertRaw(t, w.source, movingNS, docs...)
		coll := w.collection(movingNS)
		w.cfg.FlushDocs = 20
		ctx := within(t)
		w.begin(ctx)
		w.plan(ctx, coll)
		commits := 0
		w.target.intercept(func(cmd mongo.Command) (error, bool) {
			if name(cmd) == "commitTransaction" {
				commits++
			}
			if commits > 20 {
				return errInjected, false
			}
			return nil, false
		}, nil)
		if err := w.copyAll(ctx, coll); !errors.Is(err, errInjected) {
			t.Fatal(err)
		}
		w.target.intercept(nil, nil)
		// 400 are copied.
		first := max(0, 400-gone)
		run(t, w.source, "d", bson.D{{Key: "delete", Value: "c"}, {Key: "deletes", Value: bson.A{bson.D{
			{Key: "q", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: first}, {Key: "$lt", Value: 400}}}}}, {Key: "limit", Value: 0},
		}}}})
		tries := 0
		w.source.intercept(nil, func(cmd mongo.Command) {
			if name(cmd) == "find" {
				tries++
			}
		})
		w.begin(ctx)
		must.Succeed(t, w.copyAll(ctx, coll))
		must.Succeed(t, difference(docs, read(t, w.target.Caller, movingNS), true))
		if w.docs != 1000 {
			t.Errorf("%d gone: %d documents were copied, want 1000", gone, w.docs)
		}
		if tries < 2 {
			t.Errorf("%d gone: %d finds", gone, tries)
		}
	}
}
