package memstore

import (
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// TestAcceptableErrors has every error that the applier tolerates, on a store
// that holds d.c with an index x only. No command may change anything.
func TestAcceptableErrors(t *testing.T) {
	hide := bson.E{Key: "index", Value: bson.D{{Key: "name", Value: "y"}, {Key: "hidden", Value: true}}}
	tests := []struct {
		name string
		op   func(l *log) *oplog.Entry
		code Code
	}{
		{"create NamespaceExists", func(l *log) *oplog.Entry { return l.create("d.c", 0) }, NamespaceExists},
		{"createIndexes IndexAlreadyExists", func(l *log) *oplog.Entry { return l.createIndex("d.c", 1, indexSpec("x")) }, IndexAlreadyExists},
		{"createIndexes NamespaceNotFound", func(l *log) *oplog.Entry { return l.createIndex("d.c", 9, indexSpec("y")) }, NamespaceNotFound},
		{"startIndexBuild IndexAlreadyExists", func(l *log) *oplog.Entry { return l.build("startIndexBuild", 1, 50, indexSpec("x")) }, IndexAlreadyExists},
		{"startIndexBuild NamespaceNotFound", func(l *log) *oplog.Entry { return l.build("startIndexBuild", 9, 50, indexSpec("y")) }, NamespaceNotFound},
		{"commitIndexBuild NamespaceNotFound", func(l *log) *oplog.Entry { return l.build("commitIndexBuild", 9, 50, indexSpec("y")) }, NamespaceNotFound},
		{"abortIndexBuild NamespaceNotFound", func(l *log) *oplog.Entry { return l.build("abortIndexBuild", 9, 50, indexSpec("y")) }, NamespaceNotFound},
		{"collMod NamespaceNotFound", func(l *log) *oplog.Entry { return l.collMod("d.c", 9, hide) }, NamespaceNotFound},
		{"collMod IndexNotFound", func(l *log) *oplog.Entry { return l.collMod("d.c", 1, hide) }, IndexNotFound},
		{"drop NamespaceNotFound", func(l *log) *oplog.Entry { return l.drop("d.c", 9) }, NamespaceNotFound},
		{"drop by name NamespaceNotFound", func(l *log) *oplog.Entry { return l.drop("d.none", 0) }, NamespaceNotFound},
		{"dropIndexes NamespaceNotFound", func(l *log) *oplog.Entry { return l.dropIndex("d.c", 9, "x") }, NamespaceNotFound},
		{"dropIndexes IndexNotFound", func(l *log) *oplog.Entry { return l.dropIndex("d.c", 1, "y") }, IndexNotFound},
		{"renameCollection NamespaceNotFound", func(l *log) *oplog.Entry { return l.rename("d.c", "d.r", 9, 0) }, NamespaceNotFound},
		{"emptycapped NamespaceNotFound", func(l *log) *oplog.Entry {
			return l.command("d", 9, bson.D{{Key: "emptycapped", Value: "c"}})
		}, NamespaceNotFound},
	}
	for _, tt := range tests {
		for _, mode := range []Mode{Steady, InitialSync} {
			t.Run(tt.name+"/"+mode.String(), func(t *testing.T) {
				l := &log{t: t}
				s := New(Config{})
				mustApply(t, s, Steady, l.create("d.c", 1), l.createIndex("d.c", 1, indexSpec("x")))
				before := s.Snapshot()
				e := tt.op(l)
				if err := s.run(&e.Op, mode); !errors.Is(err, tt.code) {
					t.Errorf("got %v, want %s", err, tt.code)
				}
				mustApply(t, s, mode, e)
				wantEqual(t, "the state", Diff(before, s.Snapshot()), nil)
				wantEqual(t, "counters", s.Counters(), Counters{AcceptableErrors: 1})
			})
		}
	}
}

// TestRefused has what must stop the log instead of being skipped.
func TestRefused(t *testing.T) {
	tests := []struct {
		name string
		op   func(l *log) *oplog.Entry
		want error
	}{
		{"unknown collection option", func(l *log) *oplog.Entry { return l.create("d.n", 2, bson.E{Key: "novel", Value: 1}) }, InvalidOptions},
		{"unknown index field", func(l *log) *oplog.Entry {
			return l.createIndex("d.c", 1, indexSpec("y", bson.E{Key: "novel", Value: 1}))
		}, InvalidOptions},
		{"index without a name", func(l *log) *oplog.Entry {
			return l.createIndex("d.c", 1, bson.D{{Key: "v", Value: 2}, {Key: "key", Value: bson.D{{Key: "y", Value: 1}}}})
		}, oplog.ErrMissingField},
		{"build of an unknown index field", func(l *log) *oplog.Entry {
			return l.build("startIndexBuild", 1, 50, indexSpec("y", bson.E{Key: "novel", Value: 1}))
		}, InvalidOptions},
		{"another index of the same name", func(l *log) *oplog.Entry {
			return l.createIndex("d.c", 1, indexSpec("x", bson.E{Key: "unique", Value: true}))
		}, IndexOptionsConflict},
		{"drop of the index on _id", func(l *log) *oplog.Entry { return l.dropIndex("d.c", 1, "_id_") }, InvalidOptions},
		{"unknown option of collMod", func(l *log) *oplog.Entry { return l.collMod("d.c", 1, bson.E{Key: "novel", Value: 1}) }, InvalidOptions},
		{"unknown change of an index", func(l *log) *oplog.Entry {
			return l.collMod("d.c", 1, bson.E{Key: "index", Value: bson.D{{Key: "name", Value: "x"}, {Key: "novel", Value: 1}}})
		}, InvalidOptions},
		{"change of an index that is no document", func(l *log) *oplog.Entry { return l.collMod("d.c", 1, bson.E{Key: "index", Value: "x"}) }, InvalidOptions},
		{"expiry of a text", func(l *log) *oplog.Entry {
			return l.collMod("d.c", 1, bson.E{Key: "expireAfterSeconds", Value: "soon"})
		}, InvalidOptions},
		{"expiry of a document", func(l *log) *oplog.Entry {
			return l.collMod("d.c", 1, bson.E{Key: "expireAfterSeconds", Value: bson.D{}})
		}, InvalidOptions},
		{"time series of another collection", func(l *log) *oplog.Entry {
			return l.collMod("d.c", 1, bson.E{Key: "timeseries", Value: bson.D{{Key: "granularity", Value: "hours"}}})
		}, InvalidOptions},
		{"size of a collection that is not capped", func(l *log) *oplog.Entry { return l.collMod("d.c", 1, bson.E{Key: "cappedSize", Value: 512}) }, InvalidOptions},
		{"rename onto itself", func(l *log) *oplog.Entry { return l.rename("d.c", "d.r", 1, 1) }, InvalidOptions},
		{"files from elsewhere", func(l *log) *oplog.Entry {
			return l.command("d", 2, bson.D{{Key: "importCollection", Value: "d.i"}})
		}, oplog.ErrUnsupported},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := &log{t: t}
			s := New(Config{})
			mustApply(t, s, Steady, l.create("d.c", 1), l.createIndex("d.c", 1, indexSpec("x")))
			before := s.Snapshot()
			if err := apply(t, s, Steady, tt.op(l)); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			wantEqual(t, "the state", Diff(before, s.Snapshot()), nil)
		})
	}
}

