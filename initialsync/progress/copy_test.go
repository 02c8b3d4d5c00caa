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
	"github.com/oplogrep/replicator/internal/testkit/must"
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
	must.Get(txn.Commit(ctx, false))(t)
	*r = next
}

// openMove makes a flush of a range and leaves it open.
func openMove(ctx context.Context, t tester, l *Lane, r *Range, done bool, id string) (*mongo.Txn, Range) {
	t.Helper()
	txn, next := l.Session().Begin(), moved(*r, done)
	must.Succeed(t, l.MoveRange(ctx, txn, r, &next))
	must.Get(txn.Call(ctx, insert(id)))(t)
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
	must.Succeed(t, err)
	slices.SortFunc(collections, func(a, b Collection) int { return slices.Compare(a.UUID[:], b.UUID[:]) })
	slices.SortFunc(ranges, func(a, b Range) int {
		return cmp.Or(slices.Compare(a.UUID[:], b.UUID[:]), cmp.Compare(a.Index, b.Index))
	})
	return collections, ranges
}

// linkDocument reads the link's document as it is.
func linkDocument(ctx context.Context, t tester, g *target) bson.Raw {
	t.Helper()
	reply := must.Get(g.Call(ctx, metadata.Find("replicator", metadata.Links, 1, metadata.ByID("a"))))(t)
	return must.Get(metadata.Found(reply))(t)[0]
}

// course is a copy on its way, with the documents that it should have.
type course struct {
	*testing.T
	ctx    context.Context
	g      *target
	s      *Store
	h      *Link
	copy   *Copy
	colls  []Collection
	ranges []Range
}

// TestCopy follows a copy from beginning to end.
func TestCopy(t *testing.T) {
	t.Parallel()
	g := &target{Set: mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1})}
	createData(t, g)
	var phases []string
	s := must.Get(checkpoint.New(checkpoint.Config{Target: g, Link: "a", Observer: func(e event.Event) {
		if strings.HasPrefix(e.Message(), "copy") {
			phases = append(phases, fmt.Sprintf("%s %s", e.Message(), e.LogValue()))
		}
	}}))(t)
	c := &course{T: t, ctx: within(t), g: g, s: s}
	c.create()
	c.list()
	c.fill()
	c.finish()
	c.replay()
	if diff := gocmp.Diff([]string{
		"copy in its next phase [link=a number=1 phase=replaying stop=150:1 t1]",
		"copy in its next phase [link=a number=1 phase=done stop=150:1 t1]",
	}, phases); diff != "" {
		t.Error(diff)
	}
}

func (c *course) consistent(want bool) {
	c.Helper()
	if got, ok := linkDocument(c.ctx, c, c.g).Lookup("consistent").BooleanOK(); !ok || got != want {
		c.Errorf("consistent: %v", got)
	}
}

// compare compares the documents of the copy with those it should have.
func (c *course) compare(when string) {
	c.Helper()
	colls, ranges := copies(c.ctx, c, c.h)
	if diff := gocmp.Diff(c.colls, colls) + gocmp.Diff(c.ranges, ranges); diff != "" {
		c.Errorf("%s: %s", when, diff)
	}
}

func (c *course) counts(wantDone, wantTotal int64) {
	c.Helper()
	if done, total, err := Counts(c.ctx, c.s); err != nil || done != wantDone || total != wantTotal {
		c.Errorf("%d of %d collections are done: %v", done, total, err)
	}
}

// create creates the link and acquires its lease.
func (c *course) create() {
	must.Succeed(c, c.s.Create(c.ctx, copyState(2)))
	c.consistent(false)
	c.h = acquired(c)(c.s.Acquire(c.ctx, 0))
	if diff := gocmp.Diff(firstCopy(), c.h.State().Copy); diff != "" {
		c.Errorf("after Create: %s", diff)
	}
	c.h.State().Copy.SyncID.Value[0]++
	c.h.Copy().SyncID.Value[0]++
	if diff := gocmp.Diff(firstCopy(), c.h.Copy()); diff != "" {
		c.Errorf("the copy is not one of its own: %s", diff)
	}
	c.copy = c.h.Copy()
}

// list records the collections.
func (c *course) list() {
	c.copy.Cleared = true
	must.Succeed(c, c.h.UpdateCopy(c.ctx, *c.copy))
	c.colls = []Collection{collection(1), collection(2), {UUID: uuid(3), NS: "d.$x.y", State: Planned}, collection(4)}
	must.Succeed(c, c.h.AddCollections(c.ctx, c.colls[:3]))
	again := collection(1)
	again.Docs = 99
	must.Succeed(c, c.h.AddCollections(c.ctx, []Collection{again, c.colls[3]})) // one is there
	c.copy.Listed = true
	must.Succeed(c, c.h.UpdateCopy(c.ctx, *c.copy))
	must.Succeed(c, c.h.UpdateCopy(c.ctx, *c.copy))
}

