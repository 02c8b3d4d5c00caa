package applier

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// createFolded creates a collection in which "a" and "A" are one _id, at a strength
// of less than 3.
func (r *rig) createFolded(t fataler, name string, strength int) {
	t.Helper()
	r.target.run(t, r.db, bson.D{
		{Key: "create", Value: name},
		{Key: "collation", Value: bson.D{{Key: "locale", Value: "en"}, {Key: "strength", Value: strength}}},
	})
}

func replaceOp(ns string, doc bson.D) bson.D {
	return bson.D{{Key: "op", Value: "u"}, {Key: "ns", Value: ns}, {Key: "o", Value: doc}, {Key: "o2", Value: bson.D{doc[0]}}}
}

// spellings is a test case of a log applied to a copy.
type spellings struct {
	name string
	// have is the copy, log is applied to it, want is the result.
	have, want []bson.D
	log        []bson.D
}

func spellingsOf(ns string) []spellings {
	moved := bson.D{
		{Key: "op", Value: "u"},
		{Key: "ns", Value: ns},
		{Key: "o", Value: bson.D{{Key: "$v", Value: 2}, {Key: "diff", Value: bson.D{{Key: "u", Value: bson.D{{Key: "v", Value: 8}}}, {Key: "i", Value: bson.D{{Key: "_id", Value: "a"}}}}}}},
		{Key: "o2", Value: bson.D{{Key: "_id", Value: "a"}}},
	}
	return []spellings{
		{
			"the newer one is there",
			[]bson.D{doc("A", 3)},
			[]bson.D{doc("A", 3)},
			[]bson.D{insertOp(ns, doc("a", 1)), setOp(ns, "a", 2), deleteOp(ns, "a"), insertOp(ns, doc("A", 3))},
		},
		{
			"the older one is there",
			[]bson.D{doc("a", 1)},
			[]bson.D{doc("A", 3)},
			[]bson.D{setOp(ns, "a", 2), deleteOp(ns, "a"), insertOp(ns, doc("A", 3))},
		},
		{"an insert alone", []bson.D{doc("A", 3)}, []bson.D{doc("a", 1)}, []bson.D{insertOp(ns, doc("a", 1))}},
		{"a replacement alone", []bson.D{doc("A", 3)}, []bson.D{doc("a", 1)}, []bson.D{replaceOp(ns, doc("a", 1))}},
		{
			"a replacement",
			[]bson.D{doc("A", 3)},
			[]bson.D{doc("A", 3)},
			[]bson.D{replaceOp(ns, doc("a", 1)), deleteOp(ns, "a"), insertOp(ns, doc("A", 3))},
		},
		{"a delta that moves _id", []bson.D{doc("A", 3)}, []bson.D{doc("A", 3)}, []bson.D{moved}},
		{
			"and back",
			[]bson.D{doc("a", 5)},
			[]bson.D{doc("a", 5)},
			[]bson.D{insertOp(ns, doc("A", 1)), deleteOp(ns, "A"), insertOp(ns, doc("a", 2)), deleteOp(ns, "a"), insertOp(ns, doc("Á", 3)), deleteOp(ns, "Á"), insertOp(ns, doc("a", 5))},
		},
		{"within a document", []bson.D{doc(bson.D{{Key: "k", Value: "A"}}, 3)}, []bson.D{doc(bson.D{{Key: "k", Value: "a"}}, 1)}, []bson.D{insertOp(ns, doc(bson.D{{Key: "k", Value: "a"}}, 1))}},
		{"with a timestamp of zero", []bson.D{doc("A", 3)}, []bson.D{doc("a", bson.Timestamp{})}, []bson.D{insertOp(ns, doc("a", bson.Timestamp{}))}},
		{
			"among others",
			[]bson.D{doc("A", 3), doc("b", 3)},
			[]bson.D{doc("b", 1), doc("a", 1), doc("c", 1)},
			[]bson.D{insertOp(ns, doc("b", 1)), insertOp(ns, doc("a", 1)), insertOp(ns, doc("c", 1))},
		},
	}
}

