package plan_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/oplog"
)

// updateMany draws what a source logs for an updateMany: the same change of each document.
func (h *history) updateMany(coll *catalog.Collection) {
	name := rapid.SampledFrom([]string{"pad", "m", "x.y"}).Draw(h.t, "field")
	set := rapid.IntRange(0, 3).Draw(h.t, "set") > 0
	older := rapid.IntRange(0, 3).Draw(h.t, "older") == 0 && !strings.Contains(name, ".")
	mode := rapid.IntRange(0, 19).Draw(h.t, "upsert") == 0
	to := fmt.Sprintf("a value that is long enough for a delta %d", rapid.IntRange(0, 2).Draw(h.t, "value"))
	for _, id := range h.ids {
		doc, ok := h.state.get(coll.NS, id)
		if !ok {
			continue
		}
		old, has := rawbson.Lookup(doc, name)
		var section, operator string
		var v any = to
		switch {
		case set && !has:
			section, operator = "i", "$set"
		case set:
			if text, _ := old.Text(); text == to {
				continue
			}
			section, operator = "u", "$set"
		case has:
			section, operator, v = "d", "$unset", false
		default:
			continue
		}
		o := bson.D{{Key: "$v", Value: 2}, {Key: "diff", Value: bson.D{{Key: section, Value: bson.D{{Key: name, Value: v}}}}}}
		if older {
			o = bson.D{{Key: "$v", Value: 1}, {Key: operator, Value: bson.D{{Key: name, Value: v}}}}
		}
		raw, err := bson.Marshal(o)
		if err != nil {
			h.t.Fatal(err)
		}
		op := plan.Op{Mode: plan.ModeExact, Target: coll.NS, Collection: coll}
		op.NS, op.Kind, op.ID, op.O, op.Upsert = "source.x", oplog.KindUpdate, idOf(doc), raw, mode
		h.add(op)
	}
}

// deleteMany draws what a source logs for a deleteMany.
func (h *history) deleteMany(coll *catalog.Collection) {
	for _, id := range h.ids {
		doc, ok := h.state.get(coll.NS, id)
		if !ok || rapid.IntRange(0, 3).Draw(h.t, "left") == 0 {
			continue
		}
		op := plan.Op{Mode: plan.ModeExact, Target: coll.NS, Collection: coll}
		op.NS, op.Kind, op.ID, op.O = "source.x", oplog.KindDelete, idOf(doc), document(idOf(doc))
		h.add(op)
	}
}

// listsOf splits the operations of a statement by their documents, if it has a list of
// _ids, and checks that list.
func listsOf(t *rapid.T, kind plan.Kind, statement bson.Raw, list []int, ops []plan.Op, opt plan.Options) [][]int {
	many, _ := rawbson.Lookup(statement, "multi")
	if isMany := many.Truth(); kind == plan.Insert || kind == plan.Update && !isMany {
		return [][]int{list}
	}
	if kind == plan.Delete && statement.Lookup("limit").Int32() == 1 {
		return [][]int{list}
	}
	values, err := statement.Lookup("q", "_id", "$in").Array().Values()
	most := 500
	if opt.MaxMass > 0 {
		most = opt.MaxMass
	}
	if err != nil || len(values) < 2 || len(values) > most {
		t.Fatalf("a list of %d: %v", len(values), err)
	}
	var lists [][]int
	keys := map[string]int{}
	for _, i := range list {
		op := &ops[i]
		if c := op.Collection; c.Ordered || c.Direct || kind == plan.Update && op.Upsert {
			t.Fatalf("operation %d is in a list", i)
		}
		key := string(oplog.AppendIDKey(nil, op.ID))
		n, ok := keys[key]
		if !ok {
			n = len(lists)
			keys[key] = n
			lists = append(lists, nil)
			if v := values[n]; v.Type != op.ID.Type || string(v.Value) != string(op.ID.Value) {
				t.Fatalf("the list has %s, operation %d has %s", v, i, op.ID)
			}
		}
		lists[n] = append(lists[n], i)
	}
	if len(lists) != len(values) {
		t.Fatalf("a list of %d for %d documents", len(values), len(lists))
	}
	return lists
}

func deleteOp(id any) plan.Op {
	op := plan.Op{Mode: plan.ModeExact, Target: "db.a", Collection: collections[0]}
	op.NS, op.Kind, op.ID = "db.a", oplog.KindDelete, value(id)
	op.O = document(op.ID)
	return op
}

func setOp(tb testing.TB, id any, o string) plan.Op {
	op := plan.Op{Mode: plan.ModeExact, Target: "db.a", Collection: collections[0]}
	op.NS, op.Kind, op.ID, op.O = "db.a", oplog.KindUpdate, value(id), bsongen.FromJSON(tb, o)
	return op
}

const (
	setX   = `{"$v":2,"diff":{"u":{"x":1}}}`
	setY   = `{"$v":2,"diff":{"u":{"y":1}}}`
	newX   = `{"$v":2,"diff":{"i":{"x":1}}}`
	shrink = `{"$v":2,"diff":{"sl":{"a":true,"l":2}}}`
)

