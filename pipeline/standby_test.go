package pipeline_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/pipeline/monitor"
)

// freezer is the target of a process that can be suspended, as by SIGSTOP. When it
// continues it sends what it was about to send, whatever has ended meanwhile.
type freezer struct {
	pipeline.Cluster
	mu sync.Mutex
	// thawed is closed when it continues, nil while it is not suspended.
	thawed chan struct{}
	// cut means that it is not suspended, but cut off from the target.
	cut bool
}

// Call implements mongo.Caller.
func (f *freezer) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	f.mu.Lock()
	thawed := f.thawed
	f.mu.Unlock()
	switch {
	case thawed != nil && f.cut:
		select {
		case <-thawed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	case thawed != nil:
		<-thawed
		ctx = context.WithoutCancel(ctx)
		cmd.SendBy = time.Time{} // it was between its last check and the network
	}
	return f.Cluster.Call(ctx, cmd)
}

func (f *freezer) freeze() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.thawed = make(chan struct{})
}

func (f *freezer) thaw() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.thawed != nil {
		close(f.thawed)
		f.thawed = nil
	}
}

// freezable starts the link a of a process that can be suspended.
func (w *world) freezable(acts string) *freezer {
	f := &freezer{}
	w.t.Cleanup(f.thaw)
	w.asTarget = func(c pipeline.Cluster) pipeline.Cluster {
		f.Cluster = c
		return f
	}
	w.play(acts)
	w.asTarget = nil
	return f
}

// acquired returns when each link acquired the lease, and its term.
func (w *world) acquired(name string, after time.Time) (at time.Time, term int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if a, ok := e.event.(checkpoint.Acquired); ok && e.link == name && e.at.After(after) {
			return e.at, a.Term
		}
	}
	return time.Time{}, 0
}

// slack is how much later than they should things may happen on a loaded machine.
const slack = 40 * time.Second

// TestStalledLeader: a leader is suspended for longer than its lease. Another process leads
// within the lease and two renewals. When the first one continues it writes nothing, stands
// by, and leads again once the other one has ended.
func TestStalledLeader(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Second
	w := newWorld(t, mongosim.Options{Members: 1, Seed: 1}, mongosim.Options{Members: 1, Seed: 2, Moods: mongosim.GentleMoods("the time is measured")})
	f := w.freezable(`
		start a lease=10s
		await running a
		source insert shop.a 1..100
		await caught-up a
	`)
	w.play("start b lease=10s\nawait standby b")
	a, b := w.links["a"], w.links["b"]
	if l := b.p.Snapshot().Leader; l == nil || l.Process != a.p.Snapshot().Process || l.Term != a.p.Snapshot().Term || !l.Until.After(l.Since) {
		t.Errorf("the leader that is reported: %+v", l)
	}
	stalled := time.Now()
	f.freeze()
	w.play(`
		source update shop.a 1..100
		await running b
		source update shop.a 1..50
		source delete shop.a 51..60
		await caught-up b
	`)
	at, term := w.acquired("b", stalled)
	if took := at.Sub(stalled); took > ttl+2*ttl/5+slack || took < ttl/2 {
		t.Errorf("it leads after %s", took)
	}
	f.thaw()
	w.play("await standby a\nsource update shop.a 1..20\nawait caught-up b\nequal b\ndrain b\nawait running a\nsource update shop.a 1..20\nawait caught-up a\nequal a\ndrain a")
	if _, again := w.acquired("a", at); again <= term {
		t.Errorf("terms %d, then %d", term, again)
	}
}

// TestTakeoverOfCopy: a process whose spool is elsewhere takes over in the middle of a copy.
// The documents already copied stay.
func TestTakeoverOfCopy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, mongosim.Options{Members: 1, Seed: 1}, mongosim.Options{Members: 1, Seed: 2})
	f := w.freezable(`
		source insert shop.a 1..400
		source insert shop.b 1..40
		start a copy ops=200 workers=1 flush=20 range=1000 lease=10s
		await copied 60
	`)
	w.play("start b copy spool=other workers=1 flush=20 range=1000 lease=10s\nawait standby b")
	f.freeze()
	w.play("source update shop.a 1..400\nsource delete shop.b 1..20")
	b := w.links["b"]
	if err := w.untilOf(b, "it to lead", func() bool { return b.p.Snapshot().State == monitor.InitialSync }); err != nil {
		w.fail("standby", "", err)
	}
	f.thaw()
	w.play("limit 0\nawait standby a\ndrain a")
	if err := w.untilOf(b, "the copy to be consistent", func() bool {
		c := b.p.Snapshot().Copy
		return c != nil && c.Phase == checkpoint.Copied
	}); err != nil {
		w.fail("standby", "", err)
	}
	if c := b.p.Snapshot().Copy; c.Number != 1 {
		t.Errorf("copy %d", c.Number)
	}
	w.play("await caught-up b\nequal b\ndrain b")
	if !w.heard("the copy is continued without its spool") {
		t.Error("nothing says that the oplog is read again")
	}
}

