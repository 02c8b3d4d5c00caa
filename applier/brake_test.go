package applier

import (
	"context"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
)

// jerky is a Brake that holds briefly, again and again, and delays the operations in between.
type jerky struct {
	every, asked int
	applier      *Applier
	wrong        atomic.Bool

	changed chan struct{} // nil: it never tells
}

// on gives it to an applier, unless every is not positive.
func (j *jerky) on(c *Config) {
	if j.every > 0 {
		c.Brake = j
	}
}

// checkHolds reports an error if a lane of an attempt has moved during a hold, or was not idle when it
// began.
func checkHolds(t fataler, a *attempt) {
	if j, ok := a.cfg.Brake.(*jerky); ok && j.wrong.Load() {
		t.Fatalf("the lanes have applied something while they were held")
	}
}

func (j *jerky) Free() bool               { return false }
func (j *jerky) Changed() <-chan struct{} { return j.changed }
func (j *jerky) Spend(int, int64)         {}

func (j *jerky) Took(_ time.Duration, ops int, bytes func() int64) {
	if ops < 1 || bytes() < 1 {
		j.wrong.Store(true)
	}
}

func (j *jerky) Paused() bool {
	j.asked++
	return j.asked%j.every == 0
}

func (j *jerky) Delay() time.Duration {
	if j.asked%3 == 0 {
		j.asked++
		return time.Microsecond
	}
	return 0
}

func (j *jerky) Hold(context.Context) error {
	before := j.applier.tracker.positions()
	if !j.applier.tracker.quiet() {
		j.wrong.Store(true)
	}
	for range 50 { // a lane may do what it must not
		runtime.Gosched()
	}
	if !slices.Equal(before, j.applier.tracker.positions()) {
		j.wrong.Store(true)
	}
	return nil
}

// gate is a Brake that holds until it is opened.
type gate struct {
	jerky
	held  atomic.Bool
	is    chan struct{} // gets a value with each Hold
	open  chan struct{}
	after int32 // the operations after which it closes, by itself
	spent atomic.Int32
}

func (g *gate) Free() bool           { return false }
func (g *gate) Paused() bool         { return g.held.Load() }
func (g *gate) Delay() time.Duration { return 0 }

func (g *gate) Spend(ops int, _ int64) {
	if n := g.spent.Add(int32(ops)); n >= g.after && n-int32(ops) < g.after {
		g.held.Store(true)
	}
}

func (g *gate) Hold(ctx context.Context) error {
	g.is <- struct{}{}
	select {
	case <-g.open:
		g.held.Store(false)
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// TestHold: an applier that is held in the middle of a batch has finished what the lanes have,
// applies nothing more, and goes on where it was.
func TestHold(t *testing.T) {
	t.Parallel()
	target := &simTarget{set: mongosim.StartTest(t, mongosim.Options{Members: 1})}
	r := rigOn(t, target, "held", 4)
	r.db = "db"
	target.run(t, "db", bson.D{{Key: "create", Value: "a"}})
	log := newLog(t)
	const all, first = 40, 17
	for id := range all {
		log.add(insertOp("db.a", doc(id, 1)))
	}
	g := &gate{is: make(chan struct{}), open: make(chan struct{}), after: first}
	a := must.Get(r.begin(t.Context(), func(c *Config) { c.Brake = g }))(t)
	done := make(chan error, 1)
	go func() { done <- a.run(t.Context(), log.after(a.link.State().Applied), 0) }()
	select {
	case <-g.is:
	case err := <-done:
		t.Fatalf("it was not held: %v", err)
	}
	if n := len(target.documents(t, "db.a")); n != first || a.Stats().WaitsFor != "the link to be resumed: it is paused" {
		t.Errorf("%d documents, want %d; it waits for %q", n, first, a.Stats().WaitsFor)
	}
	close(g.open)
	must.Succeed(t, <-done)
	if n := len(target.documents(t, "db.a")); n != all {
		t.Errorf("%d documents", n)
	}
	if last := a.seen[len(a.seen)-1]; last.Applied != log.optime() || last.Ops != all {
		t.Errorf("%+v", last)
	}
}

// meter is a Brake that measures, and does nothing else.
type meter struct {
	gate
	bytes, written atomic.Int64
}

func (m *meter) Spend(_ int, bytes int64) { m.bytes.Add(bytes) }

func (m *meter) Took(_ time.Duration, _ int, bytes func() int64) { m.written.Add(bytes()) }

// TestSpentBytes: a limit of bytes counts documents, in a transaction or not, and not what they take in memory.
func TestSpentBytes(t *testing.T) {
	t.Parallel()
	log := newLog(t)
	for id := range 40 {
		log.add(insertOp("db.a", doc(id, 1)))
	}
	var ops []bson.D
	for id := 40; id < 80; id++ {
		ops = append(ops, insertOp("db.a", doc(id, 1)))
	}
	log.add(log.transactionOp(ops...)) // of several lanes
	log.add(insertOp("db.a", doc(40, 1)))
	log.add(log.transactionOp(ops...))     // behind the same barrier, like the insert between them
	log.add(log.transactionOp(ops[:1]...)) // of one
	m := &meter{}
	a := fakeApplier(t, &nullTarget{}, 4, func(c *Config) { c.Brake = m })
	s := begin(t, a)
	send(s, log.batches())
	close(s.in)
	for range s.out {
	}
	must.Succeed(t, <-s.end)
	if size := int64(len(must.Get(bson.Marshal(doc(1, 1)))(t))); m.bytes.Load() != 122*size || m.written.Load() < 80*size {
		t.Errorf("%d bytes were counted, and %d written, want %d", m.bytes.Load(), m.written.Load(), 122*size)
	}
}
