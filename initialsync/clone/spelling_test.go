package clone

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/initialsync/progress"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// createFolded creates a collection in which "a" and "A" are the same _id, on both
// sides.
func (w *world) createFolded(ns oplog.Namespace) {
	w.t.Helper()
	for _, c := range []mongo.Caller{w.source, w.target} {
		run(w.t, c, ns.DB(), bson.D{
			{Key: "create", Value: ns.Collection()},
			{Key: "collation", Value: bson.D{{Key: "locale", Value: "en"}, {Key: "strength", Value: 2}}},
		})
	}
}

// lettered are documents with _ids of text, numbers in between.
func lettered(t testing.TB, first rune, v int) []bson.Raw {
	var docs []bson.Raw
	for i := range 6 {
		docs = append(docs, must.Marshal(t, bson.D{{Key: "_id", Value: string(first + rune(i))}, {Key: "v", Value: v}}))
		if i%5 == 0 {
			docs = append(docs, must.Marshal(t, bson.D{{Key: "_id", Value: i}, {Key: "v", Value: v}, {Key: "at", Value: bson.Timestamp{}}}))
		}
	}
	return docs
}

// TestCopyOverOtherSpelling: the target has documents of an earlier read, whose _ids
// were since deleted and inserted in another spelling, which no update can change. This
// is tested for every interruption of the copy, in transactions and outside of them.
func TestCopyOverOtherSpelling(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"c", "system.js"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.cfg.FlushDocs = 5
			db := 0
			n := w.interruptEach(func(oplog.Namespace) *progress.Collection {
				db++
				ns := oplog.NewNamespace(fmt.Sprintf("d%d", db), name)
				w.createFolded(ns)
				insertRaw(t, w.source, ns, lettered(t, 'a', 2)...)
				coll := w.listed(ns)
				insertRaw(t, w.target, ns, slices.DeleteFunc(lettered(t, 'A', 1), func(d bson.Raw) bool {
					id, isText := d.Lookup("_id").StringValueOK()
					return isText && id > "A" && id < "E"
				})...)
				return coll
			}, nil, w.check)
			if n < 10 {
				t.Errorf("%d interruptions", n)
			}
		})
	}
}

// TestCopyOverDollarNames: a target before 5.0 has documents of an earlier read, and refuses to replace them by documents with a
// name below the top level that starts with a dollar, in transactions and outside of them.
func TestCopyOverDollarNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"c", "system.js"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorldOf(t, "4.4")
			ns := oplog.NewNamespace("d", name)
			queries := func(v int) (docs []bson.Raw) {
				for i := range 7 {
					docs = append(docs, must.Marshal(t, bson.D{{Key: "_id", Value: i}, {Key: "q", Value: bson.D{{Key: "$gt", Value: v}}}}),
						must.Marshal(t, bson.D{{Key: "_id", Value: 100 + i}, {Key: "v", Value: v}}),
						must.Marshal(t, bson.D{{Key: "_id", Value: 200 + i}, {Key: "schema", Value: bson.D{{Key: "$ref", Value: fmt.Sprint("#/", v)}}}}))
				}
				return docs
			}
			insertRaw(t, w.source, ns, queries(2)...)
			insertRaw(t, w.target, ns, queries(1)[:9]...)
			coll := w.listed(ns)
			ctx := within(t)
			w.begin(ctx)
			w.plan(ctx, coll)
			must.Succeed(t, w.copyAll(ctx, coll))
			w.check(ns)
		})
	}
}

// TestCopyBothSpellings: a read during which an _id changes its spelling finds the
// document twice. The later one stays.
func TestCopyBothSpellings(t *testing.T) {
	t.Parallel()
	for _, ns := range []oplog.Namespace{"d.c", "d.system.js"} {
		w := newWorld(t)
		w.createFolded(ns)
		insertRaw(t, w.source, ns, lettered(t, 'a', 1)...)
		w.source.forgeReplies(func(_ mongo.Command, reply bson.Raw) bson.Raw {
			return bytes.ReplaceAll(reply, []byte("_id\x00\x02\x00\x00\x00f\x00"), []byte("_id\x00\x02\x00\x00\x00B\x00"))
		})
		coll := w.listed(ns)
		ctx := within(t)
		w.begin(ctx)
		w.plan(ctx, coll)
		must.Succeed(t, w.copyAll(ctx, coll))
		w.source.forgeReplies(nil)
		var got []string
		for _, d := range read(t, w.target, ns) {
			if id, ok := d.Lookup("_id").StringValueOK(); ok && (id == "b" || id == "B" || id == "f") {
				got = append(got, id)
			}
		}
		if !slices.Equal(got, []string{"B"}) {
			t.Errorf("%s: %q are there", ns, got)
		}
	}
}
