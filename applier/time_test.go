package applier

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog/batch"
)

// started is a running applier.
type started struct {
	in     chan batch.Batch
	out    chan checkpoint.Applied
	cancel context.CancelCauseFunc
	end    chan error
}

func begin(t *testing.T, a *Applier) *started {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	s := &started{in: make(chan batch.Batch, 100), out: make(chan checkpoint.Applied), cancel: cancel, end: make(chan error, 1)}
	go func() { s.end <- a.Run(ctx, s.in, s.out) }()
	return s
}

func send(s *started, batches []batch.Batch) {
	for _, b := range batches {
		s.in <- b
	}
}

func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target := &nullTarget{delay: time.Millisecond}
		s := begin(t, fakeApplier(t, target, 4, nil))
		l := newLog(t)
		for i := range 100 {
			l.add(insertOp("db.a", doc(i, i)))
			if i%10 == 9 {
				l.end()
			}
		}
		send(s, l.batches())
		close(s.in)
		// No receiver takes the published states: only the newest is kept.
		time.Sleep(time.Minute)
		got := <-s.out
		if got.Applied != l.optime() || got.Ops != 100 || len(got.Lanes) != 4 {
			t.Errorf("published %+v, want %s and 100 operations", got, l.optime())
		}
		if more, ok := <-s.out; ok {
			t.Errorf("published %+v after the last one", more)
		}
		if err := <-s.end; err != nil {
			t.Error(err)
		}
	})
}

// The memory of a batch is released when all of it is applied, not before.
func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var given atomic.Int64
		s := begin(t, fakeApplier(t, &nullTarget{delay: time.Minute}, 2, func(c *Config) { c.Release = func(n int64) { given.Add(n) } }))
		l := newLog(t)
		for i := range 10 {
			l.add(insertOp("db.a", doc(i, i)))
		}
		batches := l.batches()
		var bytes int64
		for i := range batches {
			bytes += batches[i].Bytes
		}
		send(s, batches)
		close(s.in)
		synctest.Wait()
		if n := given.Load(); n != 0 || bytes == 0 {
			t.Errorf("%d of %d bytes were given back while they were being applied", n, bytes)
		}
		for range s.out {
		}
		if err := <-s.end; err != nil || given.Load() != bytes {
			t.Errorf("%d of %d bytes were given back: %v", given.Load(), bytes, err)
		}
	})
}

func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("enough")
		// The target never replies.
		s := begin(t, fakeApplier(t, &nullTarget{delay: time.Hour}, 4, func(c *Config) { c.WindowBytes = 3000 }))
		l := newLog(t)
		for i := range 100 {
			l.add(insertOp("db.a", doc(i, i)))
		}
		l.add(l.transactionOp(insertOp("db.a", doc("x", 1))))
		l.end()
		l.add(l.transactionOp(insertOp("db.a", doc("y", 1))))
		batches := l.batches()
		send(s, batches)
		synctest.Wait()
		s.cancel(cause)
		if _, ok := <-s.out; ok {
			t.Error("something was published")
		}
		if err := <-s.end; !errors.Is(err, cause) {
			t.Errorf("error %v, want %v", err, cause)
		}
		for i, b := range batches {
			for _, item := range b.Items {
				if item.Txn == nil {
					continue
				}
				for _, err := range item.Txn.Ops() {
					if err == nil {
						t.Errorf("the transaction of batch %d was not closed", i)
					}
					break
				}
			}
		}
	})
}

func TestRetryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target := &nullTarget{answer: func(mongo.Command) error {
			return servererr.New(servererr.WriteConflict, "conflict")
		}}
		s := begin(t, fakeApplier(t, target, 1, nil))
		l := newLog(t)
		l.add(insertOp("db.a", doc(1, 1)))
		at := time.Now()
		send(s, l.batches())
		err := <-s.end
		if _, ok := errors.AsType[*StuckError](err); !ok {
			t.Errorf("error %v, want a *StuckError", err)
		}
		if took := time.Since(at); took < 30*time.Second || took > 33*time.Second {
			t.Errorf("gave up after %s, want 30 s", took)
		}
		if n := len(target.docs); n < 20 || n > 100 {
			t.Errorf("%d tries", n)
		}
	})
}

