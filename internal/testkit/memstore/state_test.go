package memstore

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// listed returns what a snapshot shows of collections and views.
func listed(s *Store) []string {
	all := []string{}
	for _, c := range s.Snapshot().Collections {
		all = append(all, string(c.NS)+" "+c.Type+" "+relaxed(c.Options))
	}
	return all
}

func TestViews(t *testing.T) {
	l := &log{t: t}
	s := New(Config{})
	view := func(name, on string, more ...bson.E) bson.D {
		return append(bson.D{{Key: "_id", Value: name}, {Key: "viewOn", Value: on}, {Key: "pipeline", Value: bson.A{}}}, more...)
	}
	mustApply(t, s, Steady, l.create("d.system.views", 1), l.create("e.system.views", 2),
		l.insert("d.system.views", 1, view("d.v", "c", bson.E{Key: "collation", Value: bson.D{{Key: "locale", Value: "fr"}}})),
		l.command("d", 3, bson.D{
			{Key: "create", Value: "system.buckets.m"},
			{Key: "validator", Value: bson.D{{Key: "x", Value: 1}}},
			{Key: "clusteredIndex", Value: true},
			{Key: "expireAfterSeconds", Value: int64(5)},
			{Key: "timeseries", Value: bson.D{{Key: "timeField", Value: "t"}}},
		}),
		l.insert("d.system.views", 1, view("d.m", "system.buckets.m")),
		l.insert("d.system.views", 1, view("d.lost", "system.buckets.lost")),
		l.insert("d.system.views", 1, view("d.peek", "system.buckets.m")))
	wantEqual(t, "listed", listed(s), []string{
		`d.lost timeseries {}`,
		`d.m timeseries {"expireAfterSeconds":5,"timeseries":{"timeField":"t"}}`,
		`d.peek view {"viewOn":"system.buckets.m","pipeline":[]}`,
		`d.system.buckets.m collection {"validator":{"x":1},"clusteredIndex":true,"expireAfterSeconds":5,"timeseries":{"timeField":"t"}}`,
		`d.system.views collection {}`,
		`d.v view {"viewOn":"c","pipeline":[],"collation":{"locale":"fr"}}`,
		`e.system.views collection {}`,
	})

	// A view holds its name.
	mustApply(t, s, InitialSync, l.create("d.v", 4), l.create("d.c", 5), l.rename("d.c", "d.v", 5, 0))
	wantEqual(t, "counters", s.Counters(), Counters{AcceptableErrors: 2})

	mustApply(t, s, Steady, l.update("d.system.views", 1, "d.v", view("d.v", "c2")), l.delete("d.system.views", 1, "d.lost"))
	wantEqual(t, "a changed view", listed(s)[5], `d.v view {"viewOn":"c2","pipeline":[]}`)
	mustApply(t, s, Steady, l.drop("d.system.views", 1))
	wantEqual(t, "without its definitions", listed(s), []string{
		`d.c collection {}`,
		`d.system.buckets.m collection {"validator":{"x":1},"clusteredIndex":true,"expireAfterSeconds":5,"timeseries":{"timeField":"t"}}`,
		`e.system.views collection {}`,
	})
}

func TestCreateView(t *testing.T) {
	l := &log{t: t}
	s := New(Config{})
	for _, name := range []string{"v", "w"} {
		mustApply(t, s, Steady, l.command("d", 0, bson.D{{Key: "create", Value: name}, {Key: "viewOn", Value: "c"}, {Key: "pipeline", Value: bson.A{}}}))
	}
	wantEqual(t, "listed", listed(s), []string{
		`d.system.views collection {}`,
		`d.v view {"viewOn":"c","pipeline":[]}`,
		`d.w view {"viewOn":"c","pipeline":[]}`,
	})
}

