package request

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// next is the outcome of a NextCut.
type next struct {
	cut  checkpoint.Cut
	err  error
	said chan string
	done chan struct{}
}

func nextCut(ctx context.Context, s *Store, within time.Duration) *next {
	n := &next{said: make(chan string, 10), done: make(chan struct{})}
	go func() {
		defer close(n.done)
		n.cut, n.err = s.NextCut(ctx, "me", "a test", within, func(why string) { n.said <- why })
	}()
	return n
}

func (n *next) ends(t *testing.T) {
	t.Helper()
	select {
	case <-n.done:
	case <-time.After(2 * time.Minute):
		t.Fatal("it does not end")
	}
}

// asked waits until there are n requests, and returns the newest one.
func asked(t *testing.T, s *Store, n int) Record {
	t.Helper()
	for {
		if list := must.Get(s.List(t.Context()))(t); len(list) == n {
			return list[0]
		}
		must.Succeed(t, mongo.Pause(t.Context(), time.Millisecond))
	}
}

// cutter makes and confirms cuts as a link does.
func cutter(t *testing.T, links *checkpoint.Store, h *checkpoint.Link) func() checkpoint.Cut {
	t.Helper()
	ctx := t.Context()
	before := must.Get(links.Cuts(ctx))(t)
	must.Get(h.OpenCuts(ctx))(t)
	return func() checkpoint.Cut {
		made := must.Get(h.Barrier().Cut(ctx, at(100), 100_000, []checkpoint.Position{h.Lane(0).Position()}))(t)
		if there, err := h.Confirm(ctx, made); !there || err != nil {
			t.Fatalf("%d cuts before: %t, %v", len(before), there, err)
		}
		return made
	}
}

// TestNextCut: the next cut is one that is made after it was asked for, whether the leader says
// so, or it is seen before that.
func TestNextCut(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	g := newTarget(t)
	l, h := create(t, g)
	s, cut := New(l), cutter(t, l, h)
	old := cut()

	n := nextCut(ctx, s, time.Minute)
	r := asked(t, s, 1)
	if r.Kind != Cut || r.By != "me" || r.Why != "a test" || string(r.Args) != `{"withinSeconds":60}` {
		t.Errorf("%+v", r)
	}
	must.Succeed(t, s.Answered(ctx, h, r.ID, Working, "the copy is not consistent yet"))
	select {
	case got := <-n.said:
		if got != "the copy is not consistent yet" {
			t.Error(got)
		}
	case <-n.done:
		t.Fatalf("%+v, %v: the newest cut is %+v", n.cut, n.err, old)
	}
	made := cut()
	n.ends(t)
	if n.err != nil || n.cut.Target != made.Target || n.cut.Source != made.Source {
		t.Errorf("%+v, %v; made was %+v", n.cut, n.err, made)
	}

	// The leader answers: the newest one is good enough, whatever time it has.
	n = nextCut(ctx, s, time.Minute)
	must.Succeed(t, s.Answered(ctx, h, asked(t, s, 2).ID, Done, "there it is"))
	n.ends(t)
	if n.err != nil || n.cut.Target != made.Target {
		t.Errorf("%+v, %v", n.cut, n.err)
	}
	if bson.Timestamp.Compare(made.Target, old.Target) <= 0 {
		t.Errorf("a cut at %v after one at %v", made.Target, old.Target)
	}
}

