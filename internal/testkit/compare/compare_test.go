package compare

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/memstore"
	"github.com/oplogrep/replicator/oplog"
)

const idIndex = `{"v": 2, "key": {"_id": 1}, "name": "_id_"}`

// coll is a collection with the index on _id and these documents.
func coll(t testing.TB, ns oplog.Namespace, options string, docs ...string) memstore.CollectionState {
	t.Helper()
	c := memstore.CollectionState{
		NS: ns, Type: memstore.TypeCollection, Options: bsongen.FromJSON(t, options), Indexes: []bson.Raw{bsongen.FromJSON(t, idIndex)},
		Capped: strings.Contains(options, "capped"),
	}
	for _, d := range docs {
		c.Documents = append(c.Documents, bsongen.FromJSON(t, d))
	}
	return c
}

func view(t testing.TB, ns oplog.Namespace, options string) memstore.CollectionState {
	t.Helper()
	return memstore.CollectionState{NS: ns, Type: memstore.TypeView, Options: bsongen.FromJSON(t, options)}
}

func indexed(t testing.TB, c memstore.CollectionState, specs ...string) memstore.CollectionState {
	t.Helper()
	for _, s := range specs {
		c.Indexes = append(c.Indexes, bsongen.FromJSON(t, s))
	}
	return c
}

func state(all ...memstore.CollectionState) memstore.State { return memstore.State{Collections: all} }

func renameDB(from, to string) func(oplog.Namespace) (oplog.Namespace, bool) {
	return func(ns oplog.Namespace) (oplog.Namespace, bool) {
		if ns.DB() == from {
			return oplog.NewNamespace(to, ns.Collection()), true
		}
		return ns, ns.DB() != "out"
	}
}

