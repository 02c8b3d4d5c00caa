package verify

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
)

// planted is a collection that differs in one way. Fill writes one side of it.
type planted struct {
	name string
	fill func(t *testing.T, c mongo.Caller, coll string, target bool)
	// want are the differences, as brief says them.
	want []string
	// anyOrder are those with Config.AnyFieldOrder, if they are others.
	anyOrder []string
}

// brief says a difference in a line.
func brief(d *Difference) string {
	var text strings.Builder
	text.WriteString(string(d.Kind))
	for _, s := range []string{d.What, d.Name, string(d.ID)} {
		if s != "" {
			text.WriteString(" " + s)
		}
	}
	for i := range d.Paths {
		p := &d.Paths[i]
		fmt.Fprintf(&text, "; %s %s %s/%s", p.Path, p.What, p.Source, p.Target)
		if p.Occurrence > 0 {
			fmt.Fprintf(&text, " #%d", p.Occurrence)
		}
	}
	return text.String()
}

func number(i int) string { return fmt.Sprintf(`{"$numberInt":"%d"}`, i) }

// neighbours are documents that are the same on both sides.
func neighbours(t *testing.T, from, to int) []bson.Raw {
	docs := make([]bson.Raw, 0, to-from)
	for i := from; i < to; i++ {
		docs = append(docs, must.Marshal(t, bson.D{{Key: "_id", Value: int32(i)}, {Key: "x", Value: "same"}}))
	}
	return docs
}

// one plants a document with _id 5 that has another value of x on the target.
func one(name string, source, target func(t *testing.T) []byte, want ...string) planted {
	return planted{name: name, want: want, fill: func(t *testing.T, c mongo.Caller, coll string, onTarget bool) {
		x := source
		if onTarget {
			x = target
		}
		docs := slices.Concat(neighbours(t, 0, 5), []bson.Raw{doc(element(t, "_id", int32(5)), x(t))}, neighbours(t, 6, 10))
		insertRaw(t, c, oplog.NewNamespace("d", coll), docs...)
	}}
}

// values is one with values of x.
func values(name string, source, target any, want string) planted {
	x := func(v any) func(t *testing.T) []byte {
		return func(t *testing.T) []byte { return element(t, "x", v) }
	}
	return one(name, x(source), x(target), "differs "+number(5)+"; "+want)
}

func fields(names ...string) func(t *testing.T) []byte {
	return func(t *testing.T) []byte {
		var all []byte
		for i, name := range names {
			name, value, given := strings.Cut(name, "=")
			if given {
				i = len(value)
			}
			all = append(all, element(t, name, int32(i))...)
		}
		return all
	}
}

// options plants a collection that is created in two ways, and has the same documents.
func options(name string, source, target bson.D, want ...string) planted {
	return planted{name: name, want: want, fill: func(t *testing.T, c mongo.Caller, coll string, onTarget bool) {
		o := source
		if onTarget {
			o = target
		}
		run(t, c, "d", append(bson.D{{Key: "create", Value: coll}}, o...))
		if len(o) == 0 || o[0].Key != "viewOn" {
			insertRaw(t, c, oplog.NewNamespace("d", coll), neighbours(t, 0, 5)...)
		}
	}}
}

// index plants an index of x.
func index(name string, source, target bson.D, want ...string) planted {
	return planted{name: name, want: want, fill: func(t *testing.T, c mongo.Caller, coll string, onTarget bool) {
		insertRaw(t, c, oplog.NewNamespace("d", coll), neighbours(t, 0, 1)...)
		o := source
		if onTarget {
			o = target
		}
		if o != nil {
			run(t, c, "d", bson.D{{Key: "createIndexes", Value: coll}, {Key: "indexes", Value: bson.A{
				append(bson.D{{Key: "key", Value: bson.D{{Key: "x", Value: int32(1)}}}, {Key: "name", Value: "i"}}, o...),
			}}})
		}
	}}
}

// inOrder plants documents in an order of insertion.
func inOrder(name string, source, target []int, want ...string) planted {
	return planted{name: name, want: want, fill: func(t *testing.T, c mongo.Caller, coll string, onTarget bool) {
		run(t, c, "d", bson.D{{Key: "create", Value: coll}, {Key: "capped", Value: true}, {Key: "size", Value: int32(1 << 20)}})
		ids := source
		if onTarget {
			ids = target
		}
		for _, id := range ids {
			insertRaw(t, c, oplog.NewNamespace("d", coll), neighbours(t, id, id+1)...)
		}
	}}
}

