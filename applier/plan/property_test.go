package plan_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/update"
)

// ids are few, so that histories are long. Some are equal for the server, and some share
// a key without being equal.
var ids = []bson.RawValue{
	value(int32(1)), value(float64(1)), value("a"), value(int64(1<<53 + 1)), value(int64(1 << 53)),
	value(bson.D{{Key: "x", Value: 1}}),
}

func value(v any) bson.RawValue {
	t, b, err := bson.MarshalValue(v)
	if err != nil {
		panic(err)
	}
	return bson.RawValue{Type: t, Value: b}
}

var collections = []*catalog.Collection{
	{NS: "db.a", Type: catalog.TypeCollection},
	{NS: "db.b", Type: catalog.TypeCollection},
	{NS: "db.ordered", Type: catalog.TypeCollection, Ordered: true},
	{NS: "db.direct", Type: catalog.TypeCollection, Direct: true},
	{NS: "db.capped", Type: catalog.TypeCollection, Capped: true, Ordered: true},
}

// history draws operations as a source logs them, and applies them to state.
type history struct {
	t     *rapid.T
	state *target
	ops   []plan.Op
	// collections and ids are those of the history: the fewer, the longer the runs.
	collections []*catalog.Collection
	ids         []bson.RawValue
	// after are the states after each operation, the first before all.
	after []*target
}

// withID returns doc with another _id.
func withID(doc bson.Raw, id bson.RawValue) bson.Raw {
	at, b := bsoncore.ReserveLength(nil)
	b = append(append(b, byte(id.Type)), "_id\x00"...)
	b = append(b, id.Value...)
	for it := rawbson.NewIter(doc); it.Next(); {
		if !it.Is("_id") {
			b = append(append(append(b, byte(it.Type)), it.Key...), 0)
			b = append(b, it.Value...)
		}
	}
	b = append(b, 0)
	return bsoncore.UpdateLength(b, at, int32(len(b)))
}

// newDocument draws a document that a server would store, sometimes one that an insert
// would change.
func (h *history) newDocument(id bson.RawValue) bson.Raw {
	doc := withID(bsongen.Document(h.t), id)
	b := append([]byte(nil), doc[:len(doc)-1]...)
	b = bsoncore.AppendStringElement(b, "pad", "something that makes a delta worth its while, by its size")
	if rapid.IntRange(0, 15).Draw(h.t, "zero") == 0 {
		b = bsoncore.AppendTimestampElement(b, "zero", 0, 0)
	}
	b = append(b, 0)
	return bsoncore.UpdateLength(b, 0, int32(len(b)))
}

// repeats reports whether a document has a field name twice. A pipeline does not preserve
// such a document.
func repeats(doc []byte) bool {
	var seen []string
	for it := rawbson.NewIter(doc); it.Next(); {
		if slices.Contains(seen, it.Name()) {
			return true
		}
		seen = append(seen, it.Name())
		if (it.Type == bson.TypeEmbeddedDocument || it.Type == bson.TypeArray) && repeats(it.Value) {
			return true
		}
	}
	return false
}

func (h *history) next() {
	t := h.t
	coll := rapid.SampledFrom(h.collections).Draw(t, "collection")
	switch rapid.IntRange(0, 7).Draw(t, "mass") {
	case 0:
		h.updateMany(coll)
		return
	case 1:
		h.deleteMany(coll)
		return
	default:
	}
	id := rapid.SampledFrom(h.ids).Draw(t, "id")
	op := plan.Op{Mode: plan.ModeExact, Target: coll.NS, Collection: coll}
	op.NS = "source.x"
	old, exists := h.state.get(coll.NS, id)
	if exists {
		id = idOf(old) // as the source knows it
	}
	op.ID = id
	op.Grouped = rapid.IntRange(0, 9).Draw(t, "grouped") == 0
	switch action := rapid.IntRange(0, 11).Draw(t, "action"); {
	case !exists && op.Grouped && action < 3:
		op.Kind, op.Upsert = oplog.KindUpdate, true
		op.O = o2(t, document(id), id)
	case !exists, op.Grouped && action < 3:
		op.Kind, op.O = oplog.KindInsert, h.newDocument(id)
	case action < 2:
		op.Kind, op.O = oplog.KindDelete, document(id)
	default:
		op.Kind = oplog.KindUpdate
		op.Upsert = rapid.IntRange(0, 9).Draw(t, "upsert") == 0
		op.O = o2(t, old, id)
		if repl := rapid.IntRange(0, 9).Draw(t, "replace"); repl == 0 {
			if repl = rapid.IntRange(0, 1).Draw(t, "retype"); repl == 0 && id.Type == bson.TypeInt32 {
				id = value(float64(1))
			}
			op.O = h.newDocument(id)
		}
	}
	h.add(op)
}