func options(s *Store, ns oplog.Namespace) string {
	c, ok := s.Collection(ns)
	if !ok {
		return "no collection"
	}
	return relaxed(c.Options())
}

func indexes(s *Store, ns oplog.Namespace) []string {
	c, ok := s.Collection(ns)
	if !ok {
		return []string{"no collection"}
	}
	all := []string{}
	for _, spec := range c.Indexes() {
		all = append(all, relaxed(spec))
	}
	return all
}

func TestCreate(t *testing.T) {
	const idIndex2 = `{"v":2,"key":{"_id":1},"name":"_id_"}`
	tests := []struct {
		name    string
		o       bson.D
		options string
		indexes []string
	}{
		{"plain", bson.D{{Key: "idIndex", Value: idSpec}}, `{}`, []string{idIndex2}},
		{"index on _id left out", nil, `{}`, []string{`{"v":1,"key":{"_id":1},"name":"_id_"}`}},
		{
			"index on _id left out under a collation",
			bson.D{{Key: "collation", Value: bson.D{{Key: "locale", Value: "fr"}}}},
			`{"collation":{"locale":"fr"}}`,
			[]string{`{"v":2,"key":{"_id":1},"name":"_id_","collation":{"locale":"fr"}}`},
		},
		{
			"options come in the server's order",
			bson.D{
				{Key: "validationAction", Value: "warn"},
				{Key: "validator", Value: bson.D{{Key: "x", Value: 1}}},
				{Key: "max", Value: 5},
				{Key: "size", Value: 512},
				{Key: "capped", Value: true},
				{Key: "idIndex", Value: idSpec},
			},
			`{"capped":true,"size":512,"max":5,"validator":{"x":1},"validationAction":"warn"}`,
			[]string{idIndex2},
		},
		{
			"what is off is left out",
			bson.D{
				{Key: "capped", Value: false},
				{Key: "size", Value: 512},
				{Key: "temp", Value: false},
				{Key: "flags", Value: 1},
				{Key: "changeStreamPreAndPostImages", Value: bson.D{{Key: "enabled", Value: false}}},
				{Key: "idIndex", Value: idSpec},
			},
			`{}`,
			[]string{idIndex2},
		},
		{
			"clustered by a flag",
			bson.D{{Key: "clusteredIndex", Value: true}, {Key: "expireAfterSeconds", Value: 5}},
			`{"clusteredIndex":true,"expireAfterSeconds":5}`,
			[]string{},
		},
		{
			"clustered by an index",
			bson.D{{Key: "clusteredIndex", Value: bson.D{
				{Key: "v", Value: 2}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "name", Value: "mine"}, {Key: "unique", Value: true},
			}}},
			`{"clusteredIndex":{"v":2,"key":{"_id":1},"name":"mine","unique":true}}`,
			[]string{`{"v":2,"key":{"_id":1},"name":"mine","unique":true,"clustered":true}`},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := &log{t: t}
			s := New(Config{})
			mustApply(t, s, Steady, l.command("d", 1, append(bson.D{{Key: "create", Value: "c"}}, tt.o...)))
			wantEqual(t, "options", options(s, "d.c"), tt.options)
			wantEqual(t, "indexes", indexes(s, "d.c"), tt.indexes)
		})
	}
}

