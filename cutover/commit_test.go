package cutover_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/request"
)

func ot(second uint32) oplog.OpTime { return oplog.NewOpTime(second, 1, 7) }

// open returns a connection to a set.
func open(t *testing.T) mongo.Caller {
	t.Helper()
	sim := mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1, Moods: mongosim.GentleMoods("each command is counted")})
	return client.Open(t, driver.Config{URI: sim.URI()})
}

// leading creates a link at second 90, acquires its lease, and applies up to second 100.
func leading(t *testing.T, target mongo.Caller, name string) (*checkpoint.Store, *checkpoint.Link) {
	t.Helper()
	ctx := t.Context()
	s := must.Get(checkpoint.New(checkpoint.Config{Target: target, Link: name}))(t)
	must.Succeed(t, s.Create(ctx, checkpoint.State{
		Writers: 1, Applied: ot(90), AppliedWall: 90_000, FetchFrom: ot(90), Source: checkpoint.Source{SetName: "rs0"}, Filters: &checkpoint.Filters{},
	}))
	h := must.Get(s.Acquire(ctx, 0))(t)
	l, next := h.Lane(0), checkpoint.Position{OpTime: ot(100)}
	txn := l.Session().Begin()
	must.Succeed(t, txn.End(ctx, true, l.Move(ctx, txn, next)))
	l.Moved(next)
	return s, h
}

// committer commits the link of that name, as of second 100.
func committer(t *testing.T, target mongo.Caller, name string, p *play) *cutover.CommitConfig {
	t.Helper()
	p.t = t
	set := target
	if c, is := target.(*crash); is {
		set = c.Caller
	}
	p.target = must.Get(replset.NewestEntry(t.Context(), set, replset.Local))(t).OpTime.TS
	return &cutover.CommitConfig{
		Drain:  cutover.DrainConfig{Source: p, Cuts: p, Link: name, By: "me", Within: time.Minute, Said: func(string) {}},
		Target: target, MetaDB: "replicator", Process: "the operator's",
	}
}

// ended returns the end of a link; if it has none, a process can lead it, and if it has one, none
// can.
func ended(t *testing.T, s *checkpoint.Store) *checkpoint.Over {
	t.Helper()
	over := must.Get(s.Over(t.Context()))(t)
	_, err := s.Acquire(t.Context(), 0)
	if gone, is := errors.AsType[*checkpoint.OverError](err); is != (over != nil) || is && !gone.Over.Same(over) || over == nil && err != nil {
		t.Errorf("the end is %+v, and acquiring it: %v", over, err)
	}
	return over
}

// TestCommit: a link that is committed has ended for every process, the one that leads included;
// to commit it again says so.
func TestCommit(t *testing.T) {
	t.Parallel()
	ctx, target := t.Context(), open(t)
	s, h := leading(t, target, "dr")
	p := &play{blocks: []bool{true}, notes: []any{noted}, cuts: []uint32{100}}
	over, drained, err := cutover.Commit(ctx, committer(t, target, "dr", p))
	if err != nil || drained.Last.T != 100 || over.By != "me" || over.Source != ot(100) || over.At.IsZero() {
		t.Fatalf("%+v %+v %v", over, drained, err)
	}
	if err := h.Check(ctx); !errors.Is(err, lease.ErrFenced) {
		t.Errorf("the process that led: %v", err)
	}
	if got := ended(t, s); got == nil || !got.Same(&over) {
		t.Errorf("ended: %+v, want %+v", got, over)
	}
	standing, found, err := s.Look(ctx, lease.NewWatch(""))
	if err != nil || !found || standing.Over == nil || !standing.Over.Same(&over) || !standing.Lease.Free {
		t.Errorf("a process that stands by sees %+v, %v", standing, err)
	}
	asked := len(p.asked)
	again, _, err := cutover.Commit(ctx, committer(t, target, "dr", p))
	if gone, is := errors.AsType[*checkpoint.OverError](err); !is || gone.Link != "dr" || !again.Same(&over) || len(p.asked) != asked {
		t.Errorf("again: %+v, %v, and the source was asked %v", again, err, p.asked[asked:])
	}
}

