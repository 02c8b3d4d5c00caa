package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/mongosim"
)

// counting counts commands of a name.
func counting(what string, n *int) func(mongo.Command) (error, bool) {
	return func(cmd mongo.Command) (error, bool) {
		if simcaller.Name(cmd) == what {
			*n++
		}
		return nil, false
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	g := &target{}
	for what, cfg := range map[string]Config{
		"no target":                 {Link: "a"},
		"link \"\"":                 {Target: g},
		"link \"a/b\"":              {Target: g, Link: "a/b"},
		"belongs to the server":     {Target: g, Link: "a", DB: "local"},
		"metadata database \"a.b\"": {Target: g, Link: "a", DB: "a.b"},
	} {
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%+v: %v, want %q", cfg, err, what)
		}
	}
}

func TestLink(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g := &target{Set: mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1})}
	createData(t, g)
	var events []string
	s := must.Get(New(Config{Target: g, Link: "a", Observer: func(e event.Event) {
		events = append(events, fmt.Sprintf("%s %s", e.Message(), e.LogValue()))
	}}))(t)
	if _, found, err := s.Load(ctx); err != nil || found {
		t.Fatalf("before Create: %v, %v", found, err)
	}
	_, err := s.Acquire(ctx, 0)
	must.Fail(t, err, ErrNoLink)
	if err := s.Create(ctx, State{}); err == nil || !strings.Contains(err.Error(), "0 writers") {
		t.Errorf("Create of nothing: %v", err)
	}
	must.Succeed(t, s.Create(ctx, first(3)))
	must.Fail(t, s.Create(ctx, first(3)), ErrExists)

	want := first(3)
	start := at(100, AllOps)
	want.Lanes, want.LanesAnnounced = []Position{start, start, start}, make([]Position, 3)
	want.Barrier = start
	loads := func(when string) {
		t.Helper()
		got, _, err := s.Load(ctx)
		must.Succeed(t, err)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("after %s: %s", when, diff)
		}
	}
	loads("Create")
	h := must.Get(s.Acquire(ctx, 0))(t)
	want.Term = 1
	if diff := cmp.Diff(want, h.State()); diff != "" {
		t.Errorf("after Begin: %s", diff)
	}

	flush(ctx, t, h.Lane(1), at(101, 4), "x")
	must.Succeed(t, h.lease.Touch(ctx))
	src := Source{SetName: "rs0", RBID: 2, Host: "b:1"}
	must.Succeed(t, h.Advance(ctx, progress(102), positions(h), src))
	want.Source = src
	want.Source.ReplicaSetID = setID // stays
	want.Applied, want.AppliedWall, want.FetchFrom = ot(102), 102_000, ot(97)
	want.Lanes[1] = at(101, 4)
	loads("Advance")
	// The same checkpoint again is not an error: it makes earlier flushes durable.
	must.Succeed(t, h.Advance(ctx, progress(102), positions(h), src))

	wantRefused(ctx, t, h)
	if got, _, _ := s.Load(ctx); got.Applied != ot(102) {
		t.Errorf("a refused Advance moved it to %s", got.Applied)
	}

	wantListed(ctx, t, g)
	if diff := cmp.Diff([]string{
		"link created in the target [link=a writers=3 applied=100:1 t1]",
		"lease acquired [link=a term=1 applied=100:1 t1 fetchFrom=90:1 t1]",
		"checkpoint written [link=a applied=102:1 t1 fetchFrom=97:1 t1]",
		"checkpoint written [link=a applied=102:1 t1 fetchFrom=97:1 t1]",
	}, events[:4]); diff != "" {
		t.Errorf("events: %s", diff)
	}
	if last := events[len(events)-1]; !strings.Contains(last, "lost acknowledged writes") {
		t.Errorf("last event: %s", last)
	}
}

// wantListed creates another link, and lists it and one at 102.
func wantListed(ctx context.Context, t *testing.T, g *target) {
	t.Helper()
	other := must.Get(New(Config{Target: g, Link: "b"}))(t)
	must.Succeed(t, other.Create(ctx, first(1)))
	list := must.Get(List(ctx, g, ""))(t)
	if len(list) != 2 || list[0].Link != "a" || list[1].Link != "b" || list[0].State.Applied != ot(102) || list[1].Err != nil {
		t.Errorf("list: %+v", list)
	}
	// The same without lanes, and with the holder of each link.
	survey := must.Get(Survey(ctx, g, ""))(t)
	if len(survey) != 2 || survey[0].Lease.Record.Holder == "" || survey[1].Lease.Record.Holder != "" || !survey[1].Lease.Free {
		t.Fatalf("survey: %+v", survey)
	}
	for i := range survey {
		list[i].State.Lanes, list[i].State.LanesAnnounced, list[i].State.Barrier, list[i].State.Announced = nil, nil, Position{}, Position{}
		if diff := cmp.Diff(list[i].State, survey[i].State); diff != "" || survey[i].Err != nil {
			t.Errorf("survey of %s: %v %s", survey[i].Link, survey[i].Err, diff)
		}
	}
}

