package guard_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

func target(t *testing.T) mongo.Caller {
	t.Helper()
	set := mongosim.StartTest(t, mongosim.Options{Seed: 1, TTLInterval: -1, Moods: mongosim.NoMoods("each command is counted")})
	return client.Open(t, driver.Config{URI: set.URI()})
}

// TestStore: a state is read as it was written; a leader of an earlier term does not overwrite
// that of a later one.
func TestStore(t *testing.T) {
	t.Parallel()
	s := guard.Store{Target: target(t), DB: "replicator", Link: "dr"}
	if st := must.Get(s.Read(t.Context()))(t); st != nil {
		t.Errorf("there is %+v", st)
	}
	w := newWatched(t, guard.State{})
	w.sees(announced("dr", "drop", "shop.a", "", 1))
	w.sees(in(mongo.SessionID("x"), crud("i", "shop.b", "é")))
	w.sees(command("shop", bson.D{{Key: "renameCollection", Value: "shop.x"}, {Key: "to", Value: "shop.y"}}))
	st := w.State()
	st.Term, st.More, st.MoreLast, st.CommandsFrom = 3, 7, time.UnixMilli(7000).UTC(), oplog.NewOpTime(90, 1, 1)
	st.MoreUntil = bson.Timestamp{T: 7, I: 1}
	st.AddPart(guard.Part{Link: "resync-1", Instance: "P"})
	st.AddGap(guard.Gap{From: time.UnixMilli(1).UTC(), To: time.UnixMilli(2).UTC(), Why: "it rolled over"})
	st.Copies(func(ns oplog.Namespace) guard.Copy {
		if ns == "shop.b" {
			return guard.Copy{Asked: time.UnixMilli(4).UTC()}
		}
		return guard.Copy{}
	})
	st.Touched[0].During = time.UnixMilli(3).UTC()
	if !st.Cleared.IsZero() {
		t.Error("cleared")
	}
	must.Succeed(t, s.Write(t.Context(), &st, true))
	if got := must.Get(s.Read(t.Context()))(t); !got.Cleared.IsZero() {
		t.Errorf("cleared up to %v, and nobody has", got.Cleared)
	}
	st.Clear(bson.Timestamp{T: 5, I: 1})
	for _, majority := range []bool{true, false} {
		must.Succeed(t, s.Write(t.Context(), &st, majority))
	}
	got := must.Get(s.Read(t.Context()))(t)
	if diff := cmp.Diff(st, *got, cmpopts.EquateEmpty(), cmp.Comparer(func(a, b bson.RawValue) bool { return a.Equal(b) })); diff != "" {
		t.Error(diff)
	}
	st.Term = 2
	if err := s.Write(t.Context(), &st, true); !errors.Is(err, guard.ErrSuperseded) {
		t.Errorf("a leader of an earlier term: %v", err)
	}
	if at := must.Get(s.Cleared(t.Context()))(t); !at.IsZero() {
		t.Error(at)
	}
	for _, i := range []uint32{9, 7} {
		must.Succeed(t, s.Clear(t.Context(), bson.Timestamp{T: 1000, I: i}))
	}
	if at := must.Get(s.Cleared(t.Context()))(t); at != (bson.Timestamp{T: 1000, I: 9}) {
		t.Error(at)
	}
}

// recorder records the commands to a target, and refuses them.
type recorder struct {
	mongo.Caller
	mu   sync.Mutex
	sent []string
	err  map[string]error
	// hold, if not nil, keeps commands from the target until it is closed; each is received from
	// arrived.
	hold, arrived chan struct{}
}