func TestCompare(t *testing.T) {
	t.Parallel()
	long := `{"_id": 1, "x": "` + strings.Repeat("y", 1000) + `"}`
	tests := []struct {
		name string
		a, b memstore.State
		opts Options
		want []string // each has to be in the difference of that place
		more int
	}{
		{name: "nothing", want: nil},
		{
			name: "the same, documents in another order",
			a:    state(coll(t, "d.c", `{}`, `{"_id": 1}`, `{"_id": 2}`)),
			b:    state(coll(t, "d.c", `{}`, `{"_id": 2}`, `{"_id": 1}`)),
		},
		{
			name: "collections on one side only",
			a:    state(coll(t, "d.a", `{}`), view(t, "d.v", `{"viewOn": "a"}`)),
			b:    state(coll(t, "d.b", `{}`)),
			want: []string{"d.a: missing, want a collection", "d.b: a collection that should not be there", "d.v: missing, want a view"},
		},
		{
			name: "the server's own, and the metadata",
			a:    state(coll(t, "admin.a", `{}`), coll(t, "config.a", `{}`), coll(t, "local.a", `{}`)),
			b:    state(coll(t, "meta.links", `{}`, `{"_id": 1}`)),
			opts: Options{MetaDB: "meta"},
		},
		{
			name: "type",
			a:    state(coll(t, "d.a", `{}`, `{"_id": 1}`)), b: state(view(t, "d.a", `{"viewOn": "x"}`)),
			want: []string{"d.a: type view, want collection", "d.a: option viewOn: ", "d.a: index _id_: missing"},
		},
		{
			name: "options in any order and type of number",
			a:    state(coll(t, "d.a", `{"capped": true, "size": 4096, "max": 3}`)),
			b:    state(coll(t, "d.a", `{"max": {"$numberDouble": "3"}, "capped": true, "size": {"$numberLong": "4096"}}`)),
		},
		{
			name: "options that differ",
			a:    state(coll(t, "d.a", `{"validator": {"x": 1}}`)), b: state(coll(t, "d.a", `{"validator": {"x": 2}, "validationLevel": "off"}`)),
			want: []string{"d.a: option validator: ", "d.a: option validationLevel: "},
		},
		{
			name: "indexes in any order, ns and background left out",
			a:    state(indexed(t, coll(t, "d.a", `{}`), `{"v": 2, "key": {"x": 1}, "name": "x_1", "background": true, "ns": "d.a"}`, `{"v": 2, "key": {"y": 1}, "name": "y_1"}`)),
			b:    state(indexed(t, coll(t, "d.a", `{}`), `{"v": 2, "key": {"y": {"$numberLong": "1"}}, "name": "y_1"}`, `{"name": "x_1", "v": 2, "key": {"x": 1}}`)),
			want: []string{"d.a: index y_1: key: "}, // inside, numbers are bytes
		},
		{
			name: "indexes that differ",
			a:    state(indexed(t, coll(t, "d.a", `{}`), `{"v": 2, "key": {"x": 1}, "name": "x_1", "unique": true}`, `{"v": 2, "key": {"y": 1}, "name": "y_1"}`)),
			b:    state(indexed(t, coll(t, "d.a", `{}`), `{"v": 2, "key": {"x": 1}, "name": "x_1"}`, `{"v": 2, "key": {"z": 1}, "name": "z_1"}`)),
			want: []string{"d.a: index x_1: unique: missing", "d.a: index y_1: missing", "d.a: index z_1: "},
		},
		{
			name: "what is held is put over it",
			a:    state(indexed(t, coll(t, "d.a", `{}`), `{"v": 2, "key": {"x": 1}, "name": "x_1", "unique": true}`)),
			b:    state(indexed(t, coll(t, "d.a", `{}`), `{"v": 2, "key": {"x": 1}, "name": "x_1"}`)),
			opts: Options{Deferred: ddl.Specs{{NS: "d.a", Index: "x_1", Fields: []string{"unique"}, Spec: bsongen.FromJSON(t, `{"v": 2, "key": {"x": 1}, "name": "x_1", "unique": true}`)}}},
		},
		{
			name: "documents",
			a:    state(coll(t, "d.a", `{}`, `{"_id": 1}`, `{"_id": 2, "x": 1}`, `{"_id": 4}`)),
			b:    state(coll(t, "d.a", `{}`, `{"_id": 2, "x": {"$numberLong": "1"}}`, `{"_id": 3}`, `{"_id": 4}`)),
			want: []string{`_id {"$numberInt":"1"}: missing, want {"_id": {"$numberInt":"1"}}`, `"$numberLong"`, `_id {"$numberInt":"3"}: {"_id": {"$numberInt":"3"}}, want none`},
		},
		{
			name: "an _id of another type",
			a:    state(coll(t, "d.a", `{}`, `{"_id": 1}`)), b: state(coll(t, "d.a", `{}`, `{"_id": {"$numberLong": "1"}}`)),
			want: []string{`$numberLong`},
		},
		{
			name: "only the first of many differences, and shortened",
			a:    state(coll(t, "d.a", `{}`, long, `{"_id": 2}`, `{"_id": 3}`, `{"_id": 4}`, `{"_id": 5}`), coll(t, "d.b", `{}`, `{"_id": 1}`)),
			b:    state(coll(t, "d.a", `{}`), coll(t, "d.b", `{}`)),
			want: []string{"... (1022 bytes of BSON)", "_id", "_id", "d.b: _id"}, more: 2,
		},
		{
			name: "capped: order matters",
			a:    state(coll(t, "d.a", `{"capped": true, "size": 1}`, `{"_id": 1}`, `{"_id": 2}`, `{"_id": 3}`)),
			b:    state(coll(t, "d.a", `{"capped": true, "size": 1}`, `{"_id": 2}`, `{"_id": 1}`)),
			want: []string{"document 0 in natural order", "document 1 in natural order", "document 2 in natural order: none"},
		},
		{
			name: "a collation: the order may differ",
			a:    state(coll(t, "d.a", `{"collation": {"locale": "xx"}}`, `{"_id": "b"}`, `{"_id": "a", "x": 1}`, `{"_id": "c"}`)),
			b:    state(coll(t, "d.a", `{"collation": {"locale": "xx"}}`, `{"_id": "a", "x": 2}`, `{"_id": "d"}`, `{"_id": "b"}`)),
			want: []string{`_id "a"`, `_id "c": missing`, `_id "d": {`},
		},
		{
			name: "a collation, with too much that waits",
			a:    state(coll(t, "d.a", `{"collation": {"locale": "xx"}}`, long, `{"_id": "b"}`)),
			b:    state(coll(t, "d.a", `{"collation": {"locale": "xx"}}`, `{"_id": "c"}`, `{"_id": "b"}`)),
			opts: Options{PendingBytes: 100},
			want: []string{"given up after 2 documents", `missing`, `want none`},
		},
		{
			name: "an empty system.views is none",
			a:    state(coll(t, "d.system.views", `{}`)), b: state(coll(t, "e.system.views", `{}`), coll(t, "f.system.views", `{}`, `{"_id": "f.v"}`)),
			want: []string{"f.system.views: a collection that should not be there"},
		},
		{
			name: "renamed",
			a: state(coll(t, "d.a", `{}`, `{"_id": 1}`), view(t, "d.v", `{"viewOn": "a", "pipeline": []}`), coll(t, "d.system.views", `{}`, `{"_id": "d.v"}`),
				coll(t, "out.a", `{}`)),
			b:    state(coll(t, "e.a", `{}`, `{"_id": 1}`), view(t, "e.v", `{"viewOn": "a", "pipeline": []}`), coll(t, "e.system.views", `{}`, `{"_id": "e.v"}`)),
			opts: Options{Map: renameDB("d", "e")},
		},
		{
			name: "renamed, the view reads something else",
			a:    state(coll(t, "d.a", `{}`), view(t, "d.v", `{"viewOn": "a", "pipeline": []}`)),
			b:    state(coll(t, "e.a", `{}`), view(t, "e.v", `{"viewOn": "b", "pipeline": []}`)),
			opts: Options{Map: renameDB("d", "e")},
			want: []string{"e.v: option viewOn: "},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, err := Compare(t.Context(), Recorded(tt.a), Recorded(tt.b), tt.opts)
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Differences) != len(tt.want) || r.More != tt.more || r.Equal() != (len(tt.want) == 0) {
				t.Fatalf("got %d and %d more, want %d and %d:\n%s", len(r.Differences), r.More, len(tt.want), tt.more, &r)
			}
			for i, want := range tt.want {
				if got := r.Differences[i].String(); !strings.Contains(got, want) {
					t.Errorf("difference %d is %q, want %q", i, got, want)
				}
			}
		})
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	r := Report{Collections: 2, Documents: 3, Bytes: 40}
	if got, want := r.String(), "equal: 2 collections, 3 documents, 40 bytes alike"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	r.Differences, r.More = []Difference{{"d.a", "line\none\xff"}}, 4
	if got, want := r.String(), "5 differences: 2 collections, 3 documents, 40 bytes alike\nd.a: line\\none\uFFFD\nand 4 more"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// brokenSide fails after a few documents.