// add applies an operation to the state, and adds it to the log.
func (h *history) add(op plan.Op) {
	t := h.t
	after := h.state.clone()
	if err := after.apply(&op); err != nil {
		t.Fatalf("%s %s: %v", op.Kind, op.O, err)
	}
	if doc, ok := after.get(op.Target, op.ID); ok && (repeats(doc) || len(doc) > 100_000) {
		return
	}
	op.OpTime = oplog.OpTime{TS: bson.Timestamp{T: 1, I: uint32(len(h.ops) + 1)}, Term: 1}
	op.At = checkpoint.Position{OpTime: op.OpTime}
	h.ops = append(h.ops, op)
	h.state = after
	h.after = append(h.after, after)
}

// o2 draws the o of an update of doc.
func o2(t *rapid.T, doc bson.Raw, _ bson.RawValue) bson.Raw {
	if rapid.IntRange(0, 4).Draw(t, "older") == 0 {
		return v1(t, doc)
	}
	diff := bsongen.OperatorDelta(t, doc)
	if rapid.Bool().Draw(t, "computed") {
		// The server logs the update before it moves _id to the front.
		made := bsongen.MoveID(t, bsongen.Mutate(t, doc))
		var ok bool
		if diff, ok = update.Diff(doc, made, update.EnvelopePadding); !ok || len(diff) == rawbson.MinSize {
			return made
		}
	}
	o, err := bson.Marshal(bson.D{{Key: "$v", Value: 2}, {Key: "diff", Value: diff}})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// v1 draws an update in the older form that may have been logged for doc.
func v1(t *rapid.T, doc bson.Raw) bson.Raw {
	names := []string{"a", "b", "c", "pad", "new", "zz", "$x", "a1"}
	set, unset := bson.D{}, bson.D{}
	for _, name := range names {
		e, there := rawbson.Lookup(doc, name)
		switch n := rapid.IntRange(0, 11).Draw(t, "modifier"); {
		case n == 0:
			set = append(set, bson.E{Key: name, Value: bsongen.Value(t, 3)})
		case n == 1 && there:
			unset = append(unset, bson.E{Key: name, Value: true})
		case n < 5 && there && e.Type == bson.TypeEmbeddedDocument:
			set = append(set, bson.E{Key: name + ".in", Value: bsongen.Value(t, 3)})
		case n < 5 && there && e.Type == bson.TypeArray:
			set = append(set, bson.E{Key: name + ".2", Value: bsongen.Value(t, 3)})
		case n == 5 && !there:
			set = append(set, bson.E{Key: name + ".x.y", Value: bsongen.Value(t, 3)})
		}
	}
	if len(set)+len(unset) == 0 {
		set = bson.D{{Key: "pad", Value: "x"}}
	}
	o, err := bson.Marshal(bson.D{{Key: "$v", Value: 1}, {Key: "$set", Value: set}, {Key: "$unset", Value: unset}})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// newHistory draws the state before a history.
func newHistory(t *rapid.T) *history {
	h := &history{t: t, state: newTarget()}
	first := rapid.IntRange(0, len(collections)-1).Draw(t, "first collection")
	h.collections = collections[first:rapid.IntRange(first+1, len(collections)).Draw(t, "collections")]
	h.ids = ids[:rapid.IntRange(1, len(ids)).Draw(t, "ids")]
	for _, coll := range collections {
		for _, id := range ids {
			if _, ok := h.state.get(coll.NS, id); !ok && rapid.IntRange(0, 2).Draw(t, "there") == 0 {
				if doc := h.newDocument(id); !repeats(doc) {
					h.state.put(coll.NS, doc)
				}
			}
		}
	}
	h.after = []*target{h.state}
	return h
}

func options(t *rapid.T) plan.Options {
	return plan.Options{
		InternalApply: rapid.Bool().Draw(t, "internal apply"),
		Coalesce:      rapid.IntRange(0, 3).Draw(t, "coalesce") > 0,
		NoGuards:      rapid.IntRange(0, 3).Draw(t, "no guards") == 0,
		MaxDocs:       rapid.SampledFrom([]int{0, 0, 1, 3}).Draw(t, "max docs"),
		MaxBytes:      rapid.SampledFrom([]int{0, 0, 1, 500}).Draw(t, "max bytes"),
		MinMass:       rapid.SampledFrom([]int{0, 2, 2, 3}).Draw(t, "min mass"),
		MaxMass:       rapid.SampledFrom([]int{0, 2, 3}).Draw(t, "max mass"),
		MaxMassBytes:  rapid.SampledFrom([]int{0, 60}).Draw(t, "max mass bytes"),
	}
}

// checkPlan checks the invariants of a plan.
func checkPlan(t *rapid.T, p plan.Plan, ops []plan.Op, opt plan.Options) {
	seen := make([]int, len(ops))
	last := map[string]int{}
	for _, w := range p.Writes {
		if w.Kind == plan.Modify && (len(w.Docs) != 0 || len(w.Ops) != 1 || len(w.Ops[0]) != 1) ||
			w.Kind != plan.Modify && (len(w.Docs) == 0 || len(w.Docs) != len(w.Ops)) {
			t.Fatalf("a write of %d documents for %v", len(w.Docs), w.Ops)
		}
		size := 0
		for _, doc := range w.Docs {
			size += len(doc)
			if err := rawbson.Validate(doc); err != nil {
				t.Fatal(err)
			}
		}
		if opt.MaxDocs > 0 && len(w.Docs) > opt.MaxDocs || opt.MaxBytes > 0 && len(w.Docs) > 1 && size > opt.MaxBytes {
			t.Fatalf("a write of %d documents and %d bytes", len(w.Docs), size)
		}
		inWrite := map[string]bool{}
		documents := 0
		for k, list := range w.Ops {
			for _, i := range list {
				seen[i]++
				op := &ops[i]
				if op.Target != w.NS {
					t.Fatalf("operation %d on %s in a write to %s", i, op.Target, w.NS)
				}
				if op.Mode == plan.ModeCopied && w.MustMatch && len(list) == 1 || w.Guarded && op.Collection.Direct {
					t.Fatalf("operation %d in a write that must match %v, is guarded %v", i, w.MustMatch, w.Guarded)
				}
			}
			lists := [][]int{list}
			if w.Kind != plan.Modify {
				lists = listsOf(t, w.Kind, w.Docs[k], list, ops, opt)
			}
			documents += len(lists)
			for _, list := range lists {
				checkOrder(t, &w, list, ops, last, inWrite)
			}
		}
		if documents != w.Documents {
			t.Fatalf("%d documents in a write for %d", documents, w.Documents)
		}
	}
	if !slices.IsSorted(p.Dropped) {
		t.Fatal("dropped:", p.Dropped)
	}
	for _, i := range p.Dropped {
		seen[i]++
	}
	for i, n := range seen {
		if n != 1 {
			t.Fatalf("operation %d is there %d times", i, n)
		}
	}
}

// checkOrder checks the order of the operations on one document in a write.
func checkOrder(t *rapid.T, w *plan.Write, list []int, ops []plan.Op, last map[string]int, inWrite map[string]bool) {
	op := &ops[list[0]]
	scope := string(op.Target)
	if !op.Collection.Ordered {
		scope += string(oplog.AppendIDKey(nil, op.ID))
	} else if !w.Ordered && w.Kind != plan.Modify {
		t.Fatal("an unordered write to an ordered namespace")
	}
	if !slices.IsSorted(list) || list[0] < last[scope] {
		t.Fatalf("operations %v after %d", list, last[scope]-1)
	}
	last[scope] = list[len(list)-1] + 1
	if inWrite[scope] && !w.Ordered {
		t.Fatal("an unordered write with two statements on one _id")
	}
	inWrite[scope] = true
}

// difference lists the documents that differ from the expected ones.
func difference(from, got, want *target) string {
	var s strings.Builder
	for _, coll := range collections {
		for _, id := range ids {
			a, _ := got.get(coll.NS, id)
			b, _ := want.get(coll.NS, id)
			if string(a) != string(b) {
				pre, _ := from.get(coll.NS, id)
				fmt.Fprintf(&s, "%s %s\nwas  %s\ngot  %s\nwant %s\n", coll.NS, id, pre, a, b)
			}
		}
	}
	return s.String()
}

func describe(ops []plan.Op) string {
	var s strings.Builder
	for i := range ops {
		op := &ops[i]
		fmt.Fprintf(&s, "%d %s %s _id %s mode %d grouped %v b %v: %s\n", i, op.Kind, op.Target, op.ID, op.Mode, op.Grouped, op.Upsert, op.O)
	}
	return s.String()
}

// build plans ops in parts, like flushes, and runs them.
func build(t *rapid.T, p *plan.Planner, tg *target, ops []plan.Op, opt plan.Options) (slow bool) {
	p.SetOptions(opt)
	for len(ops) > 0 {
		n := rapid.IntRange(1, len(ops)).Draw(t, "flush")
		if rapid.Bool().Draw(t, "all") {
			n = len(ops)
		}
		plan, err := p.Build(ops[:n])
		if err != nil {
			t.Fatal(err)
		}
		checkPlan(t, plan, ops[:n], opt)
		isSlow, err := tg.flush(plan, ops[:n], opt)
		if err != nil {
			t.Fatalf("%v\noptions %+v\noperations\n%s", err, opt, describe(ops[:n]))
		}
		slow = slow || isSlow
		ops = ops[n:]
	}
	return slow
}

func TestExactHistories(t *testing.T) {
	p := plan.NewPlanner(plan.Options{})
	fast, slow := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory(t)
		for range rapid.IntRange(1, 30).Draw(t, "operations") {
			h.next()
		}
		got := h.after[0].clone()
		if build(t, p, got, h.ops, options(t)) {
			slow++
		} else {
			fast++
		}
		if got.String() != h.state.String() {
			t.Fatalf("%s\nby\n%s", difference(h.after[0], got, h.state), describe(h.ops))
		}
	})
	if fast < slow {
		t.Errorf("%d without the slow path, %d with it", fast, slow)
	}
}