func (r *recorder) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	first := must2(cmd.Body.IndexErr(0))
	name, _ := first.Value().StringValueOK()
	r.mu.Lock()
	r.sent = append(r.sent, first.Key()+" "+cmd.DB+"."+name)
	if first.Key() == "insert" && cmd.DB == "replicator" {
		// Otherwise a failover could take it back before the command.
		if w, _ := cmd.Body.Lookup("writeConcern", "w").StringValueOK(); w != "majority" {
			r.sent = append(r.sent, "not with a majority")
		}
	}
	err, hold := r.err[first.Key()], r.hold
	r.mu.Unlock()
	if hold != nil && cmd.DB != "replicator" {
		r.arrived <- struct{}{}
		<-hold
	}
	if err != nil && cmd.DB != "replicator" {
		return nil, err
	}
	return r.Caller.Call(ctx, cmd)
}

func must2(e bson.RawElement, _ error) bson.RawElement { return e }

func cmdOf(t *testing.T, db string, d bson.D) mongo.Command {
	return mongo.Command{DB: db, Body: must.Get(bson.Marshal(d))(t)}
}

// TestGate: a command that logs entries without a session is announced before it is sent, and the
// announcement is deleted after an answer; not if the outcome is unknown.
func TestGate(t *testing.T) {
	t.Parallel()
	r := &recorder{Caller: target(t), err: map[string]error{}}
	g := &guard.Gate{Target: r, DB: "replicator", Link: "dr"}
	store := guard.Store{Target: r.Caller, DB: "replicator", Link: "dr"}
	const insert, remove = "insert replicator.commands", "delete replicator.commands"
	for _, c := range []struct {
		name string
		db   string
		cmd  bson.D
		err  error
		sent []string
		open int
	}{
		{"a command", "shop", bson.D{{Key: "create", Value: "a"}}, nil, []string{insert, "create shop.a", remove}, 0},
		{
			"a rename", "admin",
			bson.D{{Key: "renameCollection", Value: "shop.a"}, {Key: "to", Value: "shop.b"}},
			nil,
			[]string{insert, "renameCollection admin.shop.a", remove},
			0,
		},
		{"a read", "shop", bson.D{{Key: "find", Value: "b"}}, nil, []string{"find shop.b"}, 0},
		{"of the metadata", "replicator", bson.D{{Key: "create", Value: "x"}}, nil, []string{"create replicator.x"}, 0},
		{
			"a retryable write", "shop", bson.D{
				{Key: "insert", Value: "b"},
				{Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 1}}}},
				{Key: "lsid", Value: mongo.NewSessionID()},
				{Key: "txnNumber", Value: int64(1)},
			}, nil, []string{"insert shop.b"}, 0,
		},
		{
			"a write without a number", "shop", bson.D{{Key: "delete", Value: "b"}, {Key: "deletes", Value: bson.A{bson.D{
				{Key: "q", Value: bson.D{}}, {Key: "limit", Value: 0},
			}}}}, nil, []string{insert, "delete shop.b", remove}, 0,
		},
		{"refused", "shop", bson.D{{Key: "collMod", Value: "gone"}}, nil, []string{insert, "collMod shop.gone", remove}, 0},
		{"not sent", "shop", bson.D{{Key: "collMod", Value: "b"}}, mongo.ErrTooLate, []string{insert, "collMod shop.b"}, 1},
		{"sent again", "shop", bson.D{{Key: "collMod", Value: "b"}}, nil, []string{"collMod shop.b", remove}, 0},
		{"no reply", "shop", bson.D{{Key: "drop", Value: "b"}}, &mongo.LostError{Host: "h", Err: errors.New("reset")}, []string{insert, "drop shop.b"}, 1},
		{"again", "shop", bson.D{{Key: "drop", Value: "b"}}, nil, []string{"drop shop.b"}, 1},
		{
			"interrupted", "shop",
			bson.D{{Key: "createIndexes", Value: "c"}},
			servererr.New(servererr.Interrupted, "killed"),
			[]string{insert, "createIndexes shop.c"},
			2,
		},
	} {
		r.mu.Lock()
		r.sent, r.err = nil, map[string]error{c.cmd[0].Key: c.err}
		r.mu.Unlock()
		_, err := g.Call(t.Context(), cmdOf(t, c.db, c.cmd))
		if c.err != nil && !errors.Is(err, c.err) {
			t.Errorf("%s: %v", c.name, err)
		}
		if diff := cmp.Diff(c.sent, r.sent); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
		open, _, err := store.Announced(t.Context())
		must.Succeed(t, err)
		if len(open) != c.open {
			t.Errorf("%s: %d are announced: %+v", c.name, len(open), open)
		}
	}
	must.Succeed(t, store.Forget(t.Context(), time.Now()))
	if open, _, _ := store.Announced(t.Context()); len(open) != 2 {
		t.Errorf("%d are left", len(open))
	}
	must.Succeed(t, store.Forget(t.Context(), time.Now().Add(8*24*time.Hour)))
	if open, _, _ := store.Announced(t.Context()); len(open) != 0 {
		t.Errorf("%d are left after a week", len(open))
	}
}