func double(bits uint64) any { return math.Float64frombits(bits) }

func kinds(t *testing.T) []planted {
	lists := func(name string, source, target []int, want ...string) planted {
		return planted{name: name, want: want, fill: func(t *testing.T, c mongo.Caller, coll string, onTarget bool) {
			ids := source
			if onTarget {
				ids = target
			}
			for _, id := range ids {
				insertRaw(t, c, oplog.NewNamespace("d", coll), neighbours(t, id, id+1)...)
			}
		}}
	}
	german := bson.D{{Key: "collation", Value: bson.D{{Key: "locale", Value: "de"}}}}
	all := []planted{
		lists("same", []int{1, 2, 3}, []int{3, 2, 1}),
		lists("missing", []int{1, 2, 3}, []int{1, 3}, "missing "+number(2)),
		lists("extra", []int{1, 3}, []int{1, 2, 3}, "extra "+number(2)),
		lists("ends", []int{1, 2, 3}, []int{2, 3, 4}, "missing "+number(1), "extra "+number(4)),
		values("bit", []byte{1, 2, 3}, []byte{1, 2, 2}, "x value binData/binData"),
		values("subtype", bson.Binary{Subtype: 3, Data: []byte("0123456789abcdef")}, bson.Binary{Subtype: 4, Data: []byte("0123456789abcdef")}, "x value binData/binData"),
		values("long", int32(7), int64(7), "x type int/long"),
		values("double", int32(7), float64(7), "x type int/double"),
		values("zero", 0.0, math.Copysign(0, -1), "x bytes double/double"),
		values("nan", double(0x7ff8000000000000), double(0x7ff8000000000001), "x bytes double/double"),
		values("decimal", bsongen.Decimal(t, "1.0"), bsongen.Decimal(t, "1.00"), "x bytes decimal/decimal"),
		values("symbol", "a", bson.Symbol("a"), "x type string/symbol"),
		values("undefined", nil, bson.Undefined{}, "x type null/undefined"),
		values("deep", bson.D{{Key: "a", Value: bson.A{1, bson.D{{Key: "b", Value: "x"}}}}}, bson.D{{Key: "a", Value: bson.A{1, bson.D{{Key: "b", Value: "y"}}}}}, "x.a.1.b value string/string"),
		values("array", bson.A{1, 2}, bson.A{1, 2, 3}, "x.2 extra /int"),
		one("field", fields("a", "b"), fields("a"), "differs "+number(5)+"; b missing int/"),
		one("fieldextra", fields("a"), fields("a", "b"), "differs "+number(5)+"; b extra /int"),
		one("twice", fields("a=1", "a=22"), fields("a=1"), "differs "+number(5)+"; a missing int/ #2"),
		one("twiceother", fields("a=1", "a=22"), fields("a=1", "a=333"), "differs "+number(5)+"; a value int/int #2"),
		options("option", bson.D{{Key: "validator", Value: bson.D{{Key: "x", Value: bson.D{{Key: "$exists", Value: true}}}}}},
			bson.D{{Key: "validator", Value: bson.D{{Key: "x", Value: bson.D{{Key: "$exists", Value: 1}}}}}},
			"option differs validator; validator.x.$exists type bool/int"),
		options("optionmissing", bson.D{{Key: "validator", Value: bson.D{{Key: "x", Value: "same"}}}}, nil, "option missing validator; validator missing object/"),
		options("collationother", german, bson.D{{Key: "collation", Value: bson.D{{Key: "locale", Value: "fr"}}}},
			"option differs collation; collation.locale value string/string", "index differs _id_; collation.locale value string/string"),
		options("collationnone", german, nil, "option missing collation; collation missing object/", "index differs _id_; collation missing object/"),
		options("view", bson.D{{Key: "viewOn", Value: "same"}, {Key: "pipeline", Value: bson.A{bson.D{{Key: "$match", Value: bson.D{{Key: "x", Value: 1}}}}}}},
			bson.D{{Key: "viewOn", Value: "same"}, {Key: "pipeline", Value: bson.A{bson.D{{Key: "$match", Value: bson.D{{Key: "x", Value: 2}}}}}}},
			"view differs pipeline; pipeline.0.$match.x value int/int"),
		options("viewon", bson.D{{Key: "viewOn", Value: "same"}, {Key: "pipeline", Value: bson.A{}}}, bson.D{{Key: "viewOn", Value: "missing"}, {Key: "pipeline", Value: bson.A{}}},
			"view differs viewOn; viewOn value string/string"),
		options("type", nil, bson.D{{Key: "viewOn", Value: "same"}, {Key: "pipeline", Value: bson.A{}}}, "collection type; "+" type collection/view"),
		index("index", bson.D{}, nil, "index missing i"),
		index("indexextra", nil, bson.D{}, "index extra i"),
		index("indexoption", bson.D{{Key: "sparse", Value: true}}, bson.D{{Key: "sparse", Value: false}}, "index differs i; sparse missing bool/"),
		index("indexttl", bson.D{{Key: "expireAfterSeconds", Value: int32(60)}}, bson.D{{Key: "expireAfterSeconds", Value: int32(61)}}, "index differs i; expireAfterSeconds value int/int"),
		index("indexsame", bson.D{{Key: "expireAfterSeconds", Value: int32(60)}}, bson.D{{Key: "expireAfterSeconds", Value: int64(60)}}),
		inOrder("capped", []int{1, 2, 3, 4}, []int{1, 2, 3, 4}),
		inOrder("cappedswap", []int{1, 2, 3, 4}, []int{1, 3, 2, 4}, "order "+number(2)),
		inOrder("cappedtail", []int{1, 2, 3, 4}, []int{2, 3, 4, 1}, "order "+number(1)),
		inOrder("cappedhead", []int{1, 2, 3, 4}, []int{4, 1, 2, 3}, "order "+number(4)),
		inOrder("cappedless", []int{1, 2, 3, 4}, []int{1, 3, 4}, "missing "+number(2)),
		{name: "absent", want: []string{"collection missing"}, fill: func(t *testing.T, c mongo.Caller, coll string, onTarget bool) {
			if !onTarget {
				run(t, c, "d", bson.D{{Key: "create", Value: coll}})
			}
		}},
		{name: "present", want: []string{"collection extra"}, fill: func(t *testing.T, c mongo.Caller, coll string, onTarget bool) {
			if onTarget {
				run(t, c, "d", bson.D{{Key: "create", Value: coll}})
			}
		}},
		{name: "idtype", want: []string{"differs " + number(2) + "; _id type int/long"}, fill: func(t *testing.T, c mongo.Caller, coll string, onTarget bool) {
			id := any(int32(2))
			if onTarget {
				id = int64(2)
			}
			insertRaw(t, c, oplog.NewNamespace("d", coll), doc(element(t, "_id", int32(1))), doc(element(t, "_id", id)), doc(element(t, "_id", int32(3))))
		}},
		{
			name: "collated", want: []string{`missing "b"`, `differs "d"; x value int/int`},
			fill: func(t *testing.T, c mongo.Caller, coll string, onTarget bool) {
				run(t, c, "d", append(bson.D{{Key: "create", Value: coll}}, german...))
				for i, id := range []string{"ä", "a", "B", "b", "c", "d", "ö", "z"} {
					if onTarget && id == "d" {
						i = -1
					}
					if !onTarget || id != "b" {
						insertRaw(t, c, oplog.NewNamespace("d", coll), doc(element(t, "_id", id), element(t, "x", int32(i))))
					}
				}
			},
		},
	}
	reordered := one("order", fields("a=1", "b=22"), fields("b=22", "a=1"), "differs "+number(5)+"; b order /")
	reordered.anyOrder = []string{}
	inner := values("orderdeep", bson.A{bson.D{{Key: "a", Value: 1}, {Key: "b", Value: 2}}}, bson.A{bson.D{{Key: "b", Value: 2}, {Key: "a", Value: 1}}}, "x.0.b order /")
	inner.anyOrder = []string{}
	length := values("string", "short", "longer", "x value string/string")
	return append(all, reordered, inner, length)
}