// TestOtherSpelling: an operation meets a copy's document with a newer spelling of the
// _id, which a server lets no update change; in transactions, and outside of them.
func TestOtherSpelling(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"c", "system.js"} {
		ns := "db." + name
		for _, tt := range spellingsOf(ns) {
			t.Run(name+" "+tt.name, func(t *testing.T) {
				t.Parallel()
				for _, coalesce := range []bool{true, false} {
					r := newRig(t, 2, mongosim.Options{Members: 1})
					r.createFolded(t, name, 1)
					r.target.run(t, "db", bson.D{{Key: "insert", Value: name}, {Key: "documents", Value: tt.have}})
					l := newLog(t)
					for _, op := range tt.log {
						l.add(op)
					}
					a := r.apply(t, l.batches(), func(c *Config) { c.CopiedUntil, c.Plan.Coalesce = l.optime(), coalesce })
					r.wantDocuments(t, oplog.Namespace(ns), tt.want)
					if n := a.Stats().Divergences; n != 0 {
						t.Errorf("%d divergences", n)
					}
				}
			})
		}
	}
}

// wantDocuments compares the documents of a collection, in any order.
func (r *rig) wantDocuments(t testing.TB, ns oplog.Namespace, docs []bson.D) {
	t.Helper()
	var want []bson.Raw
	for _, d := range docs {
		want = append(want, must.Get(bson.Marshal(d))(t))
	}
	a, b := texts(want), texts(r.target.documents(t, ns))
	slices.Sort(a)
	slices.Sort(b)
	if diff := cmp.Diff(a, b); diff != "" {
		t.Error(diff)
	}
}

// TestOtherSpellingIsDivergence: an exact target has no document in a spelling that the
// log does not have. It is reported, and if the run continues the log's document replaces
// it.
func TestOtherSpellingIsDivergence(t *testing.T) {
	t.Parallel()
	const ns = "db.c"
	for name, op := range map[string]bson.D{
		"insert":      insertOp(ns, doc("a", 1)),
		"replacement": replaceOp(ns, doc("a", 1)),
	} {
		r := newRig(t, 2, mongosim.Options{Members: 1})
		r.createFolded(t, "c", 2)
		r.target.run(t, "db", bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{doc("A", 3)}}})
		l := newLog(t)
		l.add(op)
		a := must.Get(r.begin(t.Context(), nil))(t)
		if _, ok := errors.AsType[*DivergenceError](a.run(t.Context(), l.batches(), 0)); !ok {
			t.Errorf("%s: no divergence", name)
		}
		r.wantDocuments(t, ns, []bson.D{doc("A", 3)})
		a = r.apply(t, l.batches(), func(c *Config) { c.ReportDivergence = true })
		if n := a.Stats().Divergences; n != 1 {
			t.Errorf("%s: %d divergences", name, n)
		}
		r.wantDocuments(t, ns, []bson.D{doc("a", 1)})
	}
}

// TestOtherSpellingInOneTransaction: no reader sees the collection between the delete and
// the insert that replaces the document, and if that is refused nothing has changed.
func TestOtherSpellingInOneTransaction(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, mongosim.Options{Members: 1})
	r.createFolded(t, "c", 2)
	r.target.run(t, "db", bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{doc("A", 3)}}})
	l := newLog(t)
	l.add(insertOp("db.c", doc("a", 1)))
	deleted := false
	r.target.intercept(serially(func(cmd mongo.Command) (error, bool) {
		if simcaller.Name(cmd) == "delete" {
			deleted = true
		} else if deleted && simcaller.Name(cmd) == "update" && cmd.Sequence == "updates" {
			return &mongo.LostError{Err: errCrash}, false
		}
		return nil, false
	}))
	a := must.Get(r.begin(t.Context(), func(c *Config) { c.CopiedUntil = l.optime() }))(t)
	if err := a.run(t.Context(), l.batches(), 0); !errors.Is(err, errCrash) {
		t.Fatal(err)
	}
	r.target.intercept(nil)
	r.wantDocuments(t, "db.c", []bson.D{doc("A", 3)})
	r.apply(t, l.batches(), func(c *Config) { c.CopiedUntil = l.optime() })
	r.wantDocuments(t, "db.c", []bson.D{doc("a", 1)})
}