// acknowledged is a target that answers writes.
type acknowledged struct{}

func (acknowledged) Call(context.Context, mongo.Command) (bson.Raw, error) {
	return bson.Marshal(bson.D{{Key: "ok", Value: 1}, {Key: "n", Value: 1}})
}

// TestGateForgotten: a command is announced again once its announcement, whose outcome was unknown, is so
// old that it may have been deleted.
func TestGateForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{Caller: acknowledged{}, err: map[string]error{"drop": &mongo.LostError{Host: "h", Err: errors.New("reset")}}}
		g := &guard.Gate{Target: r, DB: "replicator", Link: "dr"}
		for _, after := range []time.Duration{0, time.Hour, 8 * 24 * time.Hour} {
			time.Sleep(after)
			_, _ = g.Call(t.Context(), cmdOf(t, "shop", bson.D{{Key: "drop", Value: "a"}}))
		}
		const insert, drop = "insert replicator.commands", "drop shop.a"
		if diff := cmp.Diff([]string{insert, drop, drop, insert, drop}, r.sent); diff != "" {
			t.Error(diff)
		}
	})
}

// TestGateShares: commands in flight that are the same have one announcement, which stays until
// the last of them has its answer.
func TestGateShares(t *testing.T) {
	t.Parallel()
	r := &recorder{Caller: target(t), hold: make(chan struct{}), arrived: make(chan struct{})}
	g := &guard.Gate{Target: r, DB: "replicator", Link: "dr"}
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() { _, _ = g.Call(t.Context(), cmdOf(t, "shop", bson.D{{Key: "drop", Value: "a"}})) })
	}
	for range 2 {
		<-r.arrived
	}
	close(r.hold)
	both.Wait()
	slices.Sort(r.sent)
	if diff := cmp.Diff([]string{"delete replicator.commands", "drop shop.a", "drop shop.a", "insert replicator.commands"}, r.sent); diff != "" {
		t.Error(diff)
	}
}

// TestGateGivenUp: a command whose announcement another one that is the same was writing is sent, also if that one is given up, or is too late,
// before the announcement is written.
func TestGateGivenUp(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			sent := []string{}
			first := make(chan struct{})
			g := &guard.Gate{DB: "replicator", Link: "dr", Target: caller(func(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
				name := cmd.Body.Index(0).Key()
				if sent = append(sent, name); len(sent) > 1 {
					return bson.Marshal(bson.D{{Key: "ok", Value: 1}, {Key: "n", Value: 1}})
				}
				close(first)
				if <-ctx.Done(); late {
					return nil, mongo.ErrTooLate
				}
				return nil, context.Cause(ctx)
			})}
			ctx, giveUp := context.WithCancelCause(t.Context())
			var both sync.WaitGroup
			both.Go(func() {
				if _, err := g.Call(ctx, cmdOf(t, "shop", bson.D{{Key: "drop", Value: "a"}})); err == nil {
					t.Error("it was given up, and sent")
				}
			})
			<-first
			both.Go(func() {
				_, err := g.Call(t.Context(), cmdOf(t, "shop", bson.D{{Key: "drop", Value: "a"}}))
				must.Succeed(t, err)
			})
			synctest.Wait()
			giveUp(errors.New("given up"))
			both.Wait()
			if diff := cmp.Diff([]string{"insert", "insert", "drop", "delete"}, sent); diff != "" {
				t.Error(diff)
			}
		})
	}
}