// TestPlanted: each kind of difference is found and named, and nothing else.
func TestPlanted(t *testing.T) {
	t.Parallel()
	source := cluster(t)
	target := cluster(t)
	all := kinds(t)
	for i := range all {
		all[i].fill(t, source, all[i].name, false)
		all[i].fill(t, target, all[i].name, true)
	}
	for _, anyOrder := range []bool{false, true} {
		summary, found := check(t, Config{Source: source, Target: target, AnyFieldOrder: anyOrder})
		got := map[oplog.Namespace][]string{}
		for i := range found {
			got[found[i].NS] = append(got[found[i].NS], brief(&found[i]))
			if isOfDocument(found[i].Kind) != (len(found[i].IDBSON) > 0) {
				t.Errorf("%+v", found[i])
			}
		}
		for i := range all {
			ns := oplog.NewNamespace("d", all[i].name)
			want := all[i].want
			if anyOrder && all[i].anyOrder != nil {
				want = all[i].anyOrder
			}
			slices.Sort(want)
			slices.Sort(got[ns])
			if diff := cmp.Diff(strings.Join(want, "\n"), strings.Join(got[ns], "\n")); diff != "" {
				t.Errorf("%s, any order %t:\n%s", ns, anyOrder, diff)
			}
			delete(got, ns)
			j := slices.IndexFunc(summary.Collections, func(c Collection) bool { return c.NS == ns })
			if j < 0 || summary.Collections[j].equal() != (len(want) == 0) || summary.Collections[j].Fault != "" {
				t.Errorf("%s: result %+v", ns, summary.Collections[max(0, j)])
			}
		}
		if len(got) > 0 || len(summary.Collections) != len(all) || summary.Equal() || summary.Unchecked() > 0 {
			t.Errorf("of others: %v; %d collections", got, len(summary.Collections))
		}
	}
}

