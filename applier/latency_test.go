package applier

import (
	"context"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// TestOnFlush: each flush, including those of the barrier and of commands, reports the
// wall clock of its oldest operation, and all operations are reported.
func TestOnFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		told := map[bson.DateTime]int{}
		late := map[time.Duration]int{}
		reg := prometheus.NewRegistry()
		// The clock of a bubble starts in 2000, so that of the log is set to it.
		began := time.Now()
		s := begin(t, fakeApplier(t, &nullTarget{delay: 5 * time.Millisecond}, 4, func(c *Config) {
			c.Registry = reg
			c.OnFlush = func(ops int, wall bson.DateTime, at time.Time) {
				mu.Lock()
				defer mu.Unlock()
				told[wall] += ops
				late[at.Sub(wall.Time())] += ops
			}
		}))
		l := newLog(t)
		l.add(insertOp("db.a", doc(1, 1)))
		l.add(insertOp("db.a", doc(1, 1)))
		l.end()
		l.add(l.transactionOp(insertOp("db.a", doc(2, 2)), insertOp("db.a", doc(3, 3)), insertOp("db.a", doc(4, 4))))
		l.end()
		l.alone(commandOp("db", bson.D{{Key: "create", Value: "b"}}))
		batches := l.batches()
		for i := range batches {
			for k := range batches[i].Items {
				batches[i].Items[k].Entry.Wall = bson.NewDateTimeFromTime(began.Add(time.Duration(i*10+k) * -time.Second))
			}
		}
		send(s, batches)
		close(s.in)
		for range s.out {
		}
		must.Succeed(t, <-s.end)
		at := func(seconds int) bson.DateTime {
			return bson.NewDateTimeFromTime(began.Add(time.Duration(-seconds) * time.Second))
		}
		if len(told) != 3 || told[at(0)] != 2 || told[at(10)] != 3 || told[at(20)] != 1 {
			t.Errorf("operations by wall clock: %v, want 2 at %d, 3 at %d, 1 at %d", told, at(0), at(10), at(20))
		}
		if late[10*time.Millisecond] != 2 { // two rounds: the statements, and the commit
			t.Errorf("operations by latency: %v, want 2 after 10 ms", late)
		}
		families := must.Get(reg.Gather())(t)
		for _, f := range families {
			if f.GetName() == "replicator_applier_commit_to_applied_seconds" {
				if h := f.GetMetric()[0].GetHistogram(); h.GetSampleCount() != 3 || h.GetSampleSum() < 30 || h.GetSampleSum() > 33 {
					t.Errorf("the histogram has %d flushes and %v seconds", h.GetSampleCount(), h.GetSampleSum())
				}
				return
			}
		}
		t.Error("there is no histogram")
	})
}

// TestHotDocument: while a document's writes wait for their reply all others continue,
// until the window is full, and later entries are not lost.
func TestHotDocument(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, window = 10_000, 3_000
		l := newLog(t)
		for i := range n {
			if i%2 == 0 {
				l.add(setOp("db.a", "hot", i))
			} else {
				l.add(insertOp("db.a", doc(i, i)))
			}
			if i%1000 == 999 {
				l.end()
			}
		}
		each := int64(len(l.batches()[0].Items[0].Entry.O) + len(l.batches()[0].Items[0].Entry.O2) + opOverhead)
		target := &hotTarget{free: make(chan struct{})}
		a := fakeApplier(t, target, 16, func(c *Config) { c.WindowBytes = window * each })
		s := begin(t, a)
		go func() {
			send(s, l.batches())
			close(s.in)
		}()
		last := make(chan checkpoint.Applied, 1)
		go func() {
			var newest checkpoint.Applied
			for newest = range s.out {
			}
			last <- newest
		}()
		time.Sleep(time.Minute)
		// One lane of 16 waits, and its operations, some on other documents, fill the
		// window.
		passed, used := target.others.Load(), a.Stats().WindowBytes
		if passed < window*3/4 || passed > n/2*9/10 {
			t.Errorf("%d others went on beside the hot document, of %d", passed, n/2)
		}
		if used > window*each {
			t.Errorf("the window has %d bytes, at most %d", used, window*each)
		}
		if got := a.Stats().WaitsFor; got != "room in the lanes" {
			t.Errorf("it waits for %q", got)
		}
		close(target.free)
		err := <-s.end
		if got := a.Stats().WaitsFor; got != "" {
			t.Errorf("at the end it waits for %q", got)
		}
		if got := <-last; err != nil || got.Applied != l.optime() || got.Ops != n || target.others.Load() != n/2 {
			t.Errorf("applied up to %s, %d operations, %d others: %v", got.Applied, got.Ops, target.others.Load(), err)
		}
	})
}

// hotTarget does not reply to updates until it is free, and counts inserts.
type hotTarget struct {
	nullTarget
	free   chan struct{}
	others atomic.Int64
}

func (g *hotTarget) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	switch cmd.Sequence {
	case "updates":
		select {
		case <-g.free:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	case "documents":
		g.others.Add(int64(len(cmd.Docs)))
	}
	return g.nullTarget.Call(ctx, cmd)
}

// TestDocSet: the documents of a lane are counted almost exactly, for any number of
// lanes: the hash bits that selected the lane are the same for all of them.
func TestDocSet(t *testing.T) {
	seed := oplog.HashNamespace("db.a")
	for _, writers := range []uint32{1, 3, 4, 16, 64, 256} {
		var d docSet
		d.reset()
		n := 0
		for i := int64(0); n < defaultFlushDocs; i++ {
			h := oplog.HashID(seed, bson.RawValue{Type: bson.TypeInt64, Value: binary.LittleEndian.AppendUint64(nil, uint64(i))})
			if h%writers == 0 {
				d.add(h | 1)
				n++
			}
		}
		if d.n < n*9/10 || d.n > n {
			t.Errorf("%d writers: %d documents of %d", writers, d.n, n)
		}
	}
}
