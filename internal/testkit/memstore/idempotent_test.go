package memstore

import (
	"fmt"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/update"
)

// TestIdempotency has the cases of the server's tests of that name that do not
// depend on keys of indexes, which are not kept here.
func TestIdempotency(t *testing.T) {
	fr := bson.E{Key: "collation", Value: bson.D{{Key: "locale", Value: "fr"}, {Key: "strength", Value: 2}}}
	text := func(language string) bson.D {
		return bson.D{
			{Key: "v", Value: 2},
			{Key: "key", Value: bson.D{{Key: "x", Value: "text"}}},
			{Key: "name", Value: "x"},
			{Key: "default_language", Value: language},
		}
	}
	tests := []struct {
		name    string
		entries func(l *log) []*oplog.Entry
	}{
		{"IndexWithDifferentOptions", func(l *log) []*oplog.Entry {
			return []*oplog.Entry{l.createIndex("d.c", 1, text("spanish")), l.dropIndex("d.c", 1, "x"), l.createIndex("d.c", 1, text("english"))}
		}},
		{"UniqueKeyIndex", func(l *log) []*oplog.Entry {
			doc := func(id int) bson.D { return bson.D{{Key: "_id", Value: id}, {Key: "x", Value: 5}} }
			return []*oplog.Entry{
				l.insert("d.c", 1, doc(1)), l.update("d.c", 1, 1, setX(6)), l.insert("d.c", 1, doc(2)),
				l.createIndex("d.c", 1, indexSpec("x", bson.E{Key: "unique", Value: true})),
			}
		}},
		{"CreateCollectionWithValidation", func(l *log) []*oplog.Entry {
			valid := bson.E{Key: "validator", Value: bson.D{{Key: "a", Value: 1}}}
			return []*oplog.Entry{
				l.create("d.n", 2, valid), l.collMod("d.n", 2, bson.E{Key: "validator", Value: bson.D{{Key: "b", Value: 1}}}), l.drop("d.n", 2), l.create("d.n", 3, valid),
			}
		}},
		{"CreateCollectionWithCollation", func(l *log) []*oplog.Entry {
			return []*oplog.Entry{
				l.create("d.n", 2, fr), l.insert("d.n", 2, bson.D{{Key: "_id", Value: "a"}}), l.update("d.n", 2, "A", setX(1)),
				l.drop("d.n", 2), l.create("d.n", 3), l.insert("d.n", 3, bson.D{{Key: "_id", Value: "A"}}), l.insert("d.n", 3, bson.D{{Key: "_id", Value: "a"}}),
			}
		}},
		{"CreateCollectionWithView", func(l *log) []*oplog.Entry {
			return []*oplog.Entry{
				l.create("d.system.views", 2), l.insert("d.system.views", 2, bson.D{{Key: "_id", Value: "d.n"}, {Key: "viewOn", Value: "c"}}),
				l.delete("d.system.views", 2, "d.n"), l.create("d.n", 3),
			}
		}},
		{"a view where a collection was", func(l *log) []*oplog.Entry {
			return []*oplog.Entry{
				l.create("d.n", 3), l.insert("d.n", 3, bson.D{{Key: "_id", Value: 1}}), l.drop("d.n", 3),
				l.create("d.system.views", 2), l.insert("d.system.views", 2, bson.D{{Key: "_id", Value: "d.n"}, {Key: "viewOn", Value: "c"}}),
			}
		}},
		{"CollModNamespaceNotFound", func(l *log) []*oplog.Entry {
			return []*oplog.Entry{l.createIndex("d.c", 1, indexSpec("x")), l.collMod("d.c", 1, index1(bson.E{Key: "hidden", Value: true})), l.drop("d.c", 1)}
		}},
		{"CollModIndexNotFound", func(l *log) []*oplog.Entry {
			return []*oplog.Entry{
				l.createIndex("d.c", 1, indexSpec("x")), l.collMod("d.c", 1, index1(bson.E{Key: "hidden", Value: true})), l.dropIndex("d.c", 1, "x"),
			}
		}},
		{"InsertToFCVCollectionBesidesFCVDocumentSucceeds", func(l *log) []*oplog.Entry {
			return []*oplog.Entry{l.insert("admin.system.version", 9, bson.D{{Key: "_id", Value: "other"}})}
		}},
		{"DropDatabaseSucceeds", func(l *log) []*oplog.Entry {
			return []*oplog.Entry{l.create("e.c", 2), l.command("e", 0, bson.D{{Key: "dropDatabase", Value: 1}})}
		}},
		{"EmptyCappedNamespaceNotFound", func(l *log) []*oplog.Entry {
			return []*oplog.Entry{l.command("d", 9, bson.D{{Key: "emptycapped", Value: "none"}})}
		}},
		{"UpdateTwoFields", func(l *log) []*oplog.Entry {
			return []*oplog.Entry{
				l.insert("d.c", 1, bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: 1}}),
				l.update("d.c", 1, 1, delta(bson.E{Key: "i", Value: bson.D{{Key: "b", Value: 1}, {Key: "c", Value: 1}}})),
				l.update("d.c", 1, 1, delta(bson.E{Key: "d", Value: bson.D{{Key: "b", Value: false}}})),
			}
		}},
		{"names that wander", func(l *log) []*oplog.Entry {
			return []*oplog.Entry{
				l.create("d.a", 2), l.insert("d.a", 2, bson.D{{Key: "_id", Value: 1}}), l.rename("d.a", "d.b", 2, 0), l.rename("d.b", "d.n", 2, 0),
				l.create("d.a", 3), l.rename("d.a", "d.b", 3, 0), l.create("d.a", 4, bson.E{Key: "temp", Value: true}), l.rename("d.a", "d.n", 4, 2),
			}
		}},
		{"index builds", func(l *log) []*oplog.Entry {
			return []*oplog.Entry{
				l.build("startIndexBuild", 1, 50, indexSpec("x")), l.build("startIndexBuild", 1, 51, indexSpec("y")),
				l.build("abortIndexBuild", 1, 50, indexSpec("x")), l.build("commitIndexBuild", 1, 51, indexSpec("y")),
				l.build("startIndexBuild", 1, 52, indexSpec("x")), l.build("commitIndexBuild", 1, 52, indexSpec("x")),
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := &log{t: t}
			s := New(Config{})
			mustApply(t, s, Steady, l.create("d.c", 1))
			wantIdempotent(t, s, tt.entries(l)...)
		})
	}
}