// TestCommitRefused: a link that is not drained goes on, with the process that led it.
func TestCommitRefused(t *testing.T) {
	t.Parallel()
	target := open(t)
	for i, tt := range []struct {
		play play
		want error
	}{
		{play{blocks: []bool{false}}, cutover.ErrNotFrozen},
		{play{blocks: []bool{true}, notes: []any{noted}, cuts: []uint32{0}}, request.ErrNoCut},
		{play{blocks: []bool{true, false}, notes: []any{noted}, cuts: []uint32{100}}, cutover.ErrThawed},
		{play{blocks: []bool{true, true, false}, notes: []any{noted}, cuts: []uint32{100}}, cutover.ErrThawed},
	} {
		name := fmt.Sprintf("dr%d", i)
		s, h := leading(t, target, name)
		_, _, err := cutover.Commit(t.Context(), committer(t, target, name, &tt.play))
		if !errors.Is(err, tt.want) {
			t.Errorf("%d: %v, want %v", i, err, tt.want)
		}
		if fenced := h.Check(t.Context()); (fenced != nil) != (i == 3) {
			t.Errorf("%d: the process that led: %v", i, fenced)
		}
		if seen, _, err := s.Look(t.Context(), lease.NewWatch("")); err != nil || i == 3 && !seen.Lease.Free {
			t.Errorf("%d: nobody can lead it at once: %+v, %v", i, seen, err)
		}
		if over := ended(t, s); over != nil {
			t.Errorf("%d: ended: %+v", i, over)
		}
	}
	// Something was applied after the cut.
	s, _ := leading(t, target, "late")
	note := `{"ok":1,"operationTime":{"$timestamp":{"t":99,"i":1}}}`
	_, _, err := cutover.Commit(t.Context(), committer(t, target, "late", &play{blocks: []bool{true}, notes: []any{note}, cuts: []uint32{99}}))
	if over := ended(t, s); !errors.Is(err, cutover.ErrWritten) || over != nil {
		t.Errorf("%+v, %v", over, err)
	}
	s, h := leading(t, target, "building")
	must.Succeed(t, h.KeepBack(t.Context(), []checkpoint.KeptBack{{NS: "shop.a", Since: checkpoint.Position{OpTime: ot(95)}}}))
	_, _, err = cutover.Commit(t.Context(), committer(t, target, "building", &play{blocks: []bool{true}, notes: []any{noted}, cuts: []uint32{100}}))
	if over := ended(t, s); !errors.Is(err, cutover.ErrWritten) || over != nil {
		t.Errorf("%+v, %v", over, err)
	}
}

// crash is a target of which a process is cut off, at the command of that number: its reply is
// lost, or it is not sent; and from then on, or that once.
type crash struct {
	mongo.Caller
	at         int
	sent, once bool
	mu         sync.Mutex
	n          int // guarded by mu
}

var errCrashed = errors.New("crashed")

// Call implements mongo.Caller.
func (c *crash) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	c.mu.Lock()
	c.n++
	n := c.n
	c.mu.Unlock()
	if n > c.at && !c.once || n == c.at && !c.sent {
		return nil, errCrashed
	}
	reply, err := c.Caller.Call(ctx, cmd)
	switch {
	case n == c.at && c.once:
		return nil, &mongo.LostError{Host: "target", Err: errCrashed}
	case n == c.at:
		return nil, errCrashed
	}
	return reply, err
}

// TestCommitCrashes: a process that is cut off at any command leaves a link that goes on, or one
// that has ended; it never says that the link has ended if it has not, and, where one reply is lost,
// it finds out which of them it is. To commit it again is right in any case.
func TestCommitCrashes(t *testing.T) {
	t.Parallel()
	target := open(t)
	whole := &crash{Caller: target, at: 1_000_000, sent: true}
	leading(t, target, "whole")
	must.Get(commitOnce(committer(t, whole, "whole", ready())))(t)
	tries := []*crashed{}
	for n := 1; n <= whole.n; n++ {
		for i, c := range []*crash{{Caller: target, at: n}, {Caller: target, at: n, sent: true}, {Caller: target, at: n, sent: true, once: true}} {
			one := &crashed{crash: c, name: fmt.Sprintf("dr%d-%d", n, i)}
			one.store, _ = leading(t, target, one.name)
			tries = append(tries, one)
		}
	}
	var all sync.WaitGroup // a lost reply takes its time
	for _, one := range tries {
		cfg := committer(t, one.crash, one.name, ready())
		all.Go(func() { _, one.err = commitOnce(cfg) })
	}
	all.Wait()
	outcomes := map[string]int{}
	for _, one := range tries {
		over := must.Get(one.store.Over(t.Context()))(t)
		switch {
		case one.err == nil && over == nil:
			t.Errorf("%s: it says that the link has ended, and it has not", one.name)
		case one.once && (one.err == nil) != (over != nil):
			t.Errorf("%s: one reply was lost: %v, and it has ended: %+v", one.name, one.err, over)
		case one.err == nil:
			outcomes["ended"]++
		case over != nil && !errors.Is(one.err, cutover.ErrUncertain):
			t.Errorf("%s: it has ended, and it says that it goes on: %v", one.name, one.err)
		case over != nil:
			outcomes["ended unknown"]++
		default:
			outcomes["goes on"]++
		}
		again, err := commitOnce(committer(t, target, one.name, ready()))
		gone, is := errors.AsType[*checkpoint.OverError](err)
		if is != (over != nil) || is && (!gone.Over.Same(over) || !again.Same(over)) || !is && err != nil {
			t.Errorf("%s: committed again, after %+v: %v", one.name, over, err)
		}
		if ended(t, one.store) == nil {
			t.Errorf("%s: it goes on after all", one.name)
		}
	}
	if outcomes["goes on"] < 10 || outcomes["ended unknown"] < 1 || outcomes["ended"] < 1 {
		t.Errorf("of %d commands: %v", whole.n, outcomes)
	}
}

// crashed is a link whose end was interrupted.
type crashed struct {
	*crash
	name  string
	store *checkpoint.Store
	err   error
}

// ready is a source that is blocked, and a link that is drained.
func ready() *play { return &play{blocks: []bool{true}, notes: []any{noted}, cuts: []uint32{100}} }

func commitOnce(cfg *cutover.CommitConfig) (checkpoint.Over, error) {
	over, _, err := cutover.Commit(context.Background(), cfg)
	return over, err
}