type caller func(context.Context, mongo.Command) (bson.Raw, error)

func (c caller) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) { return c(ctx, cmd) }

// TestDeletes: the target itself deletes from collections that are capped or expire.
func TestDeletes(t *testing.T) {
	t.Parallel()
	c := target(t)
	index := func(coll string, more ...bson.E) bson.D {
		spec := append(bson.D{{Key: "key", Value: bson.D{{Key: "x", Value: 1}}}, {Key: "name", Value: "x_1"}}, more...)
		return bson.D{{Key: "createIndexes", Value: coll}, {Key: "indexes", Value: bson.A{spec}}}
	}
	for _, d := range []bson.D{
		index("plain"), index("expires", bson.E{Key: "expireAfterSeconds", Value: 60}),
		{{Key: "create", Value: "ring"}, {Key: "capped", Value: true}, {Key: "size", Value: 4096}},
		{{Key: "create", Value: "series"}, {Key: "timeseries", Value: bson.D{{Key: "timeField", Value: "t"}}}, {Key: "expireAfterSeconds", Value: 60}},
	} {
		must.Get(c.Call(t.Context(), cmdOf(t, "shop", d)))(t)
	}
	for ns, want := range map[oplog.Namespace]bool{
		"shop.plain": false, "shop.expires": true, "shop.ring": true, "shop.system.buckets.series": true, "shop.gone": true,
	} {
		if got := must.Get(guard.Deletes(t.Context(), c, ns, oplog.UUID{}))(t); got != want {
			t.Errorf("%s: %v", ns, got)
		}
	}
}

// rewritten changes fields of a document of the state, and removes others.
func rewritten(t *testing.T, to mongo.Caller, id string, set bson.D, unset ...string) {
	t.Helper()
	change := bson.D{{Key: "$set", Value: set}}
	if len(unset) > 0 {
		gone := bson.D{}
		for _, name := range unset {
			gone = append(gone, bson.E{Key: name, Value: ""})
		}
		change = append(change, bson.E{Key: "$unset", Value: gone})
	}
	reply := must.Get(to.Call(t.Context(), cmdOf(t, "replicator", bson.D{{Key: "update", Value: "guard"}, {Key: "updates", Value: bson.A{bson.D{
		{Key: "q", Value: bson.D{{Key: "_id", Value: id}}}, {Key: "u", Value: change}, {Key: "upsert", Value: true},
	}}}})))(t)
	if n, _ := reply.Lookup("n").AsInt64OK(); n != 1 {
		t.Fatalf("update %s: %s", id, reply)
	}
}