// describeWrites lists the statements of a plan, one in a line.
func describeWrites(p plan.Plan) string {
	var s strings.Builder
	for _, w := range p.Writes {
		for i, doc := range w.Docs {
			q, u := doc.Lookup("q"), doc.Lookup("u")
			multi, _ := rawbson.Lookup(doc, "multi")
			fmt.Fprintf(&s, "%s u=%s multi=%v ops=%v\n", q, u, multi.Truth(), w.Ops[i])
		}
	}
	return s.String()
}

// TestMass has the statements that become one, and those that must not.
func TestMass(t *testing.T) {
	all := func(o string, ids ...any) []plan.Op {
		var ops []plan.Op
		for _, id := range ids {
			ops = append(ops, setOp(t, id, o))
		}
		return ops
	}
	none := func(ids ...any) []plan.Op {
		var ops []plan.Op
		for _, id := range ids {
			ops = append(ops, deleteOp(id))
		}
		return ops
	}
	on := func(c *catalog.Collection, ops []plan.Op) []plan.Op {
		for i := range ops {
			ops[i].Collection, ops[i].Target = c, c.NS
		}
		return ops
	}
	clustered := bsongen.FromJSON(t, `{"clusteredIndex":true}`)
	collated := bsongen.FromJSON(t, `{"collation":{"locale":"en","strength":2}}`)
	regex, sub := bson.Regex{Pattern: "a"}, bson.D{{Key: "a", Value: 1}}
	upserts := all(setX, 1, 2)
	upserts[0].Upsert, upserts[1].Upsert = true, true
	for _, tc := range []struct {
		name  string
		ops   []plan.Op
		opt   plan.Options
		lists []int
	}{
		{name: "equal", ops: all(setX, 1, 2, 3), lists: []int{3}},
		{name: "types", ops: all(setX, int64(1), 2.5, "a", true, bson.ObjectID{1}, bson.DateTime(1), bson.Timestamp{T: 1}, bson.Binary{Data: []byte{1}}), lists: []int{8}},
		{name: "guarded", ops: all(newX, 1, 2, 3), lists: []int{3}},
		{name: "pipeline", ops: all(shrink, 1, 2, 3), lists: []int{3}},
		{name: "internal stage", ops: all(shrink, 1, 2, 3), opt: plan.Options{InternalApply: true}, lists: []int{1, 1, 1}},
		{name: "different", ops: append(all(setX, 1, 2), all(setY, 3, 4)...), lists: []int{2, 2}},
		{name: "alternating", ops: []plan.Op{setOp(t, 1, setX), setOp(t, 2, setY), setOp(t, 3, setX), setOp(t, 4, setY)}, lists: []int{2, 2}},
		{name: "after another", ops: []plan.Op{setOp(t, 1, setY), setOp(t, 2, setX), setOp(t, 1, setX), setOp(t, 3, setX)}, lists: []int{1, 2, 1}},
		{name: "two collections", ops: append(all(setX, 1, 2), on(collections[1], all(setX, 1, 2))...), lists: []int{2, 2}},
		{name: "too few", ops: all(setX, 1, 2, 3), opt: plan.Options{MinMass: 4}, lists: []int{1, 1, 1}},
		{name: "parts", ops: all(setX, 1, 2, 3, 4, 5, 6, 7), opt: plan.Options{MaxMass: 3}, lists: []int{3, 3, 1}},
		{name: "bytes", ops: all(setX, "long long long", "long long longer", "b"), opt: plan.Options{MaxMassBytes: 75}, lists: []int{2, 1}},
		{name: "upsert", ops: upserts, lists: []int{1, 1}},
		{name: "regular expression, null, document, NaN", ops: all(setX, 1, 2, regex, bson.Null{}, sub, math.NaN(), bson.MinKey{}, bson.Symbol("a")), lists: []int{2, 1, 1, 1, 1, 1, 1}},
		{name: "equal ids", ops: []plan.Op{setOp(t, 1, setX), setOp(t, 2, setX), setOp(t, 1.0, setX)}, lists: []int{2, 1}},
		{name: "ordered", ops: on(collections[2], all(setX, 1, 2)), lists: []int{1, 1}},
		{name: "direct", ops: on(collections[3], all(setX, 1, 2)), lists: []int{1, 1}},
		{name: "capped", ops: on(collections[4], all(setX, 1, 2)), lists: []int{1, 1}},
		{name: "clustered", ops: on(&catalog.Collection{NS: "db.c", Options: clustered}, all(setX, 1, 2)), lists: []int{1, 1}},
		{name: "collated", ops: on(&catalog.Collection{NS: "db.c", Options: collated}, all(setX, "a", "A")), lists: []int{1, 1}},
		{name: "two collections in turns", ops: slices.Concat(all(setX, 1), on(collections[1], all(setX, 1)), all(setX, 2), on(collections[1], all(setX, 2))), lists: []int{2, 2}},
		{name: "deletes, two collections in turns", ops: slices.Concat(none(1), on(collections[1], none(1)), none(2), on(collections[1], none(2))), lists: []int{2, 2}},
		{name: "deletes", ops: none(1, 2, 3), lists: []int{3}},
		{name: "deletes, parts", ops: none(1, 2, 3, 4, 5), opt: plan.Options{MaxMass: 3}, lists: []int{3, 2}},
		{name: "deletes, bytes", ops: none("long long long", "long long longer", "b"), opt: plan.Options{MaxMassBytes: 75}, lists: []int{2, 1}},
		{name: "deletes, too few", ops: none(1, 2), opt: plan.Options{MinMass: 3}, lists: []int{1, 1}},
		{name: "deletes of a regular expression, null, document", ops: none(1, 2, regex, bson.Null{}, sub), lists: []int{2, 1, 1, 1}},
		{name: "deletes of equal ids", ops: none(1, 2, 1.0), lists: []int{2, 1}},
		{name: "deletes after updates", ops: append(all(setX, 1, 2), none(1, 2)...), lists: []int{2, 2}},
		{name: "deletes, ordered", ops: on(collections[2], none(1, 2)), lists: []int{1, 1}},
		{name: "deletes, direct", ops: on(collections[3], none(1, 2)), lists: []int{1, 1}},
		{name: "deletes, clustered", ops: on(&catalog.Collection{NS: "db.c", Options: clustered}, none(1, 2)), lists: []int{1, 1}},
		{name: "deletes, collated", ops: on(&catalog.Collection{NS: "db.c", Options: collated}, none("a", "A")), lists: []int{1, 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.opt.MinMass == 0 {
				tc.opt.MinMass = 2
			}
			p, err := plan.NewPlanner(tc.opt).Build(tc.ops)
			if err != nil {
				t.Fatal(err)
			}
			var lists []int
			documents := 0
			for _, w := range p.Writes {
				documents += w.Documents
				for _, doc := range w.Docs {
					n := 1
					if in, ok := doc.Lookup("q", "_id", "$in").ArrayOK(); ok {
						values, _ := in.Values()
						n = len(values)
					}
					lists = append(lists, n)
				}
			}
			for _, n := range lists {
				documents -= n
			}
			if documents != 0 {
				t.Errorf("the writes count %d documents too many", documents)
			}
			if fmt.Sprint(lists) != fmt.Sprint(tc.lists) {
				t.Errorf("%v documents in the statements, want %v:\n%s", lists, tc.lists, describeWrites(p))
			}
		})
	}
}

