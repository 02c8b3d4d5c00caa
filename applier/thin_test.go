package applier

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestThinFlushes: where each command of a flush has few operations, the next flush may have twice as
// many. One that takes too long is made smaller all the same.
func TestThinFlushes(t *testing.T) {
	const docs, n = defaultFlushDocs, 20_000
	for _, tt := range []struct {
		name        string
		collections int
		limit       int // FlushDocs
		perDoc      time.Duration
		most        int // operations of the largest flush, but for the first three
	}{
		{"one collection", 1, docs, 0, docs},
		{"eight in a command", docs / thinOps, docs, 0, docs},
		{"two in a command", docs / 2, docs, 0, thinPart * docs},
		{"each one alone", n, docs, 0, thinPart * docs},
		{"a lower limit", n, docs / 2, 0, docs / 2},
		{"each one alone, slowly", n, docs, 400 * time.Microsecond, 3 * docs / 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLog(t)
				for i := range n {
					l.add(insertOp(fmt.Sprint("db.c", i%tt.collections), doc(i, i)))
				}
				var mu sync.Mutex
				var flushes []int
				a := fakeApplier(t, &nullTarget{perDoc: tt.perDoc}, 1, func(c *Config) {
					c.FlushDocs = tt.limit
					c.OnFlush = func(ops int, _ bson.DateTime, _ time.Time) {
						mu.Lock()
						flushes = append(flushes, ops)
						mu.Unlock()
					}
				})
				s := begin(t, a)
				send(s, l.batches())
				close(s.in)
				for range s.out {
				}
				must.Succeed(t, <-s.end)
				// Documents whose hashes collide count as one.
				most, limit := 0, tt.most+tt.most/5
				for _, ops := range flushes[min(3, len(flushes)):] {
					most = max(most, ops)
				}
				if flushes[0] > tt.limit+tt.limit/5 || most > limit || most <= limit/2 {
					t.Errorf("flushes of %d operations, want at most %d", flushes, tt.most)
				}
			})
		})
	}
}

// TestSmallFlushIsNotThin: a flush of a few operations says nothing of the next one.
func TestSmallFlushIsNotThin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(t)
		for i := range 10_000 {
			l.add(insertOp("db.c", doc(i, i)))
			if i == 2 {
				l.end()
			}
		}
		var most atomic.Int64
		a := fakeApplier(t, &nullTarget{}, 1, func(c *Config) {
			c.OnFlush = func(ops int, _ bson.DateTime, _ time.Time) { most.Store(max(most.Load(), int64(ops))) }
		})
		s := begin(t, a)
		batches := l.batches()
		send(s, batches[:1])
		synctest.Wait()
		send(s, batches[1:])
		close(s.in)
		for range s.out {
		}
		must.Succeed(t, <-s.end)
		if n := most.Load(); n > defaultFlushDocs+defaultFlushDocs/5 || n < defaultFlushDocs/2 {
			t.Errorf("a flush of %d operations", n)
		}
	})
}

// TestQueueIsReleased: a lane whose queue was long does not keep its memory once it is empty. What all lanes keep is
// limited, however many there are.
func TestQueueIsReleased(t *testing.T) {
	for _, c := range []struct{ lanes, ops int }{{16, 100}, {16, 3 * keptQueues / 16}, {256, 100}, {256, keptQueues / 16}} {
		w := fakeApplier(t, &nullTarget{}, c.lanes, nil).writers[0]
		l := newLog(t)
		l.add(insertOp("db.a", doc(1, 1)))
		op := &l.batches()[0].Items[0].Entry.Op
		items := make([]work, c.ops)
		for i := range items {
			items[i].op = routedOp{Op: op, route: &route{}, hash: 1}
			items[i].hash = 1
		}
		w.push(items)
		for got := 0; got < c.ops; got += len(w.span.ops) {
			if w.head > 0 && cap(w.queue) < c.ops {
				t.Fatalf("%+v: the queue has room for %d with %d taken", c, cap(w.queue), got)
			}
			more, err := w.take(t.Context())
			if !more || err != nil {
				t.Fatal(more, err)
			}
		}
		if cap(w.queue) > keptQueues/c.lanes || c.ops == 100 && cap(w.queue) == 0 {
			t.Errorf("%+v: the empty queue has room for %d", c, cap(w.queue))
		}
	}
}