func TestClusteredNaturalOrder(t *testing.T) {
	l := &log{t: t}
	s := New(Config{})
	mustApply(t, s, Steady, l.command("d", 1, bson.D{{Key: "create", Value: "c"}, {Key: "clusteredIndex", Value: true}}))
	for _, id := range []int{2, 3, 1} {
		mustApply(t, s, Steady, l.insert("d.c", 1, bson.D{{Key: "_id", Value: id}}))
	}
	wantEqual(t, "natural order", docs(s, "d.c"), []string{`{"_id":1}`, `{"_id":2}`, `{"_id":3}`})
}

// TestCreateExisting has the collections 1 as d.a and 2 as d.b, and creates one
// of them or a new one under a name that may be taken.
func TestCreateExisting(t *testing.T) {
	tests := []struct {
		name  string
		ns    oplog.Namespace
		uuid  int
		mode  Mode
		names []string
		want  map[int]oplog.Namespace
		count Counters
	}{
		{"same UUID, same name", "d.a", 1, Steady, []string{"d.a", "d.b"}, map[int]oplog.Namespace{1: "d.a"}, Counters{CreateOnExisting: 1}},
		{"same UUID, free name", "d.c", 1, InitialSync, []string{"d.b", "d.c"}, map[int]oplog.Namespace{1: "d.c"}, Counters{CreateOnExisting: 1}},
		{
			"same UUID, taken name", "d.b", 1, InitialSync,
			[]string{"d.b", "d.tmp00001.create"},
			map[int]oplog.Namespace{1: "d.b", 2: "d.tmp00001.create"},
			Counters{CreateOnExisting: 1},
		},
		{
			"new UUID, taken name", "d.b", 3, InitialSync,
			[]string{"d.a", "d.b", "d.tmp00001.create"},
			map[int]oplog.Namespace{3: "d.b", 2: "d.tmp00001.create"},
			Counters{},
		},
		{"new UUID, taken name", "d.b", 3, Steady, []string{"d.a", "d.b"}, map[int]oplog.Namespace{2: "d.b"}, Counters{AcceptableErrors: 1}},
		{"same UUID, taken name", "d.b", 1, Steady, []string{"d.a", "d.b"}, map[int]oplog.Namespace{2: "d.b"}, Counters{AcceptableErrors: 1}},
	}
	for _, tt := range tests {
		t.Run(tt.name+"/"+tt.mode.String(), func(t *testing.T) {
			l := &log{t: t}
			s := New(Config{})
			mustApply(t, s, Steady, l.create("d.a", 1), l.create("d.b", 2))
			mustApply(t, s, tt.mode, l.create(tt.ns, tt.uuid))
			wantEqual(t, "names", names(s), tt.names)
			for u, ns := range tt.want {
				if c, ok := s.CollectionByUUID(uid(u)); !ok || c.NS() != ns {
					t.Errorf("collection %d is not %s", u, ns)
				}
			}
			wantEqual(t, "counters", s.Counters(), tt.count)
		})
	}
}