// TestSecret: values are in no difference, unless they are asked for.
func TestSecret(t *testing.T) {
	t.Parallel()
	source := cluster(t)
	target := cluster(t)
	const secret = "Passwort1"
	for i, c := range []mongo.Caller{source, target} {
		insertRaw(t, c, "d.c", doc(element(t, "_id", 1), element(t, "x", fmt.Sprintf("%s %d", secret, i))), doc(element(t, "_id", i+10), element(t, "x", secret)))
		run(t, c, "d", bson.D{{Key: "create", Value: "v"}, {Key: "viewOn", Value: "c"}, {Key: "pipeline", Value: bson.A{bson.D{{Key: "$match", Value: bson.D{{Key: "x", Value: fmt.Sprint(secret, i)}}}}}}})
	}
	for _, show := range []bool{false, true} {
		_, found := check(t, Config{Source: source, Target: target, ShowValues: show})
		text := string(must.Get(json.Marshal(found))(t))
		if len(found) != 4 || strings.Contains(text, secret) != show {
			t.Errorf("%d differences, values shown %t: %s", len(found), show, text)
		}
	}
}

// TestNames: a renamed collection is compared under both names, and collections that are not
// mirrored are left out on both sides.
func TestNames(t *testing.T) {
	t.Parallel()
	source := cluster(t)
	target := cluster(t)
	insertRaw(t, source, "shop.orders", neighbours(t, 0, 3)...)
	insertRaw(t, source, "shop.log", neighbours(t, 0, 3)...)
	insertRaw(t, source, "other.c", neighbours(t, 0, 3)...)
	run(t, source, "shop", bson.D{{Key: "create", Value: "v"}, {Key: "viewOn", Value: "orders"}, {Key: "pipeline", Value: bson.A{}}})
	insertRaw(t, target, "store.sold", neighbours(t, 1, 3)...)
	insertRaw(t, target, "theirs.c", neighbours(t, 0, 3)...)
	insertRaw(t, target, "replicator.links", neighbours(t, 0, 3)...)
	run(t, target, "store", bson.D{{Key: "create", Value: "v"}, {Key: "viewOn", Value: "sold"}, {Key: "pipeline", Value: bson.A{}}})
	names := must.Get(scope.New(scope.Config{Include: []string{"shop"}, Exclude: []string{"shop.log", "shop.sold"}, Map: []string{"shop=store", "shop.orders=store.sold"}}))(t)
	summary, found := check(t, Config{Source: source, Target: target, Scope: names})
	if len(found) != 1 || found[0].NS != "store.sold" || found[0].SourceNS != "shop.orders" || found[0].Kind != Missing {
		t.Errorf("%+v", found)
	}
	if len(summary.Collections) != 2 {
		t.Errorf("%+v", summary.Collections)
	}
	if want := bsoncore.BuildDocument(nil, element(t, "_id", int32(0))); len(found) == 1 && string(found[0].IDBSON) != string(want) {
		t.Errorf("%x", found[0].IDBSON)
	}
}