// history draws a log by doing random things to a store, as a primary would: so
// the log is one that a primary could have written.
type history struct {
	*rapid.T
	log     *log
	store   *Store
	uuids   int
	entries []*oplog.Entry
}

func (h *history) do(e *oplog.Entry) {
	h.Helper()
	mustApply(h, h.store, Steady, e)
	h.entries = append(h.entries, e)
}

func (h *history) free() oplog.Namespace {
	for i := range 10 {
		ns := oplog.Namespace(fmt.Sprintf("d.c%d", i))
		if _, taken := h.store.Collection(ns); !taken {
			return ns
		}
	}
	return ""
}

func (h *history) document(id int) bson.D {
	// Long enough for deltas to be worth it.
	d := bson.D{{Key: "_id", Value: id}, {Key: "pad", Value: "0123456789012345678901234567890123456789012345678901234567890123456789"}}
	for _, name := range rapid.Permutation([]string{"a", "b", "c"}).Draw(h.T, "names") {
		switch rapid.IntRange(0, 3).Draw(h.T, "value") {
		case 0:
			d = append(d, bson.E{Key: name, Value: rapid.IntRange(0, 3).Draw(h.T, "number")})
		case 1:
			d = append(d, bson.E{Key: name, Value: bson.D{{Key: "x", Value: rapid.IntRange(0, 3).Draw(h.T, "number")}}})
		case 2:
			d = append(d, bson.E{Key: name, Value: bson.A{1, rapid.IntRange(0, 3).Draw(h.T, "number")}})
		}
	}
	return d
}