// wantRefused fails the test if a link of three lanes at 102, and lane 1 at 101/4, advances to
// an inconsistent state.
func wantRefused(ctx context.Context, t *testing.T, h *Link) {
	t.Helper()
	another := Source{SetName: "rs0", RBID: 2, Host: "b:1", ReplicaSetID: bson.RawValue{Type: bson.TypeObjectID, Value: []byte("another one.")}}
	must.Fail(t, h.Advance(ctx, progress(103), positions(h), another), ErrOtherSource)
	for what, err := range map[string]error{
		"checkpoint cannot move backwards": h.Advance(ctx, progress(101), positions(h), Source{}),
		"no optime":                        h.Advance(ctx, Progress{}, positions(h), Source{}),
		"would miss":                       h.Advance(ctx, Progress{Applied: ot(103), FetchFrom: ot(104)}, positions(h), Source{}),
		"1 positions for 3":                h.Advance(ctx, progress(103), positions(h)[:1], Source{}),
		"lane cannot move backwards":       h.Lane(1).Move(ctx, h.Lane(1).Session().Begin(), at(101, 4)),
	} {
		if err == nil || !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), "checkpoint: ") {
			t.Errorf("error %v, want %q", err, what)
		}
	}
	start := at(100, AllOps)
	must.Fail(t, h.Advance(ctx, progress(103), []Position{start, at(101, 5), start}, Source{}), lease.ErrRewound)
}

// TestCreateOnce: if several processes create a link concurrently, one of them succeeds.
func TestCreateOnce(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g := &target{Set: mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1})}
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		s := link(t, g)
		wg.Go(func() { errs[i] = s.Create(ctx, first(i+1)) })
	}
	wg.Wait()
	writers := slices.Index(errs, nil) + 1
	made := 0
	for _, err := range errs {
		if err == nil {
			made++
		}
	}
	if made != 1 {
		t.Fatalf("created %d times: %v", made, errs)
	}
	h := must.Get(link(t, g).Acquire(ctx, 0))(t)
	if len(h.State().Lanes) != writers {
		t.Errorf("%d lanes for %d writers", len(h.State().Lanes), writers)
	}
}

// TestCreateAfterDeath: a process that crashes while it creates the link leaves a
// transaction open, for which the next one does not have to wait.
func TestCreateAfterDeath(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g := &target{Set: mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1})}
	dead := &target{Set: g.Set}
	wrote := false
	dead.Intercept(func(cmd mongo.Command) (error, bool) {
		if wrote {
			return &mongo.LostError{Err: errors.New("the process is dead")}, false
		}
		wrote = simcaller.Name(cmd) == "insert"
		return nil, true
	})
	if err := link(t, dead).Create(ctx, first(2)); err == nil || !wrote {
		t.Fatal("it did not die in its transaction:", err)
	}
	start := time.Now()
	must.Succeed(t, link(t, g).Create(ctx, first(3)))
	if took := time.Since(start); took > patience/3 {
		t.Errorf("it took %s", took)
	}
	if h := must.Get(link(t, g).Acquire(ctx, 0))(t); len(h.State().Lanes) != 3 {
		t.Errorf("%d lanes, want 3", len(h.State().Lanes))
	}
}

// TestRemovedLink: a link whose document was removed by hand can be created again, and the
// numbers of the earlier link's sessions do not affect it.
func TestRemovedLink(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, s, h := begun(t, mongosim.Options{Members: 1, Seed: 1}, 4)
	for range 20 {
		h = must.Get(s.Acquire(ctx, h.Term()))(t)
	}
	must.Get(g.Call(ctx, metadata.Delete("replicator", metadata.Links, metadata.ByID("a"))))(t)
	must.Fail(t, h.Advance(ctx, progress(101), positions(h), Source{}), lease.ErrRewound)
	_, err := s.Acquire(ctx, h.Term())
	must.Fail(t, err, ErrNoLink)
	must.Succeed(t, s.Create(ctx, first(2)))
	again := must.Get(s.Acquire(ctx, 0))(t)
	flush(ctx, t, again.Lane(1), at(101, 0), "x")
}