// heard reports whether an event has a message that begins so.
func (w *world) heard(text string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if strings.HasPrefix(e.event.Message(), text) {
			return true
		}
	}
	return false
}

// TestLinkGoneWhileStandingBy: a process that has seen the link does not create another one
// in its place: that would drop the copied collections.
func TestLinkGoneWhileStandingBy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, mongosim.Options{Members: 1, Seed: 1}, mongosim.Options{Members: 1, Seed: 2})
	w.play(`
		source insert shop.a 1..10
		start a copy lease=20s
		await told consistent
		start b copy drop-existing spool=other lease=20s
		await standby b
	`)
	store, err := w.metadata()
	if err == nil {
		err = store.Remove(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	b := w.links["b"]
	w.awaitEnd(b)
	if !errors.Is(b.err, checkpoint.ErrNoLink) || failure.Classify(b.err).Code != failure.ExitCheck {
		t.Errorf("it ended with: %v", b.err)
	}
	if n, err := w.target.count(t.Context(), "shop.a"); err != nil || n != 10 {
		t.Errorf("%d documents, %v", n, err)
	}
}

// TestOnceAndHeld: a process that is not to stand by ends with the code of a link that
// another one has, and says which.
func TestOnceAndHeld(t *testing.T) {
	t.Parallel()
	w := play(t, "start a lease=20s\nawait running a\nstart b lease=20s once")
	b := w.links["b"]
	w.awaitEnd(b)
	if v := failure.Classify(b.err); v.Code != failure.ExitFenced || !lease.Lost(b.err) || !strings.Contains(b.err.Error(), ":a:") {
		t.Errorf("%+v, %v", v, b.err)
	}
	w.play("drain a")
}

// TestNeverLed: a process that finds the lease free, and is overtaken by another one before it has acquired it, does not say that it has lost it.
func TestNeverLed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, mongosim.Options{Members: 1, Seed: 1}, mongosim.Options{Members: 1, Seed: 2})
	w.play(`
		hold link created
		start a lease=20s
		await held
		start b lease=20s
		await running b
		release
		await standby a
	`)
	if w.heard("the lease is lost") || !w.heard("the lease was not acquired, standing by") {
		t.Error("a process that has never led says that it has lost the lease")
	}
	w.play("drain a\ndrain b")
}

// TestStalledResync: the leader is suspended while it copies a collection again. The next
// one continues that; the first one, and what copied for it, writes nothing more.
func TestStalledResync(t *testing.T) {
	t.Parallel()
	w := newWorld(t, mongosim.Options{Members: 1, Seed: 1}, mongosim.Options{Members: 1, Seed: 2})
	f := w.freezable(`
		source insert shop.a 1..600
		source insert shop.b 1..10
		start a copy flush=20 workers=1 lease=10s
		await running
		await caught-up
		limit 100
		resync shop.a
		await told copies again
		await resync copying shop.a
	`)
	w.awaitDocuments()
	w.play("start b copy spool=other flush=20 workers=1 lease=10s\nawait standby b")
	f.freeze()
	b := w.links["b"]
	if err := w.untilOf(b, "it to lead", func() bool { return b.p.Snapshot().State == monitor.CatchingUp }); err != nil {
		w.fail("standby", "", err)
	}
	f.thaw()
	w.play("await standby a\nlimit 0")
	w.awaitRequest(b, "shop.a")
	w.play("source update shop.a 1..10\nawait caught-up b\nequal b\ndrain b\nawait running a\nsource update shop.b 1..10\nawait caught-up a\nequal a\ndrain a")
	w.locked()
}

// TestLeaseEndsAlone: the target does not answer for longer than the lease. Nobody else is
// there: the process leads again as soon as it answers.
func TestLeaseEndsAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, mongosim.Options{Members: 1, Seed: 1}, mongosim.Options{Members: 1, Seed: 2})
	f := w.freezable("start a lease=2s\nawait running a\nsource insert shop.a 1..50\nawait caught-up a")
	began := time.Now()
	f.freeze()
	w.play("source update shop.a 1..50")
	time.Sleep(3 * time.Second) // for longer than the lease
	f.thaw()
	w.play("source update shop.a 1..20\nawait caught-up a\nequal a\ndrain a")
	if err := w.links["a"].err; err != nil {
		t.Errorf("it ended with: %v", err)
	}
	if at, _ := w.acquired("a", began); at.IsZero() {
		t.Error("it did not acquire the lease again")
	}
}