// TestRename has the collections 1 as d.a, 2 as d.b and 3 as d.c.
func TestRename(t *testing.T) {
	tests := []struct {
		name             string
		from, to         oplog.Namespace
		uuid, dropTarget int
		want             map[int]oplog.Namespace // "" for a collection that is gone
	}{
		{"free name", "d.a", "d.n", 1, 0, map[int]oplog.Namespace{1: "d.n", 2: "d.b", 3: "d.c"}},
		{"by UUID, whatever it was called", "d.old", "d.n", 1, 0, map[int]oplog.Namespace{1: "d.n", 2: "d.b", 3: "d.c"}},
		{"by name where there is no UUID", "d.a", "d.n", 0, 0, map[int]oplog.Namespace{1: "d.n", 2: "d.b", 3: "d.c"}},
		{"replacing", "d.a", "d.b", 1, 2, map[int]oplog.Namespace{1: "d.b", 2: "", 3: "d.c"}},
		{"replacing what has another name by now", "d.a", "d.n", 1, 2, map[int]oplog.Namespace{1: "d.n", 2: "", 3: "d.c"}},
		{"replacing one that is gone, while another has the name", "d.a", "d.b", 1, 9, map[int]oplog.Namespace{1: "d.b", 2: "d.tmp00001.rename", 3: "d.c"}},
		{"replacing one, while another has the name", "d.a", "d.b", 1, 3, map[int]oplog.Namespace{1: "d.b", 2: "d.tmp00001.rename", 3: ""}},
		{"taken name", "d.a", "d.b", 1, 0, map[int]oplog.Namespace{1: "d.b", 2: "d.tmp00001.rename", 3: "d.c"}},
		{"done already", "d.old", "d.a", 1, 0, map[int]oplog.Namespace{1: "d.a", 2: "d.b", 3: "d.c"}},
		{"done already, but for the drop", "d.old", "d.a", 1, 2, map[int]oplog.Namespace{1: "d.a", 2: "", 3: "d.c"}},
		{"source gone: only the drop is left", "d.x", "d.b", 9, 2, map[int]oplog.Namespace{1: "d.a", 2: "", 3: "d.c"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := &log{t: t}
			s := New(Config{})
			mustApply(t, s, Steady, l.create("d.a", 1), l.create("d.b", 2), l.create("d.c", 3))
			mustApply(t, s, InitialSync, l.rename(tt.from, tt.to, tt.uuid, tt.dropTarget))
			for u, ns := range tt.want {
				c, ok := s.CollectionByUUID(uid(u))
				switch {
				case ns == "" && ok:
					t.Errorf("collection %d is there as %s", u, c.NS())
				case ns != "" && (!ok || c.NS() != ns):
					t.Errorf("collection %d is not %s; there are %v", u, ns, names(s))
				}
			}
		})
	}
}

func TestRenameTakesTempAway(t *testing.T) {
	for stay, want := range map[bool]string{false: `{"capped":true,"size":512}`, true: `{"capped":true,"size":512,"temp":true}`} {
		l := &log{t: t}
		s := New(Config{})
		e := l.command("d", 1, bson.D{{Key: "renameCollection", Value: "d.a"}, {Key: "to", Value: "d.b"}, {Key: "stayTemp", Value: stay}})
		mustApply(t, s, Steady, l.create("d.a", 1, bson.E{Key: "capped", Value: true}, bson.E{Key: "size", Value: 512}, bson.E{Key: "temp", Value: true}))
		mustApply(t, s, Steady, e)
		wantEqual(t, "options", options(s, "d.b"), want)
	}
}

func TestDropDatabase(t *testing.T) {
	l := &log{t: t}
	s := New(Config{})
	drop := l.command("d", 0, bson.D{{Key: "dropDatabase", Value: 1}})
	mustApply(t, s, Steady, l.create("d.a", 1), l.create("d.b", 2), l.create("dd.a", 3))
	mustApply(t, s, Steady, drop)
	wantEqual(t, "names", names(s), []string{"dd.a"})
	mustApply(t, s, Steady, l.command("d", 0, bson.D{{Key: "dropDatabase", Value: 1}}))
}