// TestMassConditions: a list keeps the conditions that its statements have on other fields.
func TestMassConditions(t *testing.T) {
	p, err := plan.NewPlanner(plan.Options{MinMass: 2}).Build([]plan.Op{setOp(t, 1, newX), setOp(t, 2, setX), setOp(t, "a", newX)})
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"_id": {"$in": [{"$numberInt":"1"},"a"]},"x": {"$exists": false}} u={"$set": {"x": {"$numberInt":"1"}}} multi=true ops=[0 2]
{"_id": {"$numberInt":"2"}} u={"$set": {"x": {"$numberInt":"1"}}} multi=false ops=[1]
`
	if got := describeWrites(p); got != want {
		t.Errorf("statements\n%swant\n%s", got, want)
	}
	if w := &p.Writes[0]; len(p.Writes) != 1 || w.Documents != 3 || !w.Guarded || !w.MustMatch {
		t.Errorf("write %+v, want one for 3 documents that must match", p.Writes)
	}
}

// TestMassDelete has the statement of deletes, whole.
func TestMassDelete(t *testing.T) {
	p, err := plan.NewPlanner(plan.Options{MinMass: 2}).Build([]plan.Op{deleteOp(1), deleteOp("a")})
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"q": {"_id": {"$in": [{"$numberInt":"1"},"a"]}},"limit": {"$numberInt":"0"}}`
	if w := p.Writes; len(w) != 1 || len(w[0].Docs) != 1 || w[0].Docs[0].String() != want || w[0].Documents != 2 || w[0].MustMatch {
		t.Errorf("writes %+v, want one for 2 documents, which need not match: %s", w, want)
	}
}

// TestMassOfMany: deletes of more namespaces than the table has slots stay in their commands.
func TestMassOfMany(t *testing.T) {
	var ops []plan.Op
	for id := range 3 {
		for i := range 600 {
			op := deleteOp(id)
			op.Target = oplog.Namespace(fmt.Sprintf("db.c%d", i))
			op.Collection = &catalog.Collection{NS: op.Target}
			ops = append(ops, op)
		}
	}
	p, err := plan.NewPlanner(plan.Options{MinMass: 2}).Build(ops)
	if err != nil {
		t.Fatal(err)
	}
	seen := make([]bool, len(ops))
	for _, w := range p.Writes {
		for _, list := range w.Ops {
			for _, i := range list {
				if seen[i] || ops[i].Target != w.NS {
					t.Fatalf("operation %d on %s is in a write to %s, seen before: %t", i, ops[i].Target, w.NS, seen[i])
				}
				seen[i] = true
			}
		}
	}
	if i := slices.Index(seen, false); i >= 0 {
		t.Errorf("operation %d is in no write", i)
	}
}