// TestOtherSpellingDoneAgain: a span outside of transactions whose end was not recorded
// is applied again, over its own results.
func TestOtherSpellingDoneAgain(t *testing.T) {
	t.Parallel()
	const ns = "db.system.js"
	r := newRig(t, 2, mongosim.Options{Members: 1})
	r.createFolded(t, "system.js", 2)
	l := newLog(t)
	l.add(insertOp(ns, doc("a", 1)))
	l.add(insertOp(ns, doc("b", 1)))
	l.add(deleteOp(ns, "a"))
	l.add(insertOp(ns, doc("A", 2)))
	l.add(insertOp(ns, doc("c", 3)))
	set := func(c *Config) { c.Plan.Coalesce = false }
	wrote, lost := 0, false
	r.target.intercept(serially(func(cmd mongo.Command) (error, bool) {
		if cmd.Sequence == "updates" && cmd.DB == "db" {
			wrote++
		}
		lost = lost || wrote > 1 && simcaller.Name(cmd) != "update"
		if lost {
			return &mongo.LostError{Err: errCrash}, false
		}
		return nil, false
	}))
	a := must.Get(r.begin(t.Context(), set))(t)
	if err := a.run(t.Context(), l.batches(), 0); !errors.Is(err, errCrash) {
		t.Fatal(err)
	}
	r.target.intercept(nil)
	r.wantDocuments(t, ns, []bson.D{doc("b", 1), doc("A", 2), doc("c", 3)})
	r.apply(t, l.batches(), set)
	r.wantDocuments(t, ns, []bson.D{doc("b", 1), doc("A", 2), doc("c", 3)})
}

// folded is a source's collection with a collation, and its log.
type folded struct {
	*sourceLog
	ns       string
	collator *bsonorder.Collator
	// states are the documents after each operation, by the collation's keys.
	states []map[string]bson.D
	v      int
}

func (f *folded) key(t fataler, id any) string {
	typ, value, err := bson.MarshalValue(id)
	must.Succeed(t, err)
	return string(bsonorder.AppendKey(nil, bson.RawValue{Type: typ, Value: value}, f.collator))
}

// op draws an operation that can follow.
func (f *folded) op(t *rapid.T) bson.D {
	f.v++
	var id any = rapid.SampledFrom([]string{"a", "A", "á", "Á", "b", "B"}).Draw(t, "id")
	if rapid.IntRange(0, 4).Draw(t, "nested") == 0 {
		id = bson.D{{Key: "k", Value: id}}
	}
	key := f.key(t, id)
	next := maps.Clone(f.states[len(f.states)-1])
	f.states = append(f.states, next)
	have, live := next[key]
	if !live {
		next[key] = doc(id, f.v)
		return insertOp(f.ns, next[key])
	}
	id = have[0].Value
	switch rapid.IntRange(0, 3).Draw(t, "kind") {
	case 0:
		next[key] = doc(id, f.v)
		return replaceOp(f.ns, next[key])
	case 1:
		next[key] = doc(id, f.v)
		return setOp(f.ns, id, f.v)
	default:
		delete(next, key)
		return deleteOp(f.ns, id)
	}
}

// draw logs operations, alone and in transactions.
func (f *folded) draw(t *rapid.T) {
	for range rapid.IntRange(3, 40).Draw(t, "entries") {
		switch rapid.IntRange(0, 6).Draw(t, "entry") {
		case 0:
			var ops []bson.D
			for range rapid.IntRange(1, 4).Draw(t, "ops") {
				ops = append(ops, f.op(t))
			}
			f.add(f.transactionOp(ops...))
		case 1:
			f.end()
		default:
			f.add(f.op(t))
		}
	}
}

