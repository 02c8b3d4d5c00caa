package applier

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
)

// Operations that are kept back are copied out of the memory of their batch, which is reused
// for other entries once it is released.
func TestBacklogHasCopies(t *testing.T) {
	t.Parallel()
	r, l := hanging(t)
	a := r.live(t, nil)
	l.alone(buildOp("commitIndexBuild", 1, "x+y"))
	l.add(insertOp("db.a", doc(1, 7)))
	l.add(setOp("db.a", 1, 8))
	a.send(l, start)
	for all := int64(200); a.released.Load() < all; {
		must.Succeed(t, mongo.Pause(t.Context(), time.Millisecond))
	}
	for i := range l.entries {
		clear(l.entries[i].raw)
	}
	r.target.hang(t, false)
	a.reaches(l.optime())
	a.drain()
	if docs := texts(r.target.documents(t, "db.a")); len(docs) != 2 || docs[1] != `{"_id": {"$numberInt":"1"},"v": {"$numberInt":"8"}}` {
		t.Error(docs)
	}
}

// A transaction of the source that is kept back reaches the target as a whole. It makes
// nothing wait, also if it is larger than a flush.
func TestBacklogKeepsTransactions(t *testing.T) {
	t.Parallel()
	r, l := hanging(t)
	a := r.live(t, func(c *Config) { c.FlushDocs, c.CoalesceWindow = 3, 3 })
	l.alone(buildOp("commitIndexBuild", 1, "x+y"))
	l.add(insertOp("db.a", doc("one", 0)))
	l.add(l.transactionOp(insertOp("db.a", doc(1, 0)), insertOp("db.a", doc(2, 0)), insertOp("db.a", doc(3, 0)),
		insertOp("db.a", doc(4, 0)), insertOp("db.a", doc(5, 0))))
	l.inserts(1)
	a.send(l, start)
	a.awaitDocuments("db.b", 1)
	halves := make(chan int, 100)
	r.target.intercept(func(cmd mongo.Command) (error, bool) {
		if simcaller.Name(cmd) == "commitTransaction" {
			halves <- len(r.target.documents(t, "db.a"))
		}
		return nil, false
	})
	r.target.hang(t, false)
	a.reaches(l.optime())
	a.drain()
	r.target.intercept(nil)
	close(halves)
	for n := range halves {
		if n > 2 && n < 7 {
			t.Errorf("%d documents: a part of the transaction", n)
		}
	}
}

// As long as a lane waits for the rest of a span that it had announced, a full backlog waits
// for nothing: that rest would never come.
func TestBacklogInsideOfWhatWasBegun(t *testing.T) {
	t.Parallel()
	r, l := hanging(t)
	r.target.run(t, "db", bson.D{{Key: "create", Value: "cap"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}})
	l.alone(buildOp("commitIndexBuild", 1, "x+y"))
	for i := range 8 {
		l.add(insertOp("db.cap", doc(i, i)))
		if i == 3 {
			l.add(insertOp("db.a", doc(1, 0)))
			l.add(insertOp("db.a", doc(2, 0)))
		}
	}
	var wrote atomic.Bool
	r.target.intercept(func(cmd mongo.Command) (error, bool) {
		if coll, _ := cmd.Body.Lookup("insert").StringValueOK(); coll == "cap" {
			wrote.Store(true)
		}
		if wrote.Load() && simcaller.Name(cmd) == "update" && cmd.DB == "replicator" {
			return &mongo.LostError{Host: "x", Err: errors.New("gone")}, false
		}
		return nil, false
	})
	a := r.live(t, nil)
	a.send(l, start)
	if err := <-a.done; err == nil {
		t.Fatal("it was not cut off")
	}
	r.target.intercept(nil)
	a = r.live(t, func(c *Config) { c.KeptBytes = 1 })
	if !slices.ContainsFunc(a.link.State().LanesAnnounced, func(p checkpoint.Position) bool { return p.OpTime == l.optime() }) {
		t.Fatal("no lane has announced them")
	}
	a.send(l, start)
	r.target.hang(t, false)
	a.reaches(l.optime())
	a.drain()
	if n, ring := len(r.target.documents(t, "db.a")), len(r.target.documents(t, "db.cap")); n != 3 || ring != 8 {
		t.Errorf("db.a has %d documents, db.cap %d", n, ring)
	}
}

// A commit waits for an index that the target is building already, for whomever.
func TestCommitWaitsForListedIndex(t *testing.T) {
	t.Parallel()
	r, l := hanging(t)
	r.buildAside(t, "a", "x")
	a := r.live(t, nil)
	l.alone(buildOp("commitIndexBuild", 1, "x"))
	a.send(l, start)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for len(a.Stats().KeptBack) == 0 && a.watermark().IsNull() {
		must.Succeed(t, mongo.Pause(ctx, time.Millisecond))
	}
	if at := a.watermark(); !at.IsNull() {
		t.Errorf("applied up to %s, and the index is not there", at)
	}
	r.target.hang(t, false)
	a.reaches(l.optime())
	a.drain()
}