// TestEarlierRelease: an earlier release has stored times only. Writes cleared then stay cleared, and the
// others can be cleared; that release can read the documents of this one.
func TestEarlierRelease(t *testing.T) {
	t.Parallel()
	s := guard.Store{Target: target(t), DB: "replicator", Link: "dr"}
	w := newWatched(t, guard.State{})
	w.sees(crud("i", "shop.a", 1))
	st := w.State()
	st.Term = 1
	must.Succeed(t, s.Write(t.Context(), &st, true))
	doc := func(id string) bson.Raw {
		reply := must.Get(s.Target.Call(t.Context(), cmdOf(t, "replicator", bson.D{{Key: "find", Value: "guard"}, {Key: "filter", Value: bson.D{{Key: "_id", Value: id}}}})))(t)
		return reply.Lookup("cursor", "firstBatch", "0").Document()
	}
	if at, ok := doc("dr").Lookup("cleared").TimeOK(); !ok || at.Unix() > 0 {
		t.Errorf("nothing is cleared: %v, %v", at, ok)
	}

	// A write found later, in the second of the last one, is not cleared with it.
	examined := bson.Timestamp{T: 100, I: 5}
	rewritten(t, s.Target, "dr", bson.D{
		{Key: "optime.ts", Value: examined}, {Key: "more", Value: int64(1)}, {Key: "moreLast", Value: time.Unix(100, 0)},
	})
	if upTo := must.Get(s.Read(t.Context()))(t).UpTo(); upTo != examined {
		t.Errorf("clears up to %v, and it was examined up to %v", upTo, examined)
	}

	// An operator cleared in the second of the write, before it.
	second := time.Unix(100, 0).UTC()
	old := bson.D{
		{Key: "cleared", Value: second.Add(100 * time.Millisecond)},
		{Key: "more", Value: int64(2)},
		{Key: "moreLast", Value: second.Add(600 * time.Millisecond)},
		{Key: "namespaces.0.last", Value: second.Add(500 * time.Millisecond)},
	}
	rewritten(t, s.Target, "dr", old, "clearedUntil", "moreUntil", "namespaces.0.until")
	rewritten(t, s.Target, "dr/cleared", bson.D{{Key: "at", Value: second.Add(100 * time.Millisecond)}})
	got := must.Get(s.Read(t.Context()))(t)
	if got.Clear(must.Get(s.Cleared(t.Context()))(t)) || len(got.Touched) != 1 || got.More != 2 {
		t.Fatalf("the writes after a clear are forgotten: %+v", got)
	}
	upTo := got.UpTo()
	must.Succeed(t, s.Clear(t.Context(), upTo))
	if !got.Clear(must.Get(s.Cleared(t.Context()))(t)) || got.IsTouched() {
		t.Errorf("they cannot be cleared up to %v: %+v", upTo, got)
	}

	// An earlier release takes the same for cleared as this one, and clears nothing again.
	must.Succeed(t, s.Write(t.Context(), got, true))
	cleared, _ := doc("dr").Lookup("cleared").TimeOK()
	asked, _ := doc("dr/cleared").Lookup("at").TimeOK()
	if want := time.Unix(int64(upTo.T), 999_000_000); !cleared.Equal(want) || !asked.Equal(want) {
		t.Errorf("cleared %v, asked for %v, want %v", cleared, asked, want)
	}

	// It clears more, and knows nothing of the timestamp.
	rewritten(t, s.Target, "dr/cleared", bson.D{{Key: "at", Value: time.Unix(200, 0)}})
	if now := must.Get(s.Cleared(t.Context()))(t); now.T != 200 {
		t.Errorf("cleared up to %v, want 200", now)
	}
}

// TestEarlierReleaseUnexamined: of a state that does not say up to where the oplog was examined, the writes that an earlier
// release has found are not cleared with those before them.
func TestEarlierReleaseUnexamined(t *testing.T) {
	t.Parallel()
	s := guard.Store{Target: target(t), DB: "replicator", Link: "dr"}
	w := newWatched(t, guard.State{})
	w.sees(crud("i", "shop.a", 1))
	st := w.State()
	st.Term, st.At, st.Wall = 1, oplog.OpTime{}, 0
	must.Succeed(t, s.Write(t.Context(), &st, true))
	rewritten(t, s.Target, "dr", bson.D{
		{Key: "more", Value: int64(2)}, {Key: "moreLast", Value: time.Unix(100, 0)}, {Key: "namespaces.0.last", Value: time.Unix(100, 0)},
	}, "moreUntil", "namespaces.0.until")
	got := must.Get(s.Read(t.Context()))(t)
	if got.MoreUntil.T != 100 || got.Touched[0].Until.T != 100 {
		t.Errorf("%+v", got)
	}
	if got.Clear(bson.Timestamp{T: 99}); len(got.Touched) != 1 || got.More != 2 {
		t.Errorf("they are cleared with what was before them: %+v", got)
	}
}