// fill copies the first collection in two processes.
func (c *course) fill() {
	l := c.h.Lane(1)
	c.ranges = []Range{part(1, 0), part(1, 1), part(2, 0)}
	c.colls[0].State, c.colls[1].State = Created, Created
	must.Succeed(c, l.SaveCollection(c.ctx, &c.colls[0], c.ranges[:2]))
	must.Succeed(c, l.SaveCollection(c.ctx, &c.colls[1], c.ranges[2:]))
	move(c.ctx, c, l, &c.ranges[0], false, "x")
	must.Succeed(c, l.SaveCollection(c.ctx, &c.colls[0], []Range{part(1, 0), part(1, 1)})) // they are there
	c.compare("half-way")
	if l.Position() != at(100, AllOps) {
		c.Errorf("the lane has moved to %s", l.Position())
	}

	// Another process continues.
	c.h = acquired(c)(c.s.Acquire(c.ctx, c.h.Term()))
	if diff := gocmp.Diff(c.copy, c.h.State().Copy); diff != "" {
		c.Errorf("after Acquire: %s", diff)
	}
	l = c.h.Lane(0)
	move(c.ctx, c, l, &c.ranges[0], true, "y")
	c.colls[0].State = Filled
	must.Fail(c, l.SaveCollection(c.ctx, &c.colls[0], nil), lease.ErrRewound) // range 1 is open
	move(c.ctx, c, l, &c.ranges[1], true, "z")
	c.colls[0].Failed = []FailedIndex{{"a_1", "dup"}, {"b_1", "no"}}
	must.Succeed(c, l.SaveCollection(c.ctx, &c.colls[0], nil))
	c.colls[0].State = Done
	must.Succeed(c, l.SaveCollection(c.ctx, &c.colls[0], nil))
}

// refused tries to begin the replay while something is open.
func (c *course) refused(what string) {
	c.Helper()
	err := c.h.UpdateCopy(c.ctx, *c.copy)
	must.Fail(c, err, lease.ErrRewound)
	if !strings.Contains(err.Error(), what) {
		c.Errorf("error %v, want %q", err, what)
	}
	if st, _, _ := c.s.Load(c.ctx); st.Copy.Phase != Copying || !st.CopiedUntil.IsNull() {
		c.Errorf("a refused change: %+v", st)
	}
}

// setDone changes the document of a range.
func (c *course) setDone(id string, done bool) {
	c.Helper()
	must.Get(c.g.Call(c.ctx, metadata.Majority(metadata.Update("replicator", metadata.Copies, metadata.Statement{
		Filter: metadata.ByID(id), Change: func(dst []byte) []byte {
			return metadata.AppendDoc(dst, "$set", func(dst []byte) []byte { return bsoncore.AppendBooleanElement(dst, "done", done) })
		},
	}))))(c)
}

// finish copies the other collections: the replay begins once all are done, and not before.
func (c *course) finish() {
	l := c.h.Lane(0)
	c.copy.Phase, c.copy.Stop = Replaying, ot(150)
	c.refused("a/1/c/" + hexUUID(uuid(2)))
	c.counts(1, 4)
	c.colls[1].Gone = true // its range stays open
	for i := 1; i < 4; i++ {
		c.colls[i].State = Done
		must.Succeed(c, l.SaveCollection(c.ctx, &c.colls[i], nil))
	}
	c.colls[1].Gone = false
	must.Fail(c, l.SaveCollection(c.ctx, &c.colls[1], nil), lease.ErrRewound)
	c.colls[1].Gone = true
	c.counts(4, 4)
	// A range that is found open again.
	c.setDone(rangeID("a", 1, uuid(1), 1), false)
	c.refused("a/1/r/" + hexUUID(uuid(1)) + "/0001")
	c.setDone(rangeID("a", 1, uuid(1), 1), true)
	c.compare("at the end")
}

