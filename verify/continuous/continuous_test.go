package continuous

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync/clone"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/request"
	"github.com/oplogrep/replicator/verify/standing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestParseBudget: a share of the time, or bytes per second; nothing else.
func TestParseBudget(t *testing.T) {
	t.Parallel()
	size := func(text string) (int64, error) { return strconv.ParseInt(text, 10, 64) }
	for text, want := range map[string]Budget{"5%": {Share: 0.05}, "100%": {Share: 1}, "0.5%": {Share: 0.005}, "700": {BytesPerSecond: 700}, "700/s": {BytesPerSecond: 700}} {
		if got := must.Get(ParseBudget(text, size))(t); got != want {
			t.Errorf("%s: %+v", text, got)
		}
	}
	for _, text := range []string{"", "%", "0%", "0.05%", "101%", "NaN%", "-5%", "5 %", "x", "5%/s"} {
		if b, err := ParseBudget(text, size); err == nil {
			t.Errorf("%q: %+v", text, b)
		}
	}
}

// free is a pace without limits.
type free struct{}

func (free) Wait(context.Context, int, int) error     { return nil }
func (free) Took(clone.Side, time.Duration, int, int) {}
func (free) Call(context.Context, mongo.Command) (bson.Raw, error) {
	return nil, errors.New("not asked")
}

// TestPacer: reading takes its share of the time, and none while the link is not steady.
func TestPacer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var steady atomic.Bool
		steady.Store(true)
		p := newPacer(free{}, 0.05, steady.Load)
		began := time.Now()
		waited := func() time.Duration {
			t.Helper()
			before := time.Now()
			must.Succeed(t, p.Wait(t.Context(), 1, 1))
			return time.Since(before)
		}
		p.Took(clone.Source, 100*time.Millisecond, 1, 1)
		p.Took(clone.Target, 60*time.Millisecond, 1, 1)
		if got := waited(); got != 1900*time.Millisecond {
			t.Errorf("a twentieth of the time: pauses %s for 100 ms", got)
		}
		if got := waited(); got != 0 {
			t.Errorf("nothing was read, and it pauses %s", got)
		}
		p.Took(clone.Target, time.Hour, 1, 1)
		if got := waited(); got != longestPause {
			t.Errorf("pauses %s", got)
		}
		steady.Store(false)
		go func() {
			time.Sleep(time.Minute)
			steady.Store(true)
		}()
		if got := waited(); got < time.Minute {
			t.Errorf("it has read after %s, %s after the beginning, while the link was not steady", got, time.Since(began))
		}
	})
}

// maker makes cuts at a time of the target, or says why not.
type maker struct {
	asked int
	cut   checkpoint.Cut
	make  func(n int) (checkpoint.Cut, string)
	why   string
}

func (m *maker) Cut() {
	m.asked++
	m.cut, m.why = m.make(m.asked)
}

func (m *maker) NewestCut() (checkpoint.Cut, string) { return m.cut, m.why }

// clock is a target at a time.
type clock uint32

func (c clock) Call(context.Context, mongo.Command) (bson.Raw, error) {
	return bson.Marshal(bson.D{{Key: "ok", Value: 1}, {Key: "operationTime", Value: bson.Timestamp{T: uint32(c)}}})
}

// TestCuts: the next cut is one that was made after it was asked for; if there is none, the error says
// why.
func TestCuts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &maker{make: func(n int) (checkpoint.Cut, string) {
			return checkpoint.Cut{Target: bson.Timestamp{T: uint32(98 + n)}}, ""
		}}
		c := &cuts{maker: m, target: clock(100)}
		if _, found, _ := c.Newest(t.Context()); found {
			t.Error("there is none")
		}
		if cut := must.Get(c.Next(t.Context()))(t); cut.Target.T != 101 || m.asked != 3 {
			t.Errorf("%+v after %d", cut, m.asked)
		}
		m.make = func(int) (checkpoint.Cut, string) { return checkpoint.Cut{Target: bson.Timestamp{T: 100}}, "planted" }
		m.Cut()
		if _, err := c.Next(t.Context()); !errors.Is(err, request.ErrNoCut) || fmt.Sprint(err) != request.ErrNoCut.Error()+" for 2m0s: planted" {
			t.Error(err)
		}
	})
}

