package applier

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// history is a log with its expected result: the slow and obvious model.
type history struct {
	*sourceLog
	db   string
	docs map[oplog.Namespace]map[int]int // the value of each document
	next int                             // a value that no document has had
	// reuses: values may move from one document to another.
	reuses bool
}

// drawHistory draws inserts, updates and deletes of two collections. No two documents
// ever have the same value.
func drawHistory(t *rapid.T, db string) *history {
	h := &history{sourceLog: newLog(t), db: db, docs: map[oplog.Namespace]map[int]int{}, reuses: rapid.Bool().Draw(t, "reuses")}
	names := []oplog.Namespace{oplog.Namespace(db + ".u"), oplog.Namespace(db + ".c")}
	for _, ns := range names {
		h.docs[ns] = map[int]int{}
	}
	for i := range rapid.IntRange(60, 120).Draw(t, "entries") {
		h.op(t, rapid.SampledFrom(names).Draw(t, "collection"))
		if rapid.IntRange(0, 9).Draw(t, "end") == 0 {
			h.end()
		}
		if i%50 == 49 && rapid.Bool().Draw(t, "command") {
			h.alone(commandOp(db, bson.D{{Key: "create", Value: fmt.Sprintf("made%d", i)}}))
		}
	}
	h.end()
	return h
}

func (h *history) op(t *rapid.T, ns oplog.Namespace) {
	docs := h.docs[ns]
	id := rapid.IntRange(0, 30).Draw(t, "id")
	v, there := docs[id]
	switch {
	case !there:
		docs[id] = h.value(t, docs)
		h.add(insertOp(string(ns), doc(id, docs[id])))
	case rapid.IntRange(0, 3).Draw(t, "delete") == 0:
		delete(docs, id)
		h.add(deleteOp(string(ns), id))
	default:
		if docs[id] = h.value(t, docs); docs[id] == v {
			return
		}
		h.add(setOp(string(ns), id, docs[id]))
	}
}

// value returns a value that no document of a collection has.
func (h *history) value(t *rapid.T, docs map[int]int) int {
	if h.reuses && h.next > 0 {
		v := rapid.IntRange(1, h.next).Draw(t, "value")
		for _, taken := range docs {
			if taken == v {
				v = 0
				break
			}
		}
		if v != 0 {
			return v
		}
	}
	h.next++
	return h.next
}

// check compares the target with the model.
func (h *history) check(t *rapid.T, target *simTarget) {
	for ns, docs := range h.docs {
		got := map[int]int{}
		for _, d := range target.documents(t, ns) {
			id, _ := d.Lookup("_id").AsInt64OK()
			v, _ := d.Lookup("v").AsInt64OK()
			got[int(id)] = int(v)
		}
		for id := range 31 {
			if got[id] != docs[id] {
				t.Fatalf("%s: document %d has %d, want %d", ns, id, got[id], docs[id])
			}
		}
	}
}

// meddle is an operator's change of the target between two attempts: it builds a unique
// index of a collection, or drops it. One that the documents violate at the moment is not
// built.
func meddle(t *rapid.T, target *simTarget, db string, has map[string]bool) {
	for _, coll := range []string{"u", "c"} {
		if rapid.IntRange(0, 3).Draw(t, "meddle") == 0 {
			continue
		}
		if has[coll] {
			target.notUnique(t, db, coll)
			has[coll] = false
			continue
		}
		body := must.Get(bson.Marshal(bson.D{{Key: "createIndexes", Value: coll}, {Key: "indexes", Value: bson.A{
			bson.D{{Key: "key", Value: bson.D{{Key: "v", Value: 1}}}, {Key: "name", Value: "v_1"}, {Key: "unique", Value: true}},
		}}}))(t)
		_, err := target.send(context.Background(), mongo.Command{DB: db, Body: body})
		has[coll] = err == nil
	}
}

// crashAfter lets a number of commits succeed. Later ones are lost, and every other one of
// them is carried out.
func (g *simTarget) crashAfter(commits int) {
	var left atomic.Int64 // counts in several lanes
	left.Store(int64(commits))
	g.intercept(func(cmd mongo.Command) (error, bool) {
		if simcaller.Name(cmd) == "commitTransaction" {
			if n := left.Add(-1); n < 0 {
				return &mongo.LostError{Err: errCrash}, n%2 == 0
			}
		}
		return nil, false
	})
}

// checkLanes compares the collections with one lane in the link's document with those that
// may have a unique index.
func (a *attempt) checkLanes(t *rapid.T) {
	r := must.Get(a.link.Routes(context.Background()))(t)
	for _, ns := range slices.Concat(r.OneLane, r.Thin) {
		if !slices.Contains([]string{"u", "c"}, ns.Collection()) {
			t.Fatalf("%s is recorded to have one lane", ns)
		}
	}
}

// TestPropertyRouting: for any log, any crashes, and any unique indexes that are built
// and dropped meanwhile, everything is in the target at the end, or a unique index has
// refused something, and everything is once it is dropped.
func TestPropertyRouting(t *testing.T) {
	target := &simTarget{set: mongosim.StartTest(t, mongosim.Options{Members: 1})}
	var links, apart, refused int
	rapid.Check(t, func(t *rapid.T) {
		links++
		target.intercept(nil)
		db := fmt.Sprintf("r%d", links)
		r := rigOn(t, target, db, rapid.IntRange(2, 8).Draw(t, "writers"))
		r.db = db
		has := map[string]bool{}
		for _, c := range []string{"u", "c"} {
			target.create(t, db, c)
			if rapid.Bool().Draw(t, "unique") {
				target.unique(t, db, c)
				has[c] = true
			}
		}
		h := drawHistory(t, db)
		for attempts := 0; ; attempts++ {
			if attempts > 50 {
				t.Fatalf("it does not get on")
			}
			// A transaction that an attempt left open would block an index build.
			link := r.endTransactions(t)
			st := link.State()
			if _, _, is := st.Apart(); is {
				apart++
			} else if rapid.IntRange(0, 3).Draw(t, "earlier release") == 0 {
				// One that does not know few lanes begins, and nothing reaches it.
				must.Succeed(t, link.SetRouting(context.Background(), Routing))
			}
			if attempts > 0 && attempts < 6 {
				meddle(t, target, db, has)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			a := must.Get(r.begin(ctx, func(c *Config) {
				c.FlushDocs = rapid.IntRange(1, 4).Draw(t, "docs")
				c.CoalesceWindow = c.FlushDocs
				c.ShareOps, c.ShareRest = rapid.SampledFrom([]int{0, 3, 10}).Draw(t, "shares"), 1
			}))(t)
			if commits := rapid.IntRange(1, 30).Draw(t, "commits"); attempts < 4 {
				target.crashAfter(commits)
			}
			err := a.run(ctx, h.after(a.link.State().Applied), rapid.IntRange(0, 2).Draw(t, "advance"))
			cancel()
			target.intercept(nil)
			if u, ok := errors.AsType[*UniqueError](err); ok && h.reuses {
				refused++
				coll := u.NS.Collection()
				if !has[coll] {
					t.Fatalf("an index that is not there has refused something: %v", err)
				}
				r.endTransactions(t)
				target.notUnique(t, db, coll)
				has[coll] = false
				continue
			}
			if err == nil {
				h.check(t, target)
				a.checkLanes(t)
				return
			}
			if !isMishap(err) {
				t.Fatalf("attempt %d: %v", attempts, err)
			}
		}
	})
	t.Logf("%d links, lanes apart %d times, %d refusals", links, apart, refused)
	if apart < links/2 {
		t.Errorf("the lanes were apart %d times, for %d links", apart, links)
	}
}
