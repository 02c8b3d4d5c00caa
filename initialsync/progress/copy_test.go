package progress

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// firstCopy is copy 1 of a link that begins after 100.
func firstCopy() *Copy {
	return &Copy{
		Number: 1, Phase: Copying, Host: "a:1", RBID: 7, SyncID: setID, FetchFrom: ot(90), Begin: ot(100),
		Started: time.UnixMilli(1_700_000_000_123).UTC(), Why: "",
	}
}

// copyState is a link that begins with a copy.
func copyState(writers int) checkpoint.State {
	st := first(writers)
	st.CopiedUntil, st.Copy = oplog.OpTime{}, firstCopy()
	return st
}

// copying creates a link that begins with a copy, and begins it.
func copying(t *testing.T, opts mongosim.Options, writers int) (*target, *Store, *Link) {
	t.Helper()
	return start(t, opts, copyState(writers))
}

func uuid(n int) oplog.UUID { return oplog.UUID{14: byte(n >> 8), 15: byte(n)} }

// dollars is a document whose field names a server would not store everywhere.
var dollars = metadata.Document(func(dst []byte) []byte {
	return metadata.AppendDoc(dst, "validator", func(dst []byte) []byte {
		return bsoncore.AppendStringElement(dst, "$expr", "$a.b")
	})
})

// collection is one to copy.
func collection(n int) Collection {
	return Collection{
		UUID: uuid(n), NS: oplog.Namespace(fmt.Sprintf("d.c%d", n)), Options: dollars, IDIndex: dollars,
		Indexes: []bson.Raw{dollars, metadata.Document(metadata.ByID("x"))}, Docs: 3, Bytes: 1 << 40, State: Planned,
	}
}

// part is a range with nothing copied.
func part(n, index int) Range {
	return Range{UUID: uuid(n), Index: index, Spec: dollars}
}

// moved returns a range after a move.
func moved(r Range, done bool) Range {
	r.Docs, r.Bytes, r.Done = r.Docs+2, r.Bytes+200, done
	r.At = metadata.Document(func(dst []byte) []byte { return bsoncore.AppendInt64Element(dst, "$recordId", r.Docs) })
	return r
}

// move makes a flush of a range.
func move(ctx context.Context, t tester, l *Lane, r *Range, done bool, id string) {
	t.Helper()
	txn, next := openMove(ctx, t, l, r, done, id)
	must[bson.Raw](t)(txn.Commit(ctx, false))
	*r = next
}

// openMove makes a flush of a range and leaves it open.
func openMove(ctx context.Context, t tester, l *Lane, r *Range, done bool, id string) (*mongo.Txn, Range) {
	t.Helper()
	txn, next := l.Session().Begin(), moved(*r, done)
	succeed(t, l.MoveRange(ctx, txn, r, &next))
	must[bson.Raw](t)(txn.Call(ctx, insert(id)))
	return txn, next
}

// tryMove finds out whether a range can be moved.
func tryMove(ctx context.Context, l *Lane, r Range) error {
	txn, next := l.Session().Begin(), moved(r, false)
	defer txn.Abort(ctx)
	return l.MoveRange(ctx, txn, &r, &next)
}

// copies reads the copy, in order.
func copies(ctx context.Context, t tester, h *Link) ([]Collection, []Range) {
	t.Helper()
	collections, ranges, err := h.Copies(ctx)
	succeed(t, err)
	slices.SortFunc(collections, func(a, b Collection) int { return slices.Compare(a.UUID[:], b.UUID[:]) })
	slices.SortFunc(ranges, func(a, b Range) int {
		return cmp.Or(slices.Compare(a.UUID[:], b.UUID[:]), cmp.Compare(a.Index, b.Index))
	})
	return collections, ranges
}

// linkDocument reads the link's document as it is.
func linkDocument(ctx context.Context, t tester, g *target) bson.Raw {
	t.Helper()
	reply := must[bson.Raw](t)(g.Call(ctx, metadata.Find("replicator", metadata.Links, 1, metadata.ByID("a"))))
	return must[[]bson.Raw](t)(metadata.Found(reply))[0]
}