// TestAnnounce: each difference is announced once, whoever finds it; those of before this process led are
// summed up; what a later comparison does not find is said to be gone.
func TestAnnounce(t *testing.T) {
	t.Parallel()
	var got []string
	w := NewWatcher(WatcherConfig{Observer: func(e event.Event) { got = append(got, fmt.Sprint(e.Message(), " ", e.LogValue())) }})
	a := func(n int64, ids ...string) standing.Differing {
		d := standing.Differing{NS: "t.a", SourceNS: "s.a", Differences: n}
		for _, id := range ids {
			d.Found = append(d.Found, standing.NewFound("missing", id, "", ""))
		}
		return d
	}
	var states map[oplog.Namespace]standing.State
	look := func(what string, st *standing.Standing, want ...string) {
		t.Helper()
		got = nil
		for i := range st.Differing {
			st.Differences += st.Differing[i].Differences
		}
		before := w.known
		w.known = st
		w.announce(before, st, states)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
	of := func(list ...standing.Differing) *standing.Standing { return &standing.Standing{Differing: list} }
	look("of before", of(a(2, "1", "2")), "differences between source and target are known [differences=2 namespaces=1]")
	look("again", of(a(2, "1", "2")))
	look("another one", of(a(3, "1", "2", "3")), "the target differs from the source [ns=t.a kind=missing id=3]")
	look("again", of(a(3, "1", "2", "3")))
	look("some are gone", of(a(1, "3")), "differences between source and target are gone [ns=t.a differences=2 left=1]")
	look("all are", of(), "differences between source and target are gone [ns=t.a differences=1 left=0]")
	ids := make([]string, 30)
	for i := range ids {
		ids[i] = strconv.Itoa(i)
	}
	look("many", of(a(500, ids...)), append(func() (one []string) {
		for _, id := range ids[:mostTold] {
			one = append(one, "the target differs from the source [ns=t.a kind=missing id="+id+"]")
		}
		return one
	}(), "differences between source and target are known [differences=500 namespaces=1 ns=t.a]")...)
	failing := of(a(500, ids...))
	failing.Unchecked = []standing.Collection{{NS: "t.b", SourceNS: "s.b", Why: "planted"}}
	look("not compared", failing, "a collection could not be verified [ns=t.b cause=planted]")
	look("again", &standing.Standing{Differing: failing.Differing, Unchecked: failing.Unchecked})
	now := func(n int64, verified bool) {
		states = map[oplog.Namespace]standing.State{"s.a": {Differences: n, Verified: verified}}
	}
	now(500, true)
	look("others have more", of())
	now(500, true)
	look("listed again", of(a(500, ids...)))
	now(0, false)
	look("another comparison has begun", of())
	look("it has not ended", of())
	now(400, false)
	look("a part is found again", of(a(400, ids[:10]...)))
	now(3, true)
	look("compared", of(a(3, ids[:3]...)), "differences between source and target are gone [ns=t.a differences=497 left=3]")
	now(1, true)
	look("others have more, and some are gone", of(), "differences between source and target are gone [ns=t.a differences=2 left=1]")
	states = nil
	look("dropped", of(), "differences between source and target are gone [ns=t.a differences=1 left=0]")
	if w.Known() == nil {
		t.Error("nothing is known")
	}
	w.forget()
	if w.Known() != nil {
		t.Error("another process leads, and something is known")
	}
}

// TestPending: a changed collection is marked as soon as that is possible.
func TestPending(t *testing.T) {
	t.Parallel()
	w := NewWatcher(WatcherConfig{Store: standing.Store{Target: free{}, DB: "replicator", Link: "l"}})
	w.Changed("s.a", "planted")
	if _, err := w.mark(t.Context()); err == nil || !w.wants() {
		t.Errorf("%v: it was not marked, and is forgotten", err)
	}
	if left := w.taken(); len(left) != 1 || left["s.a"].why != "planted" {
		t.Errorf("left: %+v", left)
	}
}

// stored is a target that stores marks. It calls then with each, before it answers.
type stored struct{ then func() }

func (s *stored) Call(_ context.Context, cmd mongo.Command) (bson.Raw, error) {
	if _, err := cmd.Body.LookupErr("update"); err == nil {
		s.then()
	}
	return bson.Marshal(bson.D{{Key: "ok", Value: 1}, {Key: "n", Value: 1}, {Key: "operationTime", Value: bson.Timestamp{T: 100}}})
}

// TestChangedAgain: a collection that changes again while it is marked is marked again.
func TestChangedAgain(t *testing.T) {
	t.Parallel()
	to, marks := &stored{}, 0
	w := NewWatcher(WatcherConfig{Store: standing.Store{Target: to, DB: "replicator", Link: "l"}})
	to.then = func() {
		if marks++; marks == 1 {
			w.Changed("s.a", "planted") // after the time of the mark that is being stored
		}
	}
	w.Changed("s.a", "planted")
	for range 3 {
		must.Get(w.mark(t.Context()))(t)
	}
	if marks != 2 || w.wants() {
		t.Errorf("it was changed twice, and marked %d times", marks)
	}
}

// TestAskedUnstored: a request that cannot be stored has no effect.
func TestAskedUnstored(t *testing.T) {
	t.Parallel()
	r := New(Config{Watcher: NewWatcher(WatcherConfig{Store: standing.Store{Target: free{}, DB: "replicator", Link: "l"}})})
	if err := r.Ask(t.Context(), []oplog.Namespace{"s.a"}, "why"); err == nil || r.wasAsked() {
		t.Error(err)
	}
}

// TestWaits: while a round runs, the reason why it waits is that of the link's present state.
func TestWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		state := State{Leads: true, Steady: true}
		var mu sync.Mutex
		r := New(Config{State: func() State { mu.Lock(); defer mu.Unlock(); return state }, Watcher: NewWatcher(WatcherConfig{})})
		r.set("of an earlier round")
		followed := make(chan error, 1)
		go func() { followed <- r.follow(t.Context()) }()
		is := func(now State, want string) {
			t.Helper()
			mu.Lock()
			state = now
			mu.Unlock()
			time.Sleep(time.Second)
			if got := r.Why(); got != want {
				t.Errorf("%+v: waits as %q, want %q", now, got, want)
			}
		}
		is(State{Leads: true, Steady: true}, "")
		is(State{Leads: true}, whyUnsteady)
		is(State{Leads: true, Steady: true}, "")
		is(State{Leads: true}, whyUnsteady)
		is(State{}, whyUnsteady)
		if err := <-followed; !errors.Is(err, errNotLeading) {
			t.Error(err)
		}
	})
}

// TestAskedOnce: a request makes one round due, not each that follows.
func TestAskedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := New(Config{Every: time.Hour, Watcher: NewWatcher(WatcherConfig{})})
		waited := func() time.Duration {
			t.Helper()
			before := time.Now()
			must.Succeed(t, r.await(t.Context(), before))
			return time.Since(before)
		}
		must.Succeed(t, r.Ask(t.Context(), nil, "why"))
		if got := waited(); got != 0 {
			t.Errorf("it is due after %s", got)
		}
		if got := waited(); got < time.Hour {
			t.Errorf("the next one is due after %s", got)
		}
	})
}