// replay applies the oplog up to the stop optime. No entries may be applied before.
func (c *course) replay() {
	h := c.h
	if err := h.Advance(c.ctx, reached(101), positions(h), checkpoint.Source{}); err == nil || !strings.Contains(err.Error(), "a checkpoint cannot move while documents are copied") {
		c.Errorf("Advance while copying: %v", err)
	}
	must.Succeed(c, h.Advance(c.ctx, checkpoint.Progress{Applied: ot(100), FetchFrom: ot(90)}, positions(h), checkpoint.Source{}))
	must.Succeed(c, h.UpdateCopy(c.ctx, *c.copy))
	c.consistent(false)
	st, _, err := c.s.Load(c.ctx)
	must.Succeed(c, err)
	if st.CopiedUntil != ot(150) || st.Applied != ot(100) || st.Copy.Stop != ot(150) {
		c.Errorf("replaying: %+v", st)
	}
	c.copy.Phase = Copied
	if err := h.UpdateCopy(c.ctx, *c.copy); err == nil || !strings.Contains(err.Error(), "the checkpoint is at") {
		c.Errorf("consistent too soon: %v", err)
	}
	flush(c.ctx, c, h.Lane(0), at(150, 0), "log")
	must.Succeed(c, h.Advance(c.ctx, reached(150), positions(h), checkpoint.Source{}))
	must.Succeed(c, h.UpdateCopy(c.ctx, *c.copy))
	c.consistent(true)
	if stop := linkDocument(c.ctx, c, c.g).Lookup("copy", "stop", "ts").String(); !strings.Contains(stop, "150") {
		c.Errorf("consistent at %s", stop)
	}
	if diff := gocmp.Diff(c.copy, h.Copy()); diff != "" {
		c.Error(diff)
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
		return must.Get(checkpoint.New(checkpoint.Config{Target: g, Link: "b"}))(t).Create(ctx, st)
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
	must.Succeed(t, update(func(c *Copy) { c.Cleared, c.Listed = true, true }))
	for _, change := range []func(c *Copy){func(c *Copy) { c.Cleared = false }, func(c *Copy) { c.Listed = false }} {
		if err := update(change); err == nil || !strings.Contains(err.Error(), "does not go back") {
			t.Errorf("back: %v", err)
		}
	}
	must.Succeed(t, update(full))
	for want, change := range map[string]func(c *Copy){
		"does not go back":    func(c *Copy) { c.Phase, c.Stop = Copying, oplog.OpTime{} },
		"stops at 101:1 t1, ": func(c *Copy) { c.Stop = ot(102) },
	} {
		if err := update(change); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}

	// A link without a copy.
	plain := must.Get(checkpoint.New(checkpoint.Config{Target: g, Link: "p"}))(t)
	must.Succeed(t, plain.Create(ctx, first(1)))
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
	must.Succeed(t, h.DropCopies(ctx, 1))
	_ = s
}

// TestBeginCopy: a void copy is replaced by the next one, whatever the positions of the
// lanes.
func TestBeginCopy(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, s, h := begun(t, mongosim.Options{Members: 1, Seed: 1}, 2)
	flush(ctx, t, h.Lane(0), at(130, 1), "x")
	must.Succeed(t, h.Lane(1).Announce(ctx, at(140, 0), nil))
	flush(ctx, t, h.Barrier(), at(135, 1), "y")
	must.Succeed(t, h.Advance(ctx, reached(120), positions(h), checkpoint.Source{}))
	for i, begin := range []uint32{110, 105, 200} {
		number := int64(i + 1)
		c := firstCopy()
		c.Number, c.Begin, c.FetchFrom, c.Why = number, ot(begin), ot(begin-3), "because"
		must.Succeed(t, h.BeginCopy(ctx, *c, int64(begin)*7))
		must.Fail(t, h.UpdateCopy(ctx, *c), lease.ErrSpent)
		h = acquired(t)(s.Acquire(ctx, h.Term()))
		st := h.State()
		start := at(begin, AllOps)
		want := first(2)
		want.Term, want.Source, want.Copy = h.Term(), st.Source, c
		want.Applied, want.AppliedWall, want.FetchFrom, want.CopiedUntil = ot(begin), int64(begin)*7, ot(begin-3), oplog.OpTime{}
		want.Lanes, want.LanesAnnounced, want.Barrier = []Position{start, start}, make([]Position, 2), start
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
		must.Succeed(t, h.AddCollections(ctx, []Collection{collection(1), collection(int(number))}))
		c1 := collection(1)
		must.Succeed(t, h.Lane(0).SaveCollection(ctx, &c1, []Range{part(1, 0)}))
		done := part(1, 0)
		move(ctx, t, h.Lane(0), &done, true, fmt.Sprint("data of ", number))
		// As far as it can come.
		done1, done2 := collection(1), collection(int(number))
		done1.State, done2.State = Done, Done
		must.Succeed(t, h.Lane(1).SaveCollection(ctx, &done1, nil))
		must.Succeed(t, h.Lane(1).SaveCollection(ctx, &done2, nil))
		c.Cleared, c.Listed = true, true
		must.Succeed(t, h.UpdateCopy(ctx, *c))
		c.Phase, c.Stop = Replaying, ot(begin+50)
		must.Succeed(t, h.UpdateCopy(ctx, *c))
		flush(ctx, t, h.Lane(0), at(begin+40, 0), fmt.Sprint("log of ", number))
		must.Succeed(t, h.Lane(1).Announce(ctx, at(begin+45, 0), nil))
		must.Succeed(t, h.Lane(1).Complete(ctx, at(begin+45, 0)))
		must.Succeed(t, h.Advance(ctx, reached(begin+20), positions(h), checkpoint.Source{}))
	}
}