// TestCopy follows a copy from beginning to end.
func TestCopy(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g := &target{set: mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1})}
	createData(t, g)
	var events []string
	s := must[*Store](t)(checkpoint.New(checkpoint.Config{Target: g, Link: "a", Observer: func(e event.Event) {
		events = append(events, fmt.Sprintf("%s %s", e.Message(), e.LogValue()))
	}}))
	succeed(t, s.Create(ctx, copyState(2)))
	consistent := func(want bool) {
		t.Helper()
		if got, ok := linkDocument(ctx, t, g).Lookup("consistent").BooleanOK(); !ok || got != want {
			t.Errorf("consistent: %v", got)
		}
	}
	consistent(false)
	h := acquired(t)(s.Acquire(ctx, 0))
	if diff := gocmp.Diff(firstCopy(), h.State().Copy); diff != "" {
		t.Errorf("after Create: %s", diff)
	}
	h.State().Copy.SyncID.Value[0]++
	h.Copy().SyncID.Value[0]++
	if diff := gocmp.Diff(firstCopy(), h.Copy()); diff != "" {
		t.Errorf("the copy is not one of its own: %s", diff)
	}

	c := h.Copy()
	c.Cleared = true
	succeed(t, h.UpdateCopy(ctx, *c))
	colls := []Collection{collection(1), collection(2), {UUID: uuid(3), NS: "d.$x.y", State: Planned}}
	succeed(t, h.AddCollections(ctx, colls))
	again := collection(1)
	again.Docs = 99
	colls = append(colls, collection(4))
	succeed(t, h.AddCollections(ctx, []Collection{again, colls[3]})) // one is there
	c.Listed = true
	succeed(t, h.UpdateCopy(ctx, *c))
	succeed(t, h.UpdateCopy(ctx, *c))

	l := h.Lane(1)
	ranges := []Range{part(1, 0), part(1, 1), part(2, 0)}
	colls[0].State, colls[1].State = Created, Created
	succeed(t, l.SaveCollection(ctx, &colls[0], ranges[:2]))
	succeed(t, l.SaveCollection(ctx, &colls[1], ranges[2:]))
	move(ctx, t, l, &ranges[0], false, "x")
	succeed(t, l.SaveCollection(ctx, &colls[0], []Range{part(1, 0), part(1, 1)})) // they are there
	gotColls, gotRanges := copies(ctx, t, h)
	if diff := gocmp.Diff(colls, gotColls) + gocmp.Diff(ranges, gotRanges); diff != "" {
		t.Errorf("half-way: %s", diff)
	}
	if l.Position() != at(100, AllOps) {
		t.Errorf("the lane has moved to %s", l.Position())
	}

	// Another process continues.
	h = acquired(t)(s.Acquire(ctx, h.Term()))
	if diff := gocmp.Diff(c, h.State().Copy); diff != "" {
		t.Errorf("after Begin: %s", diff)
	}
	l = h.Lane(0)
	move(ctx, t, l, &ranges[0], true, "y")
	colls[0].State = Filled
	wantError(t, l.SaveCollection(ctx, &colls[0], nil), lease.ErrRewound) // range 1 is open
	move(ctx, t, l, &ranges[1], true, "z")
	colls[0].Failed = []FailedIndex{{"a_1", "dup"}, {"b_1", "no"}}
	succeed(t, l.SaveCollection(ctx, &colls[0], nil))
	colls[0].State = Done
	succeed(t, l.SaveCollection(ctx, &colls[0], nil))

	c.Phase, c.Stop = Replaying, ot(150)
	refused := func(what string) {
		t.Helper()
		err := h.UpdateCopy(ctx, *c)
		wantError(t, err, lease.ErrRewound)
		if !strings.Contains(err.Error(), what) {
			t.Errorf("error %v, want %q", err, what)
		}
		if st, _, _ := s.Load(ctx); st.Copy.Phase != Copying || !st.CopiedUntil.IsNull() {
			t.Errorf("a refused Change: %+v", st)
		}
	}
	counts := func(wantDone, wantTotal int64) {
		t.Helper()
		if done, total, err := Counts(ctx, s); err != nil || done != wantDone || total != wantTotal {
			t.Errorf("%d of %d collections are done: %v", done, total, err)
		}
	}
	refused("a/1/c/" + hexUUID(uuid(2)))
	counts(1, 4)
	colls[1].State, colls[1].Gone = Done, true // its range stays open
	for i := 1; i < 4; i++ {
		colls[i].State = Done
		succeed(t, l.SaveCollection(ctx, &colls[i], nil))
	}
	colls[1].Gone = false
	err := l.SaveCollection(ctx, &colls[1], nil)
	wantError(t, err, lease.ErrRewound)
	colls[1].Gone = true
	counts(4, 4)
	// A range that is found open again.
	set := func(id string, done bool) {
		t.Helper()
		must[bson.Raw](t)(g.Call(ctx, metadata.Majority(metadata.Update("replicator", metadata.Copies, metadata.Statement{
			Filter: metadata.ByID(id), Change: func(dst []byte) []byte {
				return metadata.AppendDoc(dst, "$set", func(dst []byte) []byte { return bsoncore.AppendBooleanElement(dst, "done", done) })
			},
		}))))
	}
	set(rangeID("a", 1, uuid(1), 1), false)
	refused("a/1/r/" + hexUUID(uuid(1)) + "/0001")
	set(rangeID("a", 1, uuid(1), 1), true)
	gotColls, gotRanges = copies(ctx, t, h)
	if diff := gocmp.Diff(colls, gotColls) + gocmp.Diff(ranges, gotRanges); diff != "" {
		t.Errorf("at the end: %s", diff)
	}

	// No entries may be applied before.
	if err := h.Advance(ctx, reached(101), positions(h), checkpoint.Source{}); err == nil || !strings.Contains(err.Error(), "stays where it is") {
		t.Errorf("Advance while copying: %v", err)
	}
	succeed(t, h.Advance(ctx, checkpoint.Progress{Applied: ot(100), FetchFrom: ot(90)}, positions(h), checkpoint.Source{}))
	succeed(t, h.UpdateCopy(ctx, *c))
	consistent(false)
	st, _, err := s.Load(ctx)
	succeed(t, err)
	if st.CopiedUntil != ot(150) || st.Applied != ot(100) || st.Copy.Stop != ot(150) {
		t.Errorf("replaying: %+v", st)
	}
	c.Phase = Copied
	if err := h.UpdateCopy(ctx, *c); err == nil || !strings.Contains(err.Error(), "the checkpoint is at") {
		t.Errorf("consistent too soon: %v", err)
	}
	flush(ctx, t, l, at(150, 0), "log")
	succeed(t, h.Advance(ctx, reached(150), positions(h), checkpoint.Source{}))
	succeed(t, h.UpdateCopy(ctx, *c))
	consistent(true)
	if stop := linkDocument(ctx, t, g).Lookup("copy", "stop", "ts").String(); !strings.Contains(stop, "150") {
		t.Errorf("consistent at %s", stop)
	}
	if diff := gocmp.Diff(c, h.Copy()); diff != "" {
		t.Error(diff)
	}
	var phases []string
	for _, e := range events {
		if strings.HasPrefix(e, "copy") {
			phases = append(phases, e)
		}
	}
	if diff := gocmp.Diff([]string{
		"copy in its next phase [link=a number=1 phase=replaying stop=150:1 t1]",
		"copy in its next phase [link=a number=1 phase=done stop=150:1 t1]",
	}, phases); diff != "" {
		t.Error(diff)
	}
}