// TestDamaged: documents that this program would not write are errors that describe the
// fault.
func TestDamaged(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, s, _ := begun(t, mongosim.Options{Members: 1, Seed: 1}, 2)
	set := func(collection, id, operator string, change func(dst []byte) []byte) {
		t.Helper()
		must.Get(g.Call(ctx, metadata.Majority(metadata.Update("replicator", collection, metadata.Statement{
			Filter: metadata.ByID(id), Change: func(dst []byte) []byte { return metadata.AppendDoc(dst, operator, change) },
		}))))(t)
	}
	set(metadata.Lanes, "a/1", "$set", func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, "op", "x") })
	_, err := s.Acquire(ctx, 0)
	if e, ok := errors.AsType[*metadata.DamagedError](err); !ok || !strings.Contains(e.What, `lane "a/1": field op`) {
		t.Errorf("a lane without op: %v", err)
	}
	must.Get(g.Call(ctx, metadata.Delete("replicator", metadata.Lanes, metadata.ByID("a/1"))))(t)
	_, err = s.Acquire(ctx, 0)
	if e, ok := errors.AsType[*metadata.DamagedError](err); !ok || !strings.Contains(e.What, `no document "a/1"`) {
		t.Errorf("no lane: %v", err)
	}
	set(metadata.Links, "a", "$unset", func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, "fetchFrom.ts", "") })
	_, _, err = s.Load(ctx)
	if e, ok := errors.AsType[*metadata.DamagedError](err); !ok || !strings.Contains(e.What, "fetchFrom.ts") {
		t.Errorf("no fetchFrom: %v", err)
	}
	set(metadata.Links, "a", "$set", func(dst []byte) []byte { return bsoncore.AppendInt32Element(dst, "version", Version+1) })
	_, err = s.Acquire(ctx, 0)
	if e, ok := errors.AsType[*VersionError](err); !ok || e.Found != Version+1 || !strings.Contains(err.Error(), "use the version") {
		t.Errorf("another format: %v", err)
	}
	set(metadata.Links, "a", "$set", func(dst []byte) []byte { return bsoncore.AppendInt32Element(dst, "version", Version) })
	set(metadata.Links, "a", "$set", func(dst []byte) []byte { return metadata.AppendOpTime(dst, "fetchFrom", ot(90)) })
	set(metadata.Links, "a", "$set", func(dst []byte) []byte { return bsoncore.AppendInt64Element(dst, "term", mongo.MaxPrefix) })
	if _, err = s.Acquire(ctx, 0); err == nil || !strings.Contains(err.Error(), "not between 0 and") {
		t.Errorf("the last term: %v", err)
	}
	if list := must.Get(List(ctx, g, "replicator"))(t); len(list) != 1 || list[0].Err == nil {
		t.Errorf("list: %+v", list)
	}
}

// TestResizePasses: the number of lanes changes although an earlier term had announced operations that it has not completed, if they are not
// after the checkpoint: the next one left their collection out.
func TestResizePasses(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	_, s, h := begun(t, mongosim.Options{Members: 1, Seed: 1}, 3)
	must.Succeed(t, h.Barrier().Announce(ctx, at(103, AllOps), positions(h)))
	must.Succeed(t, h.Lane(1).Announce(ctx, at(109, 3), nil))
	h = must.Get(s.Acquire(ctx, h.Term()))(t)
	if err := h.Resize(ctx, progress(108), 2); err == nil || !strings.Contains(err.Error(), "not completed") {
		t.Errorf("Resize before the end of what was announced: %v", err)
	}
	must.Succeed(t, h.Resize(ctx, progress(110), 2))
	st := must.Get(s.Acquire(ctx, h.Term()))(t).State()
	if len(st.Lanes) != 2 || st.Lanes[1] != at(110, AllOps) || st.LanesAnnounced[1] != (Position{}) {
		t.Errorf("lanes at %v, begun %v", st.Lanes, st.LanesAnnounced)
	}
}