type brokenSide struct {
	recorded
	failing string
}

var errBroken = errors.New("broken")

func (s brokenSide) collections(ctx context.Context) ([]memstore.CollectionState, error) {
	if s.failing == "collections" {
		return nil, errBroken
	}
	return s.recorded.collections(ctx)
}

func (s brokenSide) documents(ctx context.Context, c *memstore.CollectionState) iter.Seq2[bson.Raw, error] {
	return func(yield func(bson.Raw, error) bool) {
		for doc, err := range s.recorded.documents(ctx, c) {
			if !yield(doc, err) {
				return
			}
		}
		yield(nil, errBroken)
	}
}

// TestReadErrors: what could not be read is an error, whatever was found before.
func TestReadErrors(t *testing.T) {
	t.Parallel()
	for _, options := range []string{`{}`, `{"capped": true}`, `{"collation": {"locale": "fr"}}`} {
		good := state(coll(t, "d.a", options, `{"_id": 1}`, `{"_id": 2}`))
		for _, what := range []string{"collections", "documents"} {
			bad := brokenSide{recorded{good}, what}
			for _, sides := range [][2]Side{{bad, Recorded(good)}, {Recorded(good), bad}} {
				if _, err := Compare(t.Context(), sides[0], sides[1], Options{}); !errors.Is(err, errBroken) {
					t.Errorf("%s %s: %v", options, what, err)
				}
			}
		}
	}
}