// Every document of a copy has the state of some point in time.
func TestCopiedHistories(t *testing.T) {
	p := plan.NewPlanner(plan.Options{})
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory(t)
		for range rapid.IntRange(1, 30).Draw(t, "operations") {
			h.next()
		}
		// The copy ends here; later operations meet exact data.
		end := rapid.IntRange(0, len(h.ops)).Draw(t, "copied until")
		from := newTarget()
		for _, coll := range collections {
			for _, id := range ids {
				state := h.after[rapid.IntRange(0, end).Draw(t, "copied at")]
				if doc, ok := state.get(coll.NS, id); ok {
					from.put(coll.NS, doc)
				}
			}
		}
		ops := slices.Clone(h.ops)
		want := from.clone()
		for i := range ops {
			if i < end {
				ops[i].Mode = plan.ModeCopied
			}
			if i == end {
				wantAt := h.after[end].String()
				if want.String() != wantAt {
					t.Skip("this history does not converge") // the older form need not converge
				}
			}
			if err := want.apply(&ops[i]); err != nil {
				t.Skip("a delta that does not fit: ", err)
			}
			for _, doc := range want.docs[ops[i].Target] {
				if repeats(doc) {
					t.Skip("a pipeline does not keep a field that is there twice")
				}
			}
		}
		got := from.clone()
		build(t, p, got, ops, options(t))
		if got.String() != want.String() {
			t.Fatalf("%s\nby\n%s", difference(from, got, want), describe(ops))
		}
	})
}

// Every operation alone.
func TestOneByOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory(t)
		for range rapid.IntRange(1, 10).Draw(t, "operations") {
			h.next()
		}
		got, opt := h.after[0].clone(), options(t)
		for i := range h.ops {
			w, err := plan.One(h.ops[i], opt)
			if err != nil {
				t.Fatal(err)
			}
			if w.Guarded || len(w.Ops) != 1 || !slices.Equal(w.Ops[0], []int{0}) {
				t.Fatalf("operation %d: %+v", i, w)
			}
			if err := got.run(&w, h.ops[i:i+1]); err != nil {
				t.Fatalf("operation %d: %v", i, err)
			}
			if got.String() != h.after[i+1].String() {
				t.Fatalf("%s\nby\n%s", difference(h.after[i], got, h.after[i+1]), describe(h.ops[:i+1]))
			}
		}
	})
}