// TestAlone: the next term finds operations that were begun and not ended, until the lane
// has moved past them.
func TestAlone(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, s, h := begun(t, mongosim.Options{Members: 1, Seed: 1}, 2)
	flush(ctx, t, h.Lane(0), at(101, 0), "x")
	if err := h.Barrier().Announce(ctx, at(102, AllOps), nil); err == nil {
		t.Error("a barrier that waits for nobody")
	}
	if err := h.Barrier().Complete(ctx, at(102, AllOps)); err == nil {
		t.Error("ended what was not begun")
	}
	must.Succeed(t, h.Barrier().Announce(ctx, at(102, AllOps), positions(h)))
	must.Succeed(t, h.Barrier().Complete(ctx, at(102, AllOps)))
	if b := h.Barrier(); b.Position() != at(102, AllOps) || b.Announced() != (Position{}) {
		t.Errorf("the barrier is at %s, begun %s", b.Position(), b.Announced())
	}
	must.Succeed(t, h.Barrier().Announce(ctx, at(103, AllOps), positions(h)))
	must.Succeed(t, h.Lane(1).Announce(ctx, at(109, 3), nil))
	if err := h.Resize(ctx, progress(110), 1); err == nil || !strings.Contains(err.Error(), "not completed") {
		t.Errorf("Resize in the middle: %v", err)
	}

	h = must.Get(s.Acquire(ctx, h.Term()))(t)
	st := h.State()
	if st.Announced != at(103, AllOps) || st.LanesAnnounced[1] != at(109, 3) || st.LanesAnnounced[0] != (Position{}) {
		t.Errorf("begun %s, %v", st.Announced, st.LanesAnnounced)
	}
	must.Succeed(t, h.Barrier().Announce(ctx, at(103, AllOps), positions(h)))
	must.Succeed(t, h.Barrier().Complete(ctx, at(103, AllOps)))

	// The lane's batches now end at other operations.
	l := h.Lane(1)
	must.Succeed(t, l.Announce(ctx, at(105, 0), nil))
	must.Succeed(t, l.Complete(ctx, at(105, 0)))
	if l.Announced() != at(109, 3) {
		t.Errorf("begun %s: an earlier term's is forgotten too soon", l.Announced())
	}
	flush(ctx, t, l, at(108, 0), "y")
	if st, _, _ := s.Load(ctx); st.LanesAnnounced[1] != at(109, 3) || l.Announced() != at(109, 3) {
		t.Errorf("begun %s, %s: an earlier term's is forgotten too soon", st.LanesAnnounced[1], l.Announced())
	}
	flush(ctx, t, l, at(110, 0), "z")
	if st, _, _ := s.Load(ctx); st.LanesAnnounced[1] != (Position{}) || l.Announced() != (Position{}) {
		t.Errorf("begun %s, %s behind it", st.LanesAnnounced[1], l.Announced())
	}
	_ = g
}

// TestResize: lanes are added and removed at a watermark, and none keeps an older
// position.
func TestResize(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, s, h := begun(t, mongosim.Options{Members: 1, Seed: 1}, 3)
	now := uint32(101)
	for _, writers := range []int{8, 2, 2, 5} {
		flush(ctx, t, h.Lane(0), at(now, 2), at(now, 2).String())
		flush(ctx, t, h.Barrier(), at(now, 3), fmt.Sprint("b", now))
		if err := h.Resize(ctx, progress(now-1), writers); err == nil || !strings.Contains(err.Error(), "already") {
			t.Fatalf("Resize before what was applied: %v", err)
		}
		must.Succeed(t, h.Resize(ctx, progress(now), writers))
		must.Fail(t, h.Advance(ctx, progress(now), positions(h), Source{}), lease.ErrSpent)
		h = must.Get(s.Acquire(ctx, h.Term()))(t)
		st := h.State()
		want := slices.Repeat([]Position{at(now, AllOps)}, writers)
		if diff := cmp.Diff(want, st.Lanes); diff != "" || st.Writers != writers || st.Barrier != at(now, AllOps) || st.Applied != ot(now) {
			t.Fatalf("%d writers, barrier %s, applied %s, lanes %s", st.Writers, st.Barrier, st.Applied, diff)
		}
		reply := must.Get(g.Call(ctx, metadata.Find("replicator", metadata.Lanes, 100, func(dst []byte) []byte { return dst })))(t)
		if docs := must.Get(metadata.Found(reply))(t); len(docs) != writers+1 {
			t.Errorf("%d lanes for %d writers", len(docs), writers)
		}
		now++
	}
	if err := h.Resize(context.Background(), progress(now), 0); err == nil {
		t.Error("no writers")
	}
}

// TestLostCommit: the lanes of the next term show whether a commit whose reply was lost
// took effect, and the Link that lost it cannot continue.
func TestLostCommit(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, s, h := begun(t, mongosim.Options{Members: 1, Seed: 1}, 1)
	for _, sent := range []bool{true, false} {
		next := h.Lane(0).Position()
		next.OpTime.TS.T++
		txn := open(ctx, t, h.Lane(0), next, next.String())
		g.Intercept(func(cmd mongo.Command) (error, bool) {
			if simcaller.Name(cmd) == "commitTransaction" {
				return errCut, sent
			}
			return nil, false
		})
		_, err := txn.Commit(ctx, false)
		must.Fail(t, err, errCut)
		g.Intercept(nil)
		if sent {
			later := next
			later.OpTime.TS.T++
			err := h.Lane(0).Move(ctx, h.Lane(0).Session().Begin(), later)
			if !errors.Is(err, ErrAhead) {
				t.Errorf("the next move: %v", err)
			}
		}
		h = must.Get(s.Acquire(ctx, h.Term()))(t)
		if got := h.Lane(0).Position() == next; got != sent || has(ctx, t, g, next.String()) != sent {
			t.Errorf("sent: %v; the lane has moved: %v", sent, got)
		}
	}
}