// TestCopyRefuses: inconsistent documents are refused, and change nothing.
func TestCopyRefuses(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, s, h := copying(t, mongosim.Options{Members: 1, Seed: 1}, 1)
	before := linkDocument(ctx, t, g)
	update := func(change func(c *Copy)) error {
		c := h.Copy()
		change(c)
		return h.UpdateCopy(ctx, *c)
	}
	begin := func(change func(c *Copy)) error {
		c := firstCopy()
		c.Number = 2
		change(c)
		return h.BeginCopy(ctx, *c, 1)
	}
	create := func(change func(st *checkpoint.State)) error {
		st := copyState(1)
		change(&st)
		return must[*Store](t)(checkpoint.New(checkpoint.Config{Target: g, Link: "b"})).Create(ctx, st)
	}
	full := func(c *Copy) { c.Phase, c.Stop, c.Cleared, c.Listed = Replaying, ot(101), true, true }
	r, other, done := part(1, 0), part(1, 1), part(1, 0)
	done.Done = true
	c := collection(1)
	for _, tt := range []struct {
		err  error
		want string
	}{
		{update(func(c *Copy) { c.Number = 2 }), "is at copy 1"},
		{update(func(c *Copy) { c.Phase = "x" }), `phase "x"`},
		{update(func(c *Copy) { full(c); c.Phase = Copied }), `it is in phase "copying"`},
		{update(func(c *Copy) { full(c); c.Listed = false }), "not cleared, or"},
		{update(func(c *Copy) { full(c); c.Stop = oplog.OpTime{} }), "to stop at"},
		{update(func(c *Copy) { full(c); c.Stop = ot(99) }), "it stops at 99:1"},
		{update(func(c *Copy) { c.Stop = ot(200) }), "to stop at"},
		{begin(func(c *Copy) { c.Number = 1 }), "at copy 1 already"},
		{begin(func(c *Copy) { c.Number = 0 }), "count from 1"},
		{begin(func(c *Copy) { c.Listed = true }), "nothing done"},
		{begin(func(c *Copy) { c.FetchFrom = ot(101) }), "would miss"},
		{begin(func(c *Copy) { c.Begin = oplog.OpTime{} }), "no optime"},
		{h.DropCopies(ctx, 2), "is at copy 1"},
		{create(func(st *checkpoint.State) { st.Copy.Number = 0 }), "count from 1"},
		{create(func(st *checkpoint.State) { st.Copy.Begin = ot(101) }), "for a link after"},
		{create(func(st *checkpoint.State) { st.CopiedUntil = ot(101) }), "has not been begun"},
		{h.Lane(0).MoveRange(ctx, h.Lane(0).Session().Begin(), &r, &other), "it becomes range 1"},
		{h.Lane(0).MoveRange(ctx, h.Lane(0).Session().Begin(), &done, &done), "it is done"},
		{h.Lane(0).SaveCollection(ctx, &c, []Range{part(2, 0)}), "range 0 is of"},
	} {
		if tt.err == nil || !strings.Contains(tt.err.Error(), tt.want) || !strings.Contains(tt.err.Error(), "checkpoint: ") && !strings.Contains(tt.err.Error(), "progress: ") {
			t.Errorf("error %v, want %q", tt.err, tt.want)
		}
	}
	if diff := gocmp.Diff(before, linkDocument(ctx, t, g)); diff != "" {
		t.Errorf("something was changed: %s", diff)
	}
	succeed(t, update(func(c *Copy) { c.Cleared, c.Listed = true, true }))
	for _, change := range []func(c *Copy){func(c *Copy) { c.Cleared = false }, func(c *Copy) { c.Listed = false }} {
		if err := update(change); err == nil || !strings.Contains(err.Error(), "does not go back") {
			t.Errorf("back: %v", err)
		}
	}
	succeed(t, update(full))
	for want, change := range map[string]func(c *Copy){
		"does not go back":    func(c *Copy) { c.Phase, c.Stop = Copying, oplog.OpTime{} },
		"stops at 101:1 t1, ": func(c *Copy) { c.Stop = ot(102) },
	} {
		if err := update(change); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}

	// A link without a copy.
	plain := must[*Store](t)(checkpoint.New(checkpoint.Config{Target: g, Link: "p"}))
	succeed(t, plain.Create(ctx, first(1)))
	h = acquired(t)(plain.Acquire(ctx, 0))
	_, _, err := h.Copies(ctx)
	for what, err := range map[string]error{
		"UpdateCopy": h.UpdateCopy(ctx, *firstCopy()), "AddCollections": h.AddCollections(ctx, nil), "Copies": err,
		"SaveCollection": h.Lane(0).SaveCollection(ctx, &c, nil), "MoveRange": tryMove(ctx, h.Lane(0), r),
	} {
		if !errors.Is(err, checkpoint.ErrNoCopy) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if h.Copy() != nil {
		t.Error("there is a copy")
	}
	if done, total, err := Counts(ctx, plain); err != nil || done+total != 0 {
		t.Errorf("%d of %d collections are done: %v", done, total, err)
	}
	succeed(t, h.DropCopies(ctx, 1))
	_ = s
}

// TestBeginCopy: a void copy is replaced by the next one, whatever the positions of the
// lanes.
func TestBeginCopy(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, s, h := begun(t, mongosim.Options{Members: 1, Seed: 1}, 2)
	flush(ctx, t, h.Lane(0), at(130, 1), "x")
	succeed(t, h.Lane(1).BeginAlone(ctx, at(140, 0), nil))
	flush(ctx, t, h.Barrier(), at(135, 1), "y")
	succeed(t, h.Advance(ctx, reached(120), positions(h), checkpoint.Source{}))
	for i, begin := range []uint32{110, 105, 200} {
		number := int64(i + 1)
		c := firstCopy()
		c.Number, c.Begin, c.FetchFrom, c.Why = number, ot(begin), ot(begin-3), "because"
		succeed(t, h.BeginCopy(ctx, *c, int64(begin)*7))
		wantError(t, h.UpdateCopy(ctx, *c), lease.ErrSpent)
		h = acquired(t)(s.Acquire(ctx, h.Term()))
		st := h.State()
		start := at(begin, AllOps)
		want := first(2)
		want.Term, want.Source, want.Copy = h.Term(), st.Source, c
		want.Applied, want.AppliedWall, want.FetchFrom, want.CopiedUntil = ot(begin), int64(begin)*7, ot(begin-3), oplog.OpTime{}
		want.Lanes, want.LanesBegun, want.Barrier = []Position{start, start}, make([]Position, 2), start
		if diff := gocmp.Diff(want, st); diff != "" {
			t.Fatalf("copy %d: %s", number, diff)
		}
		if got, ok := linkDocument(ctx, t, g).Lookup("consistent").BooleanOK(); !ok || got {
			t.Error("a new copy is consistent")
		}
		colls, ranges := copies(ctx, t, h)
		if len(colls)+len(ranges) != 0 {
			t.Errorf("copy %d begins with %d collections and %d ranges", number, len(colls), len(ranges))
		}
		succeed(t, h.AddCollections(ctx, []Collection{collection(1), collection(int(number))}))
		c1 := collection(1)
		succeed(t, h.Lane(0).SaveCollection(ctx, &c1, []Range{part(1, 0)}))
		done := part(1, 0)
		move(ctx, t, h.Lane(0), &done, true, fmt.Sprint("data of ", number))
		// As far as it can come.
		done1, done2 := collection(1), collection(int(number))
		done1.State, done2.State = Done, Done
		succeed(t, h.Lane(1).SaveCollection(ctx, &done1, nil))
		succeed(t, h.Lane(1).SaveCollection(ctx, &done2, nil))
		c.Cleared, c.Listed = true, true
		succeed(t, h.UpdateCopy(ctx, *c))
		c.Phase, c.Stop = Replaying, ot(begin+50)
		succeed(t, h.UpdateCopy(ctx, *c))
		flush(ctx, t, h.Lane(0), at(begin+40, 0), fmt.Sprint("log of ", number))
		succeed(t, h.Lane(1).BeginAlone(ctx, at(begin+45, 0), nil))
		succeed(t, h.Lane(1).EndAlone(ctx, at(begin+45, 0)))
		succeed(t, h.Advance(ctx, reached(begin+20), positions(h), checkpoint.Source{}))
	}
}
