package memstore

import (
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/update"
)

func delta(sections ...bson.E) bson.D {
	return bson.D{{Key: "$v", Value: 2}, {Key: "diff", Value: bson.D(sections)}}
}

func setX(x any) bson.D { return delta(bson.E{Key: "u", Value: bson.D{{Key: "x", Value: x}}}) }

// TestWrites has the rules for inserts, updates and deletes: one operation on
// collections that hold {_id: 1, x: 1} each. The view d.v is on d.c.
func TestWrites(t *testing.T) {
	const missing = "no collection"
	tests := []struct {
		name         string
		op           func(l *log) *oplog.Entry
		ns           oplog.Namespace
		steady, sync any // the documents, or the error's code
		counters     Counters
	}{
		{
			"insert", func(l *log) *oplog.Entry { return l.insert("d.c", 1, bson.D{{Key: "_id", Value: 2}}) }, "d.c",
			[]string{`{"_id":1,"x":1}`, `{"_id":2}`},
			[]string{`{"_id":1,"x":1}`, `{"_id":2}`},
			Counters{},
		},
		{
			"insert without UUID goes by name", func(l *log) *oplog.Entry { return l.insert("d.c", 0, bson.D{{Key: "_id", Value: 2}}) }, "d.c",
			[]string{`{"_id":1,"x":1}`, `{"_id":2}`},
			[]string{`{"_id":1,"x":1}`, `{"_id":2}`},
			Counters{},
		},
		{
			"insert under an old name goes by UUID", func(l *log) *oplog.Entry { return l.insert("d.old", 1, bson.D{{Key: "_id", Value: 2}}) }, "d.c",
			[]string{`{"_id":1,"x":1}`, `{"_id":2}`},
			[]string{`{"_id":1,"x":1}`, `{"_id":2}`},
			Counters{},
		},
		{
			"insert of an existing document replaces it", func(l *log) *oplog.Entry {
				return l.insert("d.c", 1, bson.D{{Key: "_id", Value: 1.0}, {Key: "y", Value: 2}})
			}, "d.c",
			[]string{`{"_id":1.0,"y":2}`},
			[]string{`{"_id":1.0,"y":2}`},
			Counters{InsertOnExistingDoc: 1},
		},
		{
			"insert without its collection", func(l *log) *oplog.Entry { return l.insert("d.c", 9, bson.D{{Key: "_id", Value: 2}}) }, "d.c",
			NamespaceNotFound,
			[]string{`{"_id":1,"x":1}`}, // not into the collection of that name
			Counters{MissingNamespace: 1},
		},
		{
			"insert without its database", func(l *log) *oplog.Entry { return l.insert("no.c", 0, bson.D{{Key: "_id", Value: 2}}) }, "no.c",
			NamespaceNotFound,
			[]string{missing},
			Counters{MissingNamespace: 1},
		},
		{
			"insert into a view", func(l *log) *oplog.Entry { return l.insert("d.v", 0, bson.D{{Key: "_id", Value: 2}}) }, "d.v",
			CommandNotSupportedOnView, CommandNotSupportedOnView,
			Counters{},
		},
		{
			"delta", func(l *log) *oplog.Entry { return l.update("d.c", 1, int64(1), setX(5)) }, "d.c",
			[]string{`{"_id":1,"x":5}`},
			[]string{`{"_id":1,"x":5}`},
			Counters{},
		},
		{
			"replacement", func(l *log) *oplog.Entry {
				return l.update("d.c", 1, 1, bson.D{{Key: "_id", Value: 1}, {Key: "$v", Value: 1}})
			}, "d.c",
			[]string{`{"_id":1,"$v":1}`},
			[]string{`{"_id":1,"$v":1}`},
			Counters{},
		},
		{
			"update with a shard key in o2 goes by _id", func(l *log) *oplog.Entry {
				return l.entry("u", "d.c", uid(1), setX(5), bson.E{Key: "o2", Value: bson.D{{Key: "x", Value: 77}, {Key: "_id", Value: 1}}})
			}, "d.c",
			[]string{`{"_id":1,"x":5}`},
			[]string{`{"_id":1,"x":5}`},
			Counters{},
		},
		{
			"delta without its document", func(l *log) *oplog.Entry { return l.update("d.c", 1, 2, setX(5)) }, "d.c",
			[]string{`{"_id":1,"x":1}`, `{"_id":2,"x":5}`},
			[]string{`{"_id":1,"x":1}`},
			Counters{UpdateOnMissingDoc: 1},
		},
		{
			"replacement without its document", func(l *log) *oplog.Entry {
				return l.update("d.c", 1, 2, bson.D{{Key: "_id", Value: 2}, {Key: "y", Value: 1}})
			}, "d.c",
			[]string{`{"_id":1,"x":1}`, `{"_id":2,"y":1}`},
			[]string{`{"_id":1,"x":1}`},
			Counters{UpdateOnMissingDoc: 1},
		},
		{
			"upsert", func(l *log) *oplog.Entry { return l.update("d.c", 1, 2, setX(5), bson.E{Key: "b", Value: true}) }, "d.c",
			[]string{`{"_id":1,"x":1}`, `{"_id":2,"x":5}`},
			[]string{`{"_id":1,"x":1}`, `{"_id":2,"x":5}`},
			Counters{},
		},
		{
			"update of a missing document in a capped collection", func(l *log) *oplog.Entry { return l.update("d.cap", 2, 2, setX(5)) }, "d.cap",
			[]string{`{"_id":1,"x":1}`},
			[]string{`{"_id":1,"x":1}`},
			Counters{UpdateOnMissingDoc: 1},
		},
		{
			"update without its collection", func(l *log) *oplog.Entry { return l.update("d.c", 9, 1, setX(5)) }, "d.c",
			NamespaceNotFound,
			[]string{`{"_id":1,"x":1}`},
			Counters{MissingNamespace: 1},
		},
		{
			"update that breaks the grammar", func(l *log) *oplog.Entry {
				return l.update("d.c", 1, 1, delta(bson.E{Key: "z", Value: bson.D{}}))
			}, "d.c",
			UpdateFailed, UpdateFailed,
			Counters{},
		},
		{
			"delete", func(l *log) *oplog.Entry { return l.delete("d.c", 1, 1) }, "d.c",
			[]string{},
			[]string{},
			Counters{},
		},
		{
			"delete of a missing document", func(l *log) *oplog.Entry { return l.delete("d.c", 1, 2) }, "d.c",
			[]string{`{"_id":1,"x":1}`},
			[]string{`{"_id":1,"x":1}`},
			Counters{DeleteWasEmpty: 1},
		},
		{
			"delete without its collection", func(l *log) *oplog.Entry { return l.delete("d.c", 9, 1) }, "d.c",
			[]string{`{"_id":1,"x":1}`},
			[]string{`{"_id":1,"x":1}`},
			Counters{DeleteWasEmpty: 1},
		},
		{
			"noop", func(l *log) *oplog.Entry { return l.entry("n", "", oplog.UUID{}, bson.D{{Key: "msg", Value: "x"}}) }, "d.c",
			[]string{`{"_id":1,"x":1}`},
			[]string{`{"_id":1,"x":1}`},
			Counters{},
		},
		{
			"another member's databases are left alone", func(l *log) *oplog.Entry { return l.insert("config.c", 9, bson.D{{Key: "_id", Value: 1}}) }, "config.c",
			[]string{missing},
			[]string{missing},
			Counters{},
		},
		{
			"feature compatibility version", func(l *log) *oplog.Entry {
				return l.update("admin.system.version", 9, fcvID, bson.D{{Key: "_id", Value: fcvID}})
			}, "d.c",
			[]string{`{"_id":1,"x":1}`},
			OplogOperationUnsupported,
			Counters{},
		},
		{
			"drop of the feature compatibility version", func(l *log) *oplog.Entry { return l.drop("admin.system.version", 9) }, "d.c",
			[]string{`{"_id":1,"x":1}`},
			OplogOperationUnsupported,
			Counters{},
		},
		{
			"another document beside the feature compatibility version", func(l *log) *oplog.Entry {
				return l.insert("admin.system.version", 9, bson.D{{Key: "_id", Value: "other"}})
			}, "d.c",
			[]string{`{"_id":1,"x":1}`},
			[]string{`{"_id":1,"x":1}`},
			Counters{},
		},
	}
	for _, tt := range tests {
		for mode, want := range map[Mode]any{Steady: tt.steady, InitialSync: tt.sync} {
			t.Run(tt.name+"/"+mode.String(), func(t *testing.T) {
				l := &log{t: t}
				s := New(Config{})
				mustApply(
					t, s, Steady,
					l.create("d.c", 1), l.insert("d.c", 1, bson.D{{Key: "_id", Value: 1}, {Key: "x", Value: 1}}),
					l.create("d.cap", 2, bson.E{Key: "capped", Value: true}, bson.E{Key: "size", Value: 4096}),
					l.insert("d.cap", 2, bson.D{{Key: "_id", Value: 1}, {Key: "x", Value: 1}}),
					l.create("d.system.views", 3),
					l.insert("d.system.views", 3, bson.D{{Key: "_id", Value: "d.v"}, {Key: "viewOn", Value: "c"}, {Key: "pipeline", Value: bson.A{}}}),
				)
				before := s.Snapshot()
				err := apply(t, s, mode, tt.op(l))
				if code, ok := want.(Code); ok {
					if !errors.Is(err, code) {
						t.Fatalf("got %v, want %s", err, code)
					}
					if e, ok := errors.AsType[*OpError](err); !ok || e.OpTime.TS.I != l.n {
						t.Errorf("got %v, want an OpError that names entry %d", err, l.n)
					}
					wantEqual(t, "after an error", Diff(before, s.Snapshot()), nil)
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				wantEqual(t, "documents", docs(s, tt.ns), want.([]string))
				wantEqual(t, "counters", s.Counters(), tt.counters)
			})
		}
	}
}

func TestUpdateFailedSaysWhy(t *testing.T) {
	l := &log{t: t}
	s := New(Config{})
	mustApply(t, s, Steady, l.create("d.c", 1), l.insert("d.c", 1, bson.D{{Key: "_id", Value: 1}}))
	err := apply(t, s, Steady, l.update("d.c", 1, 1, delta(bson.E{Key: "z", Value: bson.D{}})))
	if !errors.Is(err, update.ErrBadDelta) {
		t.Errorf("got %v, want ErrBadDelta", err)
	}
}

func TestGroupsNeedAnApplier(t *testing.T) {
	l := &log{t: t}
	e := l.command("admin", 0, bson.D{{Key: "applyOps", Value: bson.A{}}})
	if err := New(Config{}).Apply(&e.Op, Steady); !errors.Is(err, NeedsApplier) {
		t.Errorf("got %v, want NeedsApplier", err)
	}
}

func TestNaturalOrder(t *testing.T) {
	l := &log{t: t}
	s := New(Config{})
	mustApply(t, s, Steady, l.create("d.c", 1, bson.E{Key: "capped", Value: true}, bson.E{Key: "size", Value: 4096}))
	for _, id := range []int{3, 1, 2} {
		mustApply(t, s, Steady, l.insert("d.c", 1, bson.D{{Key: "_id", Value: id}}))
	}
	mustApply(t, s, Steady, l.update("d.c", 1, 3, bson.D{{Key: "_id", Value: 3}, {Key: "x", Value: 1}}))
	wantEqual(t, "replacing keeps the place", docs(s, "d.c"), []string{`{"_id":3,"x":1}`, `{"_id":1}`, `{"_id":2}`})
	mustApply(t, s, Steady, l.delete("d.c", 1, 3), l.insert("d.c", 1, bson.D{{Key: "_id", Value: 3}}))
	wantEqual(t, "inserting again goes to the end", docs(s, "d.c"), []string{`{"_id":1}`, `{"_id":2}`, `{"_id":3}`})
}

func TestTrimCapped(t *testing.T) {
	l := &log{t: t}
	s := New(Config{TrimCapped: true})
	mustApply(t, s, Steady,
		l.create("d.max", 1, bson.E{Key: "capped", Value: true}, bson.E{Key: "size", Value: 4096}, bson.E{Key: "max", Value: 2}),
		l.create("d.size", 2, bson.E{Key: "capped", Value: true}, bson.E{Key: "size", Value: 256}),
		l.create("d.plain", 3))
	for id := range 20 {
		for u, ns := range []oplog.Namespace{"d.max", "d.size", "d.plain"} {
			mustApply(t, s, Steady, l.insert(ns, u+1, bson.D{{Key: "_id", Value: id}, {Key: "x", Value: "0123456789012345678901234567890123456789"}}))
		}
	}
	for range 20 { // replacing takes no more room
		mustApply(t, s, Steady, l.insert("d.size", 2, bson.D{{Key: "_id", Value: 19}, {Key: "x", Value: "0123456789012345678901234567890123456789"}}))
	}
	for ns, want := range map[oplog.Namespace]int{"d.max": 2, "d.size": 4, "d.plain": 20} {
		c, _ := s.Collection(ns)
		wantEqual(t, string(ns), c.Len(), want)
		if _, newest := c.Get(int32Value(19)); !newest {
			t.Errorf("%s: the newest document is gone", ns)
		}
	}
}

func TestCollation(t *testing.T) {
	fr := bson.D{{Key: "locale", Value: "fr"}, {Key: "strength", Value: 2}}
	l := &log{t: t}
	s := New(Config{})
	mustApply(t, s, Steady,
		l.create("d.c", 1, bson.E{Key: "collation", Value: fr}),
		l.insert("d.c", 1, bson.D{{Key: "_id", Value: "b"}}), l.insert("d.c", 1, bson.D{{Key: "_id", Value: "A"}}),
		l.update("d.c", 1, "a", bson.D{{Key: "_id", Value: "A"}, {Key: "x", Value: 1}}))
	c, _ := s.Collection("d.c")
	var all []string
	for doc := range c.All() {
		all = append(all, relaxed(doc))
	}
	wantEqual(t, "by _id", all, []string{`{"_id":"A","x":1}`, `{"_id":"b"}`})

	wantEqual(t, "collections without their collation", len(s.Uncollated()), 0)

	// A collation that cannot be followed: _ids compare by bytes, which is
	// reported.
	shifted := bson.D{{Key: "locale", Value: "fr"}, {Key: "strength", Value: 2}, {Key: "alternate", Value: "shifted"}}
	mustApply(t, s, Steady, l.create("d.e", 2, bson.E{Key: "collation", Value: shifted}), l.insert("d.e", 2, bson.D{{Key: "_id", Value: 1}}))
	wantEqual(t, "while no _id is text", len(s.Uncollated()), 0)
	mustApply(t, s, Steady, l.insert("d.e", 2, bson.D{{Key: "_id", Value: bson.D{{Key: "k", Value: bson.A{"a"}}}}}))
	clone := s.Clone()
	mustApply(t, clone, Steady, l.create("d.f", 3, bson.E{Key: "collation", Value: shifted}),
		l.insert("d.f", 3, bson.D{{Key: "_id", Value: "a"}}), l.insert("d.f", 3, bson.D{{Key: "_id", Value: "A"}}), l.delete("d.f", 3, "a"))
	wantEqual(t, "what is left", docs(clone, "d.f"), []string{`{"_id":"A"}`})
	for ns, err := range clone.Uncollated() {
		if c, ok := errors.AsType[*bsonorder.CollationError](err); !ok || c.Field != "alternate" {
			t.Errorf("%s: got %v, want the option alternate", ns, err)
		}
	}
	wantEqual(t, "collections of the clone", len(clone.Uncollated()), 2)
	wantEqual(t, "collections of the origin", len(s.Uncollated()), 1)
}

func TestClone(t *testing.T) {
	l := &log{t: t}
	s := New(Config{})
	mustApply(t, s, Steady, l.create("d.c", 1), l.insert("d.c", 1, bson.D{{Key: "_id", Value: 1}}), l.createIndex("d.c", 1, indexSpec("x")))
	before := s.Snapshot()
	c := s.Clone()
	mustApply(t, c, Steady,
		l.insert("d.c", 1, bson.D{{Key: "_id", Value: 2}}), l.delete("d.c", 1, 1),
		l.dropIndex("d.c", 1, "x"), l.createIndex("d.c", 1, indexSpec("y")),
		l.rename("d.c", "d.r", 1, 0), l.create("d.n", 2))
	wantEqual(t, "the original after changes of its clone", Diff(before, s.Snapshot()), nil)
	changed := c.Snapshot()
	mustApply(t, s, Steady, l.drop("d.c", 1))
	wantEqual(t, "the clone after changes of the original", Diff(changed, c.Snapshot()), nil)
}