// copied returns a copy in which each document is of another time.
func (f *folded) copied(t *rapid.T) bson.A {
	keys := map[string]bool{}
	for _, s := range f.states {
		for k := range s {
			keys[k] = true
		}
	}
	docs := bson.A{}
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		at := rapid.IntRange(0, len(f.states)-1).Draw(t, "copied at")
		if d, ok := f.states[at][k]; ok {
			docs = append(docs, d)
		}
	}
	return docs
}

// TestSpellingsProperty: for any log of documents whose _ids change their spelling, any
// copy that was taken meanwhile, and any faults, the target equals the source in the end,
// spellings included.
func TestSpellingsProperty(t *testing.T) {
	target := &simTarget{set: mongosim.StartTest(t, mongosim.Options{Members: 1})}
	links := 0
	rapid.Check(t, func(t *rapid.T) {
		links++
		target.intercept(nil)
		r := rigOn(t, target, fmt.Sprintf("link%d", links), rapid.SampledFrom([]int{1, 4}).Draw(t, "writers"))
		r.db = fmt.Sprintf("db%d", links)
		strength := rapid.IntRange(1, 3).Draw(t, "strength")
		coll := rapid.SampledFrom([]string{"c", "c", "system.js"}).Draw(t, "collection")
		r.createFolded(t, coll, strength)
		f := &folded{sourceLog: newLog(t), ns: r.db + "." + coll, states: []map[string]bson.D{{}}}
		f.collator = must.Get(bsonorder.NewCollator(r.collation(t, coll)))(t)
		f.draw(t)
		over := rapid.Bool().Draw(t, "over a copy")
		if docs := f.copied(t); over && len(docs) > 0 {
			target.run(t, r.db, bson.D{{Key: "insert", Value: coll}, {Key: "documents", Value: docs}})
		}
		relaxed := rapid.Bool().Draw(t, "relaxed")
		coalesce := rapid.Bool().Draw(t, "coalesce")
		flush := rapid.IntRange(1, 8).Draw(t, "docs")
		for attempts := 0; ; attempts++ {
			ctx, cancel := context.WithCancelCause(context.Background())
			ctx, stop := context.WithTimeout(ctx, 20*time.Second)
			target.intercept(nil)
			a := must.Get(r.begin(ctx, func(c *Config) {
				c.Relaxed, c.Plan.Coalesce, c.FlushDocs = relaxed, coalesce, flush
				c.RetryFor = 10 * time.Second
				if over {
					c.CopiedUntil = f.optime()
				}
			}))(t)
			var mishaps []mishap
			if attempts < 3 && rapid.Bool().Draw(t, "hurt") {
				mishaps = append(mishaps, mishap{
					at:   int64(rapid.IntRange(1, 60).Draw(t, "at")),
					kind: rapid.SampledFrom([]string{"conflict", "lost before", "lost after", "cancel"}).Draw(t, "mishap"),
				})
			}
			hurt(target, mishaps, cancel)
			err := a.run(ctx, f.after(a.link.State().Applied), rapid.IntRange(0, 3).Draw(t, "advance"))
			stop()
			cancel(nil)
			target.intercept(nil)
			if err == nil {
				break
			}
			if !isMishap(err) {
				t.Fatalf("attempt %d: %v", attempts, err)
			}
		}
		f.check(t, target)
	})
}

func (f *folded) check(t *rapid.T, target *simTarget) {
	var want []bson.Raw
	for _, d := range f.states[len(f.states)-1] {
		want = append(want, must.Get(bson.Marshal(d))(t))
	}
	a, b := texts(want), texts(target.documents(t, oplog.Namespace(f.ns)))
	slices.Sort(a)
	slices.Sort(b)
	if !slices.Equal(a, b) {
		t.Fatalf("the target has %s, want %s", b, a)
	}
}

// collation returns the collation of a collection, as the target lists it.
func (r *rig) collation(t fataler, name string) bson.Raw {
	t.Helper()
	reply := r.target.run(t, r.db, bson.D{{Key: "listCollections", Value: 1}, {Key: "filter", Value: bson.D{{Key: "name", Value: name}}}})
	return reply.Lookup("cursor", "firstBatch", "0", "options", "collation").Document()
}