// TestLikeTheOracle compares with the slow comparison of whole states.
func TestLikeTheOracle(t *testing.T) {
	t.Parallel()
	ids := []string{`1`, `{"$numberLong": "1"}`, `2.5`, `"a"`, `"b"`, `null`, `{"x": 1}`, `{"$oid": "000000000000000000000001"}`}
	draw := func(t *rapid.T, side string) memstore.State {
		var s memstore.State
		for _, ns := range []oplog.Namespace{"d.a", "d.b"} {
			options := rapid.SampledFrom([]string{`{}`, `{}`, `{"collation": {"locale": "de"}}`}).Draw(t, side+" options")
			if rapid.IntRange(0, 9).Draw(t, side+" absent") == 0 {
				continue
			}
			c := memstore.CollectionState{NS: ns, Type: memstore.TypeCollection, Options: raw(options)}
			for _, n := range rapid.SliceOfNDistinct(rapid.IntRange(0, len(ids)-1), 0, 5, func(n int) int { return max(n, 1) }).Draw(t, side+" ids") {
				x := rapid.IntRange(0, 1).Draw(t, side+" x")
				c.Documents = append(c.Documents, raw(fmt.Sprintf(`{"_id": %s, "x": %d}`, ids[n], x)))
			}
			s.Collections = append(s.Collections, c)
		}
		return s
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := draw(t, "a"), draw(t, "b")
		if rapid.Bool().Draw(t, "alike") {
			b = memstore.State{Collections: slices.Clone(a.Collections)}
			for i := range b.Collections {
				b.Collections[i].Documents = slices.Clone(b.Collections[i].Documents)
				slices.Reverse(b.Collections[i].Documents)
			}
		}
		r, err := Compare(context.Background(), Recorded(a), Recorded(b), Options{PerCollection: 100})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, d := range r.Differences {
			got = append(got, d.String())
		}
		want := memstore.Diff(a, b)
		if (len(got) == 0) != (len(want) == 0) {
			t.Fatalf("got %q, want %q", got, want)
		}
		if !slices.ContainsFunc(append(a.Collections, b.Collections...), func(c memstore.CollectionState) bool { return hasCollation(&c) }) && len(got) != len(want) {
			t.Fatal(cmp.Diff(want, got))
		}
	})
}

func raw(json string) bson.Raw {
	var d bson.D
	if err := bson.UnmarshalExtJSON([]byte(json), false, &d); err != nil {
		panic(err)
	}
	b, err := bson.Marshal(d)
	if err != nil {
		panic(err)
	}
	return b
}

// TestAnyFieldOrder: the order of fields, at any depth, makes no difference where
// that is asked for, and everything else does.
func TestAnyFieldOrder(t *testing.T) {
	state := func(doc bson.D) memstore.State {
		raw, err := bson.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		return memstore.State{Collections: []memstore.CollectionState{
			{NS: "db.c", Type: memstore.TypeCollection, Options: bson.Raw{5, 0, 0, 0, 0}, Documents: []bson.Raw{raw}},
		}}
	}
	inner := func(first, second string, n int) bson.D {
		return bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: bson.A{bson.D{{Key: first, Value: n}, {Key: second, Value: n}}}}}
	}
	want := state(inner("x", "y", 1))
	for _, test := range []struct {
		got   bson.D
		any   bool
		equal bool
	}{
		{inner("x", "y", 1), false, true},
		{inner("y", "x", 1), false, false},
		{inner("y", "x", 1), true, true},
		{inner("y", "x", 2), true, false},
		{inner("y", "z", 1), true, false},
	} {
		r, err := Compare(t.Context(), Recorded(want), Recorded(state(test.got)), Options{AnyFieldOrder: test.any})
		if err != nil || r.Equal() != test.equal {
			t.Errorf("%v, any order %t: %v %s", test.got, test.any, err, &r)
		}
	}
}
