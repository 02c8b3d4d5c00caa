package applier

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/scope"
)

// holders is a source collection whose documents have distinct values of v, once its unique
// index is committed. Values move from one document to another, so that the target's index
// refuses operations that are applied in another order.
type holders struct {
	*sourceLog
	rnd  *rand.Rand
	docs map[int]int // v by _id
	next int         // an unused value, or _id
}

func (h *holders) fresh() int {
	h.next++
	return h.next
}

// some returns the _ids of two documents.
func (h *holders) some() (a, b int) {
	ids := make([]int, 0, len(h.docs))
	for id := range h.docs {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	i := h.rnd.IntN(len(ids) - 1)
	return ids[i], ids[i+1+h.rnd.IntN(len(ids)-i-1)]
}

// move logs that the value of one document becomes that of another one.
func (h *holders) move() {
	a, b := h.some()
	was := h.docs[a]
	switch h.rnd.IntN(4) {
	case 0:
		h.add(deleteOp("db.a", a))
		delete(h.docs, a)
		id := h.fresh()
		h.add(insertOp("db.a", doc(id, was)))
		h.docs[id] = was
	case 1:
		h.docs[a], h.docs[b] = h.fresh(), was
		h.add(h.transactionOp(setOp("db.a", a, h.docs[a]), setOp("db.a", b, was)))
	default:
		h.docs[a], h.docs[b] = h.fresh(), was
		h.add(setOp("db.a", a, h.docs[a]))
		h.add(setOp("db.a", b, was))
	}
	if h.rnd.IntN(3) == 0 {
		h.end()
	}
}

// course logs writes before and after the commit of the unique index, and others meanwhile.
func (h *holders) course() {
	a, b := h.some()
	h.add(setOp("db.a", a, h.docs[b])) // the source has two of them until the commit
	h.docs[a], h.docs[b] = h.docs[b], h.fresh()
	h.add(setOp("db.a", b, h.docs[b]))
	unique := buildOp("commitIndexBuild", 1, "v")
	spec := bson.D{{Key: "v", Value: 2}, {Key: "key", Value: bson.D{{Key: "v", Value: 1}}}, {Key: "name", Value: "v"}, {Key: "unique", Value: true}}
	unique[2].Value.(bson.D)[2].Value = bson.A{spec}
	h.alone(unique)
	for i := range 60 {
		h.move()
		h.add(insertOp("db.b", doc(i, 0)))
		if i == 30 && h.rnd.IntN(2) == 0 {
			h.alone(buildOn("b", "commitIndexBuild", 2, "x+y"))
		}
	}
	h.alone(commandOp("db", bson.D{{Key: "create", Value: "last"}}))
	for range 20 {
		h.move()
	}
	h.end()
}

// TestUniqueIndexKept: a collection is kept back until its unique index is built, from which
// on it has one lane; processes crash before, during and after that. With the commands that
// a link executes, and so with the changes of the catalog.
func TestUniqueIndexKept(t *testing.T) {
	t.Parallel()
	for seed := range uint64(12) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(seed, 1))
			h := &holders{sourceLog: newLog(t), rnd: rnd, docs: map[int]int{}, next: 1000}
			var docs []bson.D
			for i := range 20 {
				h.docs[i] = i
				docs = append(docs, doc(i, i))
			}
			r := prepared(t, 4, docs...)
			r.target.run(t, "db", bson.D{{Key: "create", Value: "b"}})
			r.target.hang(t, true)
			h.course()
			for crash := range 1 + rnd.IntN(4) {
				r.crashes(t, h, crash)
			}
			r.target.hang(t, false)
			a := r.live(t, r.serialized(t))
			a.send(h.sourceLog, start)
			a.drain()
			for _, d := range r.target.documents(t, "db.a") {
				id, v := int(d.Lookup("_id").AsInt64()), int(d.Lookup("v").AsInt64())
				if want, there := h.docs[id]; !there || v != want {
					t.Errorf("document %d has %d, want %d (%t)", id, v, want, there)
				}
				delete(h.docs, id)
			}
			if len(h.docs) > 0 || len(r.target.documents(t, "db.b")) != 60 || !slices.Contains(indexNames(t, r.target, "db.a"), "v") {
				t.Errorf("the target lacks %v, or something else", h.docs)
			}
		})
	}
}

// serialized returns settings with which unique indexes are built as they are.
func (r *rig) serialized(t *testing.T) func(*Config) {
	return func(c *Config) {
		c.Commands = must.Get(ddl.New(ddl.Config{
			Target: r.target, Fence: c.Checkpoint, Catalog: r.catalog, Scope: must.Get(scope.New(scope.Config{}))(t), Link: r.link,
			Placed: true, UniqueIndexes: ddl.Serialized,
		}))(t)
	}
}

// crashes runs an applier that crashes while the build lasts, or at any command after it.
func (r *rig) crashes(t *testing.T, h *holders, nth int) {
	t.Helper()
	crash, quit := errors.New("crash"), make(chan struct{})
	a := r.live(t, r.serialized(t))
	var left atomic.Int64
	left.Store(1 << 40)
	r.target.intercept(func(mongo.Command) (error, bool) {
		if left.Add(-1) == 0 {
			a.stop(crash)
		}
		return nil, false
	})
	batches, sent := h.after(start), make(chan struct{})
	go func() {
		defer close(sent)
		for _, b := range batches {
			select {
			case a.in <- b:
			case <-quit:
				return
			}
		}
	}()
	for end := time.Now().Add(time.Minute); len(r.target.documents(t, "db.b")) < 30; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("db.b waits for the build of db.a")
		}
	}
	if nth > 0 && h.rnd.IntN(2) == 0 {
		r.target.hang(t, false)
	}
	left.Store(1 + h.rnd.Int64N(60))
	select {
	case <-sent:
	case <-time.After(time.Duration(h.rnd.IntN(50)) * time.Millisecond):
	}
	a.stop(crash)
	close(quit)
	<-sent
	if err := <-a.done; !errors.Is(err, crash) {
		t.Error(err)
	}
	r.target.intercept(nil)
}