// TestNoNextCut: the error says why there is none.
func TestNoNextCut(t *testing.T) {
	t.Parallel()
	g := newTarget(t)
	l, h := create(t, g)
	s := New(l)
	for i, state := range []string{Refused, Failed} {
		n := nextCut(t.Context(), s, time.Minute)
		must.Succeed(t, s.Answered(t.Context(), h, asked(t, s, i+1).ID, state, "the link is paused"))
		n.ends(t)
		if !errors.Is(n.err, ErrNoCut) || !strings.HasSuffix(n.err.Error(), "no consistent cut: the link is paused") {
			t.Error(n.err)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	n := nextCut(ctx, s, time.Minute)
	asked(t, s, 3)
	over := errors.New("over")
	cancel(over)
	n.ends(t)
	must.Fail(t, n.err, over)
	n = nextCut(t.Context(), s, time.Second)
	n.ends(t)
	want := "waited 1s, and no process has begun to make it yet"
	if len(must.Get(s.List(t.Context()))(t)) == 3 {
		want = "waited 1s, and the target has not taken the request" // on a machine that is too slow
	}
	if !errors.Is(n.err, ErrNoCut) || !strings.Contains(n.err.Error(), want) || errors.Is(n.err, ErrNotBegun) {
		t.Errorf("%v, want %s, which a process may be about to change", n.err, want)
	}
}

// TestNextCutNotBegun: whoever waits for a cut that no process begins to make is told so long before the wait is over, once.
func TestNextCutNotBegun(t *testing.T) {
	t.Parallel()
	l, h := create(t, newTarget(t))
	s := New(l)
	ctx, cancel := context.WithCancelCause(t.Context())
	n := nextCut(ctx, s, time.Minute)
	r := asked(t, s, 1)
	select {
	case got := <-n.said:
		if got != "the request is not begun: no process runs the link, or an earlier release does" {
			t.Error(got)
		}
	case <-time.After(40 * time.Second):
		t.Error("nothing is said")
	case <-n.done:
		t.Fatal(n.err)
	}
	must.Succeed(t, s.Answered(ctx, h, r.ID, Working, "the link is paused"))
	if got := <-n.said; got != "the link is paused" {
		t.Error(got)
	}
	enough := errors.New("enough")
	cancel(enough)
	n.ends(t)
	must.Fail(t, n.err, enough)

	n = nextCut(t.Context(), s, cutBeginsWithin+5*time.Second)
	asked(t, s, 2)
	n.ends(t)
	if !errors.Is(n.err, ErrNotBegun) && !strings.Contains(n.err.Error(), "cannot be read") { // on a machine that is too slow
		t.Error(n.err)
	}
}

// TestNextCutUnread: while the target does not answer, nobody knows whether a cut was begun, and nothing is said of that.
func TestNextCutUnread(t *testing.T) {
	t.Parallel()
	g := newTarget(t)
	l, h := create(t, g)
	s, through := New(l), &away{Caller: g}
	n := nextCut(t.Context(), New(links(t, through, "a")), cutBeginsWithin+time.Minute)
	r := asked(t, s, 1)
	must.Succeed(t, mongo.Pause(t.Context(), cutBeginsWithin/5)) // until it looks for the cut
	through.left.Store(math.MaxInt64)
	must.Succeed(t, mongo.Pause(t.Context(), cutBeginsWithin+time.Second))
	through.left.Store(0)
	must.Succeed(t, mongo.Pause(t.Context(), cutBeginsWithin/5)) // it can be read again, and a process has time to begin it
	must.Succeed(t, s.Answered(t.Context(), h, r.ID, Working, "the link is paused"))
	if got := <-n.said; got != "the link is paused" {
		t.Error(got)
	}
	must.Succeed(t, s.Answered(t.Context(), h, r.ID, Refused, "no"))
	n.ends(t)
	next := nextCut(t.Context(), New(links(t, through, "a")), 6*time.Second)
	asked(t, s, 2)
	must.Succeed(t, mongo.Pause(t.Context(), cutBeginsWithin/5))
	through.left.Store(math.MaxInt64)
	next.ends(t)
	if !errors.Is(next.err, ErrNoCut) || errors.Is(next.err, ErrNotBegun) || !strings.Contains(next.err.Error(), "not primary") {
		t.Error(next.err)
	}

	// It does not answer at all.
	mute := &muted{Caller: g}
	n = nextCut(t.Context(), New(links(t, mute, "a")), cutBeginsWithin+4*time.Second)
	asked(t, s, 3)
	must.Succeed(t, mongo.Pause(t.Context(), cutBeginsWithin/5))
	mute.on.Store(true)
	n.ends(t)
	if !errors.Is(n.err, ErrNoCut) || errors.Is(n.err, ErrNotBegun) || !strings.Contains(n.err.Error(), "the request cannot be read") {
		t.Error(n.err)
	}
}

// muted is a target that does not answer while it is on.
type muted struct {
	mongo.Caller
	on atomic.Bool
}

// Call implements mongo.Caller.
func (m *muted) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if m.on.Load() {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return m.Caller.Call(ctx, cmd)
}

// away is a target without a primary for some commands.
type away struct {
	mongo.Caller
	left atomic.Int64
}

// lossy is a target whose replies to updates of control are lost a few times, with the primary.
type lossy struct {
	mongo.Caller
	left atomic.Int64
}

// Call implements mongo.Caller.
func (l *lossy) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	reply, err := l.Caller.Call(ctx, cmd)
	if name, _ := cmd.Body.Lookup("update").StringValueOK(); err == nil && name == metadata.Control && l.left.Add(-1) >= 0 {
		return nil, servererr.New(servererr.PrimarySteppedDown, "stepped down")
	}
	return reply, err
}

// Call implements mongo.Caller.
func (a *away) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if a.left.Add(-1) >= 0 {
		return nil, servererr.New(servererr.NotWritablePrimary, "not primary")
	}
	return a.Caller.Call(ctx, cmd)
}

// TestAskFailover: an Ask during a failover of the target stores one request, whichever replies were
// lost; if the failover does not end, Ask gives up.
func TestAskFailover(t *testing.T) {
	t.Parallel()
	g := newTarget(t)
	l, _ := create(t, g)
	without, lost := &away{Caller: g}, &lossy{Caller: g}
	without.left.Store(5)
	lost.left.Store(3)
	for i, through := range []mongo.Caller{without, lost} {
		r := must.Get(New(links(t, through, "a")).Ask(t.Context(), Ask{Kind: Pause, By: "me"}))(t)
		if all := must.Get(New(l).List(t.Context()))(t); len(all) != i+1 || all[0].ID != r.ID || r.State != Asked || r.At.IsZero() {
			t.Errorf("asked for %+v: %+v", r, all)
		}
	}
	without.left.Store(math.MaxInt64)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err := New(links(t, without, "a")).Ask(ctx, Ask{Kind: Pause, By: "me"})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "not primary") {
		t.Error(err)
	}
	_, err = New(links(t, without, "a")).ask(t.Context(), Ask{Kind: Pause, By: "me"}, time.Millisecond)
	if stuck, is := errors.AsType[*mongo.StuckError](err); !is {
		t.Errorf("%v, %+v", err, stuck)
	}
}

// TestNextCutFailover: a cut can be asked for while the target has a failover.
func TestNextCutFailover(t *testing.T) {
	t.Parallel()
	g := newTarget(t)
	l, h := create(t, g)
	s, cut := New(l), cutter(t, l, h)
	through := &away{Caller: g}
	through.left.Store(5)
	n := nextCut(t.Context(), New(links(t, through, "a")), time.Minute)
	var list []Record
	for len(list) == 0 {
		select {
		case <-n.done:
			t.Fatal(n.err)
		case <-time.After(time.Millisecond):
			list = must.Get(s.List(t.Context()))(t)
		}
	}
	made := cut()
	must.Succeed(t, s.Answered(t.Context(), h, list[0].ID, Done, "there it is"))
	n.ends(t)
	if n.err != nil || n.cut.Target != made.Target {
		t.Errorf("%+v, %v", n.cut, n.err)
	}
}
