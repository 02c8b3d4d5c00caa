package clone

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/initialsync/progress"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

//nolint:unparam // Calls read better with the size.
func capped(t testing.TB, w *world, size, docs int) {
	t.Helper()
	run(t, w.source, "d", bson.D{{Key: "create", Value: "c"}, {Key: "capped", Value: true}, {Key: "size", Value: size}, {Key: "max", Value: docs}})
}

// checkOrder compares source and target in natural order.
func (w *world) checkOrder() {
	w.t.Helper()
	must.Succeed(w.t, difference(read(w.t, w.source.Caller, "d.c"), read(w.t, w.target.Caller, "d.c"), false))
}

func TestCopyCapped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	capped(t, w, 1<<20, 500)
	insertRaw(t, w.source, "d.c", numbered(t, 0, 2345, 100)...) // it has wrapped around
	w.cfg.FlushDocs = 70
	ctx := within(t)
	coll := w.collection("d.c")
	w.begin(ctx)
	w.plan(ctx, coll)
	must.Succeed(t, w.copyAll(ctx, coll))
	w.checkOrder()
	// A range that is done is not copied again.
	must.Succeed(t, w.copyAll(ctx, coll))
	w.checkOrder()
}

func clusterTime(t testing.TB, c mongo.Caller) bson.Timestamp {
	t.Helper()
	sec, inc := run(t, c, "admin", bson.D{{Key: "ping", Value: 1}}).Lookup("operationTime").Timestamp()
	return bson.Timestamp{T: sec, I: inc}
}

// TestCopyCappedWraps: the collection wraps around while it is read, partly or
// completely, between one reply and the next one. Of its documents at the beginning,
// those that remain are copied, and nothing else.
func TestCopyCappedWraps(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 10, 29, 30, 31, 200} {
		w := newWorld(t)
		w.batch = 20
		capped(t, w, 1<<20, 30)
		insertRaw(t, w.source, "d.c", numbered(t, 0, 30, 10)...)
		coll := w.collection("d.c")
		next := 1000
		times := 0
		ctx := within(t)
		w.begin(ctx)
		w.plan(ctx, coll)
		old := read(t, w.source.Caller, "d.c")
		w.source.intercept(nil, func(cmd mongo.Command) {
			if name(cmd) == "find" && times < 2 {
				times++
				insertRaw(t, w.source.Caller, "d.c", numbered(t, next, n, 10)...)
				next += n
			}
		})
		must.Succeed(t, w.copyAll(ctx, coll))
		w.checkOld("d.c", old)
	}
}

// checkOld checks the copy of a capped collection that was written to meanwhile: of its
// documents at the beginning, it has all that remain, in order, and nothing else.
func (w *world) checkOld(ns oplog.Namespace, old []bson.Raw) {
	w.t.Helper()
	have, now := read(w.t, w.target.Caller, ns), read(w.t, w.source.Caller, ns)
	is := func(d bson.Raw) func(bson.Raw) bool {
		return func(e bson.Raw) bool { return bytes.Equal(d, e) }
	}
	at := 0
	for _, d := range have {
		i := slices.IndexFunc(old[at:], is(d))
		if i < 0 {
			w.t.Fatalf("%.80s is in the copy, and was not there at the beginning, or not after those before it", d)
		}
		at += i + 1
	}
	for _, d := range old {
		if slices.ContainsFunc(now, is(d)) && !slices.ContainsFunc(have, is(d)) {
			w.t.Fatalf("%.80s is not in the copy of %d documents", d, len(have))
		}
	}
}

// TestCopyCappedInterrupted: the attempt ends at each command in turn, which is carried
// out or not; meanwhile the source is written to.
func TestCopyCappedInterrupted(t *testing.T) {
	t.Parallel()
	for _, more := range []int{0, 3, 17, 100} {
		t.Run(strconv.Itoa(more), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.cfg.FlushDocs = 7
			old := map[oplog.Namespace][]bson.Raw{}
			n := w.interruptEach(func(ns oplog.Namespace) *progress.Collection {
				run(t, w.source, "d", bson.D{{Key: "create", Value: ns.Collection()}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}, {Key: "max", Value: 50}})
				insertRaw(t, w.source, ns, numbered(t, 0, 60, 100)...)
				old[ns] = read(t, w.source.Caller, ns)
				return w.collection(ns)
			}, func(ns oplog.Namespace) {
				insertRaw(t, w.source.Caller, ns, numbered(t, 1000, more, 100)...)
			}, func(ns oplog.Namespace) { w.checkOld(ns, old[ns]) })
			if n < 60 {
				t.Errorf("%d interruptions", n)
			}
		})
	}
}

// TestCopyCappedAligns: documents that an interrupted flush has appended are not sent
// again.
func TestCopyCappedAligns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.FlushDocs = 8
	capped(t, w, 1<<20, 50)
	insertRaw(t, w.source, "d.c", numbered(t, 0, 50, 100)...)
	coll := w.collection("d.c")
	ctx := within(t)
	w.begin(ctx)
	w.plan(ctx, coll)
	inserts, sent := 0, 0
	w.target.intercept(func(cmd mongo.Command) (error, bool) {
		if name(cmd) == "insert" {
			inserts++
			sent += len(cmd.Docs)
		}
		return when(inserts == 3 && name(cmd) != "insert", errInjected), false
	}, nil)
	if err := w.copyAll(ctx, coll); !errors.Is(err, errInjected) {
		t.Fatal(err)
	}
	inserts = 10
	w.begin(ctx)
	must.Succeed(t, w.copyAll(ctx, coll))
	w.checkOrder()
	if sent != 50 {
		t.Errorf("%d documents were sent", sent)
	}
}