// exampleStore has a bit of everything.
func exampleStore(t *testing.T, change func(l *log, s *Store)) State {
	t.Helper()
	l := &log{t: t}
	s := New(Config{})
	mustApply(t, s, Steady, l.create("d.c", 1), l.createIndex("d.c", 1, indexSpec("x")), l.createIndex("d.c", 1, indexSpec("y")),
		l.insert("d.c", 1, bson.D{{Key: "_id", Value: 2}, {Key: "a", Value: 1}, {Key: "b", Value: bson.A{bson.D{{Key: "d", Value: 1}, {Key: "c", Value: 1}}}}}),
		l.insert("d.c", 1, bson.D{{Key: "_id", Value: 1}}),
		l.create("d.cap", 2, bson.E{Key: "capped", Value: true}, bson.E{Key: "size", Value: 4096}),
		l.insert("d.cap", 2, bson.D{{Key: "_id", Value: 2}}), l.insert("d.cap", 2, bson.D{{Key: "_id", Value: 1}}),
		l.create("d.system.views", 3))
	if change != nil {
		change(l, s)
	}
	return s.Snapshot()
}

func TestDiff(t *testing.T) {
	tests := []struct {
		name   string
		change func(l *log, s *Store)
		want   []string
	}{
		{"nothing", nil, nil},
		{"field order", func(l *log, s *Store) {
			mustApply(l.t, s, Steady, l.insert("d.c", 1, bson.D{
				{Key: "_id", Value: 2},
				{Key: "b", Value: bson.A{bson.D{{Key: "c", Value: 1}, {Key: "d", Value: 1}}}},
				{Key: "a", Value: 1},
			}))
		}, []string{"d.c: _id {\"$numberInt\":\"2\"}: {"}},
		{"type of a number", func(l *log, s *Store) {
			mustApply(l.t, s, Steady, l.insert("d.c", 1, bson.D{{Key: "_id", Value: int64(1)}}))
		}, []string{"d.c: _id {\"$numberInt\":\"1\"}: {"}},
		{"document too many", func(l *log, s *Store) {
			mustApply(l.t, s, Steady, l.insert("d.c", 1, bson.D{{Key: "_id", Value: 9}}))
		}, []string{"d.c: _id {\"$numberInt\":\"9\"}: {"}},
		{"document missing", func(l *log, s *Store) { mustApply(l.t, s, Steady, l.delete("d.c", 1, 1)) }, []string{"d.c: _id {\"$numberInt\":\"1\"}: missing"}},
		{"natural order", func(l *log, s *Store) {
			mustApply(l.t, s, Steady, l.delete("d.cap", 2, 2), l.insert("d.cap", 2, bson.D{{Key: "_id", Value: 2}}))
		}, []string{"d.cap: document 0 in natural order: {", "d.cap: document 1 in natural order: {"}},
		{"capped document missing", func(l *log, s *Store) { mustApply(l.t, s, Steady, l.delete("d.cap", 2, 1)) }, []string{"d.cap: document 1 in natural order: none"}},
		{"capped document too many", func(l *log, s *Store) {
			mustApply(l.t, s, Steady, l.insert("d.cap", 2, bson.D{{Key: "_id", Value: 9}}))
		}, []string{"d.cap: document 2 in natural order: {"}},
		{"collection missing", func(l *log, s *Store) { mustApply(l.t, s, Steady, l.drop("d.c", 1)) }, []string{"d.c: missing, want a collection"}},
		{"collection too many", func(l *log, s *Store) { mustApply(l.t, s, Steady, l.create("a.c", 9)) }, []string{"a.c: there is a collection"}},
		{"UUID", func(l *log, s *Store) {
			mustApply(l.t, s, Steady, l.drop("d.system.views", 3), l.create("d.system.views", 9))
		}, nil},
		{"options", func(l *log, s *Store) {
			mustApply(l.t, s, Steady, l.collMod("d.c", 1, bson.E{Key: "recordPreImages", Value: true}))
		}, []string{"d.c: option recordPreImages: true, want none"}},
		{"index missing", func(l *log, s *Store) { mustApply(l.t, s, Steady, l.dropIndex("d.c", 1, "x")) }, []string{"d.c: index x: missing"}},
		{"index too many", func(l *log, s *Store) { mustApply(l.t, s, Steady, l.createIndex("d.c", 1, indexSpec("z"))) }, []string{"d.c: index z: {"}},
		{"index differs", func(l *log, s *Store) {
			mustApply(l.t, s, Steady, l.collMod("d.c", 1, index1(bson.E{Key: "hidden", Value: true})))
		}, []string{"d.c: index x: hidden: true, want none"}},
		{"order of indexes", func(l *log, s *Store) {
			mustApply(l.t, s, Steady, l.dropIndex("d.c", 1, "x"), l.createIndex("d.c", 1, indexSpec("x")))
		}, nil},
		{"view instead of a collection", func(l *log, s *Store) {
			mustApply(l.t, s, Steady, l.drop("d.c", 1), l.insert("d.system.views", 3, bson.D{{Key: "_id", Value: "d.c"}, {Key: "viewOn", Value: "x"}}))
		}, []string{
			"d.c: type view, want collection", `d.c: option viewOn: "x", want none`, "d.c: index _id_: missing", "d.c: index x: missing",
			"d.c: index y: missing", "d.c: _id {\"$numberInt\":\"1\"}: missing", "d.c: _id {\"$numberInt\":\"2\"}: missing", "d.system.views: _id ",
		}},
	}
	want := exampleStore(t, nil)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := exampleStore(t, tt.change)
			diff := Diff(want, got)
			if len(diff) != len(tt.want) {
				t.Fatalf("got %q, want %d differences: %q", diff, len(tt.want), tt.want)
			}
			for i := range diff {
				if !strings.HasPrefix(diff[i], tt.want[i]) {
					t.Errorf("got %q, want it to begin with %q", diff[i], tt.want[i])
				}
			}
			if tt.name == "field order" {
				wantEqual(t, "without field order", Diff(want.IgnoreFieldOrder(), got.IgnoreFieldOrder()), nil)
			}
		})
	}
}