// Flushes get smaller where that makes them faster, and larger again.
func TestAdapts(t *testing.T) {
	for _, c := range []struct {
		delay, perDoc time.Duration
		least, most   int // documents of a flush, once the size is stable
	}{
		{0, 10 * time.Millisecond, 20, 140},    // 1 s for 100
		{3 * time.Second, 0, 700, 1100},        // a high latency
		{time.Millisecond, 0, 700, 1100},       // nothing to adapt
		{0, 100 * time.Millisecond, 14, 20},    // never below the minimum
		{0, 600 * time.Microsecond, 700, 1100}, // just right
	} {
		synctest.Test(t, func(t *testing.T) {
			target := &nullTarget{delay: c.delay, perDoc: c.perDoc}
			s := begin(t, fakeApplier(t, target, 1, func(c *Config) { c.FlushDocs = 1000 }))
			l := newLog(t)
			for i := range 20_000 {
				l.add(insertOp("db.a", doc(i, i)))
			}
			send(s, l.batches())
			close(s.in)
			for range s.out {
			}
			must.Succeed(t, <-s.end)
			settled := target.docs[min(10, len(target.docs)-10) : len(target.docs)-1]
			if least, most := slices.Min(settled), slices.Max(settled); least < c.least || most > c.most {
				t.Errorf("with %s and %s a document: %v", c.delay, c.perDoc, target.docs)
			}
		})
	}
}

// A batch that is processed individually waits for everything before it, without a time
// limit, and everything after it waits for it.
func TestBarrierWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []event.Event
		var waits string
		target := &nullTarget{delay: 12 * time.Second}
		var a *Applier
		a = fakeApplier(t, target, 4, func(c *Config) {
			c.Commands = slowCommands{time.Hour}
			c.Observer = func(e event.Event) { told, waits = append(told, e), a.Stats().WaitsFor }
		})
		s := begin(t, a)
		l := newLog(t)
		l.add(insertOp("db.a", doc(1, 1)))
		l.alone(commandOp("db", bson.D{{Key: "create", Value: "b"}}))
		l.add(insertOp("db.b", doc(1, 1)))
		at := time.Now()
		send(s, l.batches())
		close(s.in)
		var when []string
		for applied := range s.out {
			when = append(when, fmt.Sprintf("%d after %s", applied.Applied.TS.T-start.TS.T, time.Since(at).Round(time.Hour/2)))
		}
		must.Succeed(t, <-s.end)
		if len(when) != 3 || when[0] != "1 after 0s" {
			t.Errorf("published %v", when)
		}
		if len(told) == 0 {
			t.Error("the long wait was not told of")
		}
		if e := told[0]; e.Message() != "still waiting for earlier operations" || event.Attr(e, keyOpTime).String() != optimeOf(1).String() {
			t.Errorf("told %v", told)
		}
		if now := a.Stats().WaitsFor; waits != "the lanes to apply what they have" || now != "" {
			t.Errorf("it waits for %q, at the end for %q", waits, now)
		}
	})
}

// The window limits the bytes in the lanes; something larger than it passes alone.
func TestWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 10_000
		target := &nullTarget{delay: time.Second}
		var a *Applier
		most := int64(0)
		target.answer = func(mongo.Command) error {
			most = max(most, a.Stats().WindowBytes)
			return nil
		}
		a = fakeApplier(t, target, 3, func(c *Config) { c.WindowBytes = limit })
		s := begin(t, a)
		l := newLog(t)
		for i := range 100 {
			l.add(insertOp("db.a", doc(i, i)))
		}
		l.add(insertOp("db.a", doc("large", string(make([]byte, 3*limit)))))
		for i := range 100 {
			l.add(deleteOp("db.a", i))
		}
		send(s, l.batches())
		close(s.in)
		var last checkpoint.Applied
		for last = range s.out {
		}
		must.Succeed(t, <-s.end)
		if last.Applied != l.optime() || most > 3*limit+opOverhead+100 || most < 3*limit {
			t.Errorf("%s applied with %d bytes at most", last.Applied, most)
		}
	})
}

func TestConfig(t *testing.T) {
	_, err := newApplier(Config{FlushDocs: -1, WindowBytes: -5}, newFakeLink(&nullTarget{}, 1))
	if err == nil {
		t.Fatal("it was taken")
	}
	for _, want := range []string{"no target", "no catalog", "documents of a flush: -1", "bytes of the writers' window: -5"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
	if _, err := New(Config{}); err == nil {
		t.Error("no hold was taken")
	}
}