// TestDirectUnconfirmed: a write that the target has not confirmed by a majority may be
// rolled back: it does not count as done.
func TestDirectUnconfirmed(t *testing.T) {
	t.Parallel()
	for _, ns := range []oplog.Namespace{"d.c", "d.system.js"} {
		w := newWorld(t)
		if ns == "d.c" {
			capped(t, w, 1<<20, 50)
		}
		insertRaw(t, w.source, ns, numbered(t, 0, 20, 10)...)
		coll := w.collection(ns)
		ctx := within(t)
		w.begin(ctx)
		w.plan(ctx, coll)
		w.target.forgeReplies(func(cmd mongo.Command, reply bson.Raw) bson.Raw {
			if cmd.DB != "d" || name(cmd) != "insert" {
				return reply
			}
			e := must.Marshal(t, bson.D{{Key: "code", Value: 64}, {Key: "errmsg", Value: "waiting for replication timed out"}})
			return closeDocument(bsoncore.AppendDocumentElement(slices.Clone([]byte(reply[:len(reply)-1])), "writeConcernError", bsoncore.Document(e)), 0)
		})
		err := w.copyAll(ctx, coll)
		if _, ok := errors.AsType[*mongo.UnconfirmedError](err); !ok {
			t.Errorf("%s: %v, want one that is not confirmed", ns, err)
		}
		if r := must.Get(w.ranges(ctx))(t)[0]; r.Steps != 0 || r.Docs != 0 {
			t.Errorf("%s: %d documents in %d steps are noted", ns, r.Docs, r.Steps)
		}
		w.target.forgeReplies(nil)
		w.begin(ctx)
		must.Succeed(t, w.copyAll(ctx, coll))
		w.check(ns)
	}
}

// TestCopyCappedAgain: the copy ends before the documents that the oplog has inserted
// since the beginning, even if an older document had the same _id; and a later document
// in the place of a copied one is not mistaken for it.
func TestCopyCappedAgain(t *testing.T) {
	t.Parallel()
	for _, holes := range []bool{false, true} {
		w := newWorldOf(t, "7.0")
		w.cfg.FlushDocs, w.batch, w.cfg.NoHoles = 5, 10, !holes
		capped(t, w, 1<<20, 30)
		insertRaw(t, w.source, "d.c", numbered(t, 0, 30, 10)...)
		coll := w.collection("d.c")
		ctx := within(t)
		w.begin(ctx)
		old := read(t, w.source.Caller, "d.c")
		again := numbered(t, 3, 2, 20)
		run(t, w.source, "d", bson.D{{Key: "delete", Value: "c"}, {Key: "deletes", Value: bson.A{
			bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: bson.A{3, 4}}}}}}, {Key: "limit", Value: 0}},
		}}})
		insertRaw(t, w.source, "d.c", again...)
		w.since.Has = func(id bson.RawValue) bool { n := id.AsInt64(); return n == 3 || n == 4 }
		w.plan(ctx, coll)
		flushes := 0
		w.target.intercept(func(cmd mongo.Command) (error, bool) {
			if name(cmd) == "insert" {
				flushes++
			}
			return when(flushes > 2 && name(cmd) != "insert", errInjected), false
		}, nil)
		if err := w.copyAll(ctx, coll); !errors.Is(err, errInjected) {
			t.Fatal(err)
		}
		w.target.intercept(nil, nil)
		// The copied documents are deleted, and inserted again.
		insertRaw(t, w.source, "d.c", numbered(t, 100, 16, 10)...)
		insertRaw(t, w.source, "d.c", numbered(t, 5, 6, 10)...)
		w.begin(ctx)
		err := w.copyAll(ctx, coll)
		if !holes {
			if !errors.Is(err, ErrHole) {
				t.Errorf("%v, want %v", err, ErrHole)
			}
			continue
		}
		must.Succeed(t, err)
		w.checkOld("d.c", old)
	}
}

// TestCopyDirect: system collections are written outside of transactions.
func TestCopyDirect(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.FlushDocs = 40
	db := 0
	n := w.interruptEach(func(oplog.Namespace) *progress.Collection {
		db++
		ns := oplog.NewNamespace(fmt.Sprintf("d%d", db), "system.js")
		insertRaw(t, w.source, ns, append(numbered(t, 0, 100, 100), must.Marshal(t, bson.D{{Key: "_id", Value: "f"}, {Key: "value", Value: bson.JavaScript("function() {}")}}))...)
		coll := w.collection(ns)
		// Some of the documents exist already.
		insertRaw(t, w.target, ns, numbered(t, 30, 20, 5)...)
		return coll
	}, nil, w.check)
	if n < 20 {
		t.Errorf("%d interruptions", n)
	}
}