func (h *history) step() {
	all := h.store.Collections()
	if what := rapid.IntRange(0, 19).Draw(h.T, "what"); what == 0 || len(all) == 0 {
		if ns := h.free(); ns != "" {
			h.uuids++
			h.do(h.log.create(ns, h.uuids))
		}
		return
	}
	c := all[rapid.IntRange(0, len(all)-1).Draw(h.T, "collection")]
	ns, u := c.NS(), int(c.UUID()[15])
	id := rapid.IntRange(1, 4).Draw(h.T, "id")
	name := rapid.SampledFrom([]string{"x", "y", "z"}).Draw(h.T, "index")
	old, exists := c.Get(int32Value(int32(id)))
	switch rapid.IntRange(0, 19).Draw(h.T, "what") {
	case 0:
		h.do(h.log.drop(ns, u))
	case 1:
		if to := h.free(); to != "" {
			h.do(h.log.rename(ns, to, u, 0))
		}
	case 2:
		target := all[rapid.IntRange(0, len(all)-1).Draw(h.T, "target")]
		if target != c {
			h.do(h.log.rename(ns, target.NS(), u, int(target.UUID()[15])))
		}
	case 3, 4:
		if c.find(name) < 0 {
			h.do(h.log.createIndex(ns, u, indexSpec(name, bson.E{Key: "expireAfterSeconds", Value: id})))
		} else {
			h.do(h.log.dropIndex(ns, u, name))
		}
	case 5:
		if c.find(name) >= 0 {
			h.do(h.log.collMod(ns, u, bson.E{Key: "index", Value: bson.D{{Key: "name", Value: name}, {Key: "hidden", Value: id < 3}}}))
		}
	case 6:
		h.do(h.log.collMod(ns, u, bson.E{Key: "validator", Value: bson.D{{Key: "x", Value: id}}}))
	default:
		switch {
		case !exists:
			h.do(h.log.insert(ns, u, h.document(id)))
		case rapid.IntRange(0, 3).Draw(h.T, "delete") == 0:
			h.do(h.log.delete(ns, u, id))
		default:
			post := must.Marshal(h, h.document(id))
			diff, ok := update.Diff(old, post, 0)
			switch {
			case !ok:
				h.do(h.log.update(ns, u, id, post))
			case len(diff) > len(document()):
				h.do(h.log.update(ns, u, id, bson.D{{Key: "$v", Value: 2}, {Key: "diff", Value: diff}}))
			}
		}
	}
}

// TestHistoriesConverge holds the property that initial sync and restarts rely
// on: a log applied to data that is newer than parts of it ends where it ended.
func TestHistoriesConverge(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := &history{T: rt, log: &log{t: rt}, store: New(Config{})}
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			h.step()
		}
		want := h.store.Snapshot()
		s := New(Config{})
		mustApply(rt, s, InitialSync, h.entries...)
		if diff := Diff(want, s.Snapshot()); len(diff) > 0 {
			rt.Fatalf("initial sync of everything: %q", diff)
		}
		for range 3 {
			i := rapid.IntRange(0, len(h.entries)).Draw(rt, "prefix")
			j := rapid.IntRange(0, len(h.entries)).Draw(rt, "suffix")
			for _, part := range [][]*oplog.Entry{h.entries[:i], h.entries, h.entries[j:]} {
				mustApply(rt, s, InitialSync, part...)
			}
			if diff := Diff(want, s.Snapshot()); len(diff) > 0 {
				rt.Fatalf("the first %d, all %d, those from %d on: %q", i, len(h.entries), j, diff)
			}
		}
		if h.store.Counters() != (Counters{}) {
			rt.Fatalf("a log of a primary needs no tolerance: %+v", h.store.Counters())
		}
	})
}

// TestHistoriesFromMovingCopies takes a copy collection by collection while
// writes continue, and applies the whole log to it.
func TestHistoriesFromMovingCopies(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := &history{T: rt, log: &log{t: rt}, store: New(Config{})}
		for range rapid.IntRange(0, 20).Draw(rt, "steps before") {
			h.step()
		}
		h.entries = nil
		for range rapid.IntRange(0, 10).Draw(rt, "steps before the copy") {
			h.step()
		}
		// As the server does: names and options come from one listing, indexes
		// and documents later, by UUID.
		var copied State
		for _, c := range h.store.Snapshot().Collections {
			for range rapid.IntRange(0, 4).Draw(rt, "steps in between") {
				h.step()
			}
			now := h.store.Snapshot()
			at := slices.IndexFunc(now.Collections, func(d CollectionState) bool { return d.UUID == c.UUID })
			if at < 0 {
				continue
			}
			c.Indexes, c.Documents = now.Collections[at].Indexes, now.Collections[at].Documents
			copied.Collections = append(copied.Collections, c)
		}
		for range rapid.IntRange(0, 10).Draw(rt, "steps after") {
			h.step()
		}
		s, err := Load(copied, Config{})
		if err != nil {
			rt.Fatal(err)
		}
		mustApply(rt, s, InitialSync, h.entries...)
		if diff := Diff(h.store.Snapshot(), s.Snapshot()); len(diff) > 0 {
			rt.Fatalf("%q", diff)
		}
	})
}