// TestDiffOfCatalog has equal and different catalogs of different versions of the
// server.
func TestDiffOfCatalog(t *testing.T) {
	type E = bson.E
	collection := func(options, spec bson.D) State {
		c := CollectionState{NS: "d.c", Type: TypeCollection, Options: must.Marshal(t, options)}
		if spec != nil {
			c.Indexes = []bson.Raw{must.Marshal(t, append(bson.D{{Key: "name", Value: "x"}}, spec...))}
		}
		return State{[]CollectionState{c}}
	}
	options := func(fields ...E) State { return collection(fields, nil) }
	index := func(fields ...E) State { return collection(bson.D{}, fields) }
	tests := []struct {
		name      string
		want, got State
		diff      []string
	}{
		{
			"order of options", options(E{Key: "a", Value: 1}, E{Key: "b", Value: "x"}),
			options(E{Key: "b", Value: "x"}, E{Key: "a", Value: 1}), nil,
		},
		{"type of a number", options(E{Key: "size", Value: 4096}), options(E{Key: "size", Value: 4096.0}), nil},
		{"value of a number", options(E{Key: "size", Value: 4096}), options(E{Key: "size", Value: 4096.5}), []string{
			`d.c: option size: {"$numberDouble":"4096.5"}, want {"$numberInt":"4096"}`,
		}},
		{"truth is no option", options(E{Key: "temp", Value: true}), options(E{Key: "temp", Value: 1}), []string{
			`d.c: option temp: {"$numberInt":"1"}, want true`,
		}},
		{"options there and not", options(E{Key: "a", Value: 1}), options(E{Key: "b", Value: 1}), []string{
			`d.c: option a: missing, want {"$numberInt":"1"}`, `d.c: option b: {"$numberInt":"1"}, want none`,
		}},
		{
			"an option twice", options(E{Key: "a", Value: 1}, E{Key: "a", Value: 1}), options(E{Key: "a", Value: 1}),
			[]string{`d.c: option a: missing, want {"$numberInt":"1"}`},
		},
		{
			"order in timeseries", options(E{Key: "timeseries", Value: bson.D{{Key: "a", Value: 1}, {Key: "b", Value: 2}}}),
			options(E{Key: "timeseries", Value: bson.D{{Key: "b", Value: int64(2)}, {Key: "a", Value: 1}}}), nil,
		},
		{
			"value in timeseries", options(E{Key: "timeseries", Value: bson.D{{Key: "a", Value: 1}}}),
			options(E{Key: "timeseries", Value: bson.D{{Key: "a", Value: 2}}}),
			[]string{`d.c: option timeseries: {"a": {"$numberInt":"2"}}, want {"a": {"$numberInt":"1"}}`},
		},
		{
			"order inside of others", options(E{Key: "validator", Value: bson.D{{Key: "a", Value: 1}, {Key: "b", Value: 1}}}),
			options(E{Key: "validator", Value: bson.D{{Key: "b", Value: 1}, {Key: "a", Value: 1}}}),
			[]string{`d.c: option validator: {"b"`},
		},
		{
			"number inside of others", options(E{Key: "validator", Value: bson.D{{Key: "a", Value: 1}}}),
			options(E{Key: "validator", Value: bson.D{{Key: "a", Value: 1.0}}}),
			[]string{`d.c: option validator: {"a"`},
		},
		{
			"order, truth and numbers of an index", index(E{Key: "v", Value: 2}, E{Key: "unique", Value: true}),
			index(E{Key: "unique", Value: 1}, E{Key: "v", Value: int64(2)}), nil,
		},
		{"untruth of an index", index(E{Key: "sparse", Value: true}), index(E{Key: "sparse", Value: 0}), []string{
			`d.c: index x: sparse: {"$numberInt":"0"}, want true`,
		}},
		{
			"direction of an index", index(E{Key: "key", Value: bson.D{{Key: "a", Value: 1}}}),
			index(E{Key: "key", Value: bson.D{{Key: "a", Value: 1.0}}}),
			[]string{"d.c: index x: key: {"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			diff := Diff(tt.want, tt.got)
			if len(diff) != len(tt.diff) {
				t.Fatalf("got %q, want %q", diff, tt.diff)
			}
			for i := range diff {
				if !strings.HasPrefix(diff[i], tt.diff[i]) {
					t.Errorf("got %q, want it to begin with %q", diff[i], tt.diff[i])
				}
			}
			if back := Diff(tt.got, tt.want); (len(back) == 0) != (len(diff) == 0) {
				t.Errorf("the other way round: %q", back)
			}
		})
	}
}