func TestEmptyCapped(t *testing.T) {
	l := &log{t: t}
	s := New(Config{})
	mustApply(t, s, Steady, l.create("d.a", 1), l.insert("d.a", 1, bson.D{{Key: "_id", Value: 1}}),
		l.command("d", 1, bson.D{{Key: "emptycapped", Value: "a"}}),
		l.command("d", 1, bson.D{{Key: "dbCheck", Value: "d.a"}, {Key: "type", Value: "collection"}}))
	wantEqual(t, "documents", docs(s, "d.a"), []string{})
}

func TestIndexBuilds(t *testing.T) {
	l := &log{t: t}
	s := New(Config{})
	wantNames := func(what string, want ...string) {
		t.Helper()
		c, _ := s.Collection("d.c")
		var got []string
		for _, spec := range c.Indexes() {
			got = append(got, indexName(spec))
		}
		wantEqual(t, what, got, want)
	}
	mustApply(t, s, Steady, l.create("d.c", 1),
		l.build("startIndexBuild", 1, 50, indexSpec("slow"), indexSpec("slow2")),
		l.build("startIndexBuild", 1, 51, indexSpec("quick")),
		l.createIndex("d.c", 1, indexSpec("now")))
	wantNames("while they are built", "_id_", "now")
	mustApply(t, s, Steady, l.build("commitIndexBuild", 1, 51, indexSpec("quick")))
	wantNames("one is ready", "_id_", "quick", "now")
	mustApply(t, s, Steady, l.build("commitIndexBuild", 1, 50, indexSpec("slow"), indexSpec("slow2")))
	wantNames("in the order of their starts", "_id_", "slow", "slow2", "quick", "now")
	mustApply(t, s, Steady,
		l.build("startIndexBuild", 1, 52, indexSpec("never")),
		l.build("abortIndexBuild", 1, 52, indexSpec("never")),
		l.build("commitIndexBuild", 1, 53, indexSpec("late")),
		l.dropIndex("d.c", 1, "slow"))
	wantNames("aborted, started before the log, dropped", "_id_", "slow2", "quick", "now", "late")
	mustApply(t, s, Steady, l.createIndex("d.c", 1, indexSpec("never")))
	wantNames("an aborted build is forgotten", "_id_", "slow2", "quick", "now", "late", "never")

	// A copy shows indexes that are being built like any other; what builds them
	// is not known.
	for _, mode := range []Mode{Steady, InitialSync} {
		copied, err := Load(s.Snapshot(), Config{})
		if err != nil {
			t.Fatal(err)
		}
		mustApply(t, copied, mode,
			l.build("startIndexBuild", 1, 55, indexSpec("slow3")),
			l.build("abortIndexBuild", 1, 54, indexSpec("quick"), indexSpec("late"), indexSpec("slow3")))
		c, _ := copied.Collection("d.c")
		if c.find("slow3") < 0 {
			t.Error("an index that another build builds is gone")
		}
		mustApply(t, copied, mode, l.build("commitIndexBuild", 1, 55, indexSpec("slow3")))
		got := []string{}
		for _, spec := range c.Indexes() {
			got = append(got, indexName(spec))
		}
		wantEqual(t, "aborted in a copy, "+mode.String(), got, []string{"_id_", "slow2", "now", "never", "slow3"})
	}
}

func TestListedIndex(t *testing.T) {
	given := bson.D{
		{Key: "v", Value: int64(2)},
		{Key: "unique", Value: 1},
		{Key: "key", Value: bson.D{{Key: "b", Value: 1}, {Key: "a", Value: -1.0}}},
		{Key: "name", Value: "n"},
		{Key: "ns", Value: "d.c"},
		{Key: "max", Value: 180},
		{Key: "min", Value: -180.5},
		{Key: "bits", Value: 26.0},
		{Key: "sparse", Value: false},
		{Key: "hidden", Value: true},
		{Key: "expireAfterSeconds", Value: 3600.5},
	}
	want := `{"v":{"$numberInt":"2"},"key":{"b":{"$numberInt":"1"},"a":{"$numberDouble":"-1.0"}},"name":"n","unique":true,"hidden":true,` +
		`"sparse":false,"expireAfterSeconds":{"$numberInt":"3600"},"bits":{"$numberInt":"26"},"min":{"$numberDouble":"-180.5"},"max":{"$numberDouble":"180.0"}}`
	got, err := bson.MarshalExtJSON(listedIndex(must.Marshal(t, given)), true, false)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "listed", string(got), want)
}