func TestDiffStops(t *testing.T) {
	many := exampleStore(t, func(l *log, s *Store) {
		for id := range 3 * maxDifferences {
			mustApply(l.t, s, Steady, l.insert("d.c", 1, bson.D{{Key: "_id", Value: 100 + id}}))
		}
	})
	wantEqual(t, "differences", len(Diff(exampleStore(t, nil), many)), maxDifferences)
}

func TestLoad(t *testing.T) {
	want := exampleStore(t, func(l *log, s *Store) {
		mustApply(l.t, s, Steady, l.insert("d.system.views", 3, bson.D{{Key: "_id", Value: "d.v"}, {Key: "viewOn", Value: "x"}}),
			l.command("d", 4, bson.D{{Key: "create", Value: "k"}, {Key: "clusteredIndex", Value: indexSpec("_id")}}))
	})
	s, err := Load(want, Config{})
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "loaded", Diff(want, s.Snapshot()), nil)

	// Documents that a moving copy saw twice: the last one stays.
	for i := range want.Collections {
		if c := &want.Collections[i]; c.NS == "d.c" {
			c.Documents = append(c.Documents, must.Marshal(t, bson.D{{Key: "_id", Value: 1.0}, {Key: "again", Value: true}}))
		}
	}
	if s, err = Load(want, Config{}); err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "documents", docs(s, "d.c")[0], `{"_id":1.0,"again":true}`)
}

func TestLoadRefuses(t *testing.T) {
	empty := must.Marshal(t, bson.D{})
	coll := func(ns oplog.Namespace, u int, docs ...bson.Raw) CollectionState {
		return CollectionState{NS: ns, Type: TypeCollection, UUID: uid(u), Options: empty, Documents: docs}
	}
	for name, state := range map[string]State{
		"a name twice":           {[]CollectionState{coll("d.c", 1), coll("d.c", 2)}},
		"a UUID twice":           {[]CollectionState{coll("d.c", 1), coll("d.d", 1)}},
		"a document without _id": {[]CollectionState{coll("d.c", 1, empty)}},
	} {
		if _, err := Load(state, Config{}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
