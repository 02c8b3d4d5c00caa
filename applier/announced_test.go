package applier

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/batch"
)

// begunRig is a target with a capped collection, and a log of inserts into it around a
// transaction that spans lanes. All of the inserts are in the target, but the attempt
// ended before their lane recorded it.
func announcedRig(t *testing.T) (*rig, *sourceLog) {
	t.Helper()
	r := prepared(t, 4)
	r.target.run(t, "db", bson.D{{Key: "create", Value: "cap"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}})
	l := newLog(t)
	for i := range 4 {
		l.add(insertOp("db.cap", doc(i, i)))
	}
	l.end()
	var ops []bson.D
	own := oplog.HashNamespace("db.cap") % 4
	for i := range int32(20) {
		id := bson.RawValue{Type: bson.TypeInt32, Value: []byte{byte(i), 0, 0, 0}}
		if oplog.HashID(oplog.HashNamespace("db.a"), id)%4 != own {
			ops = append(ops, insertOp("db.a", doc(i, i)))
		}
	}
	l.add(l.transactionOp(ops...))
	for i := 4; i < 8; i++ {
		l.add(insertOp("db.cap", doc(i, i)))
	}
	l.end()

	wrote := false
	r.target.intercept(serially(func(cmd mongo.Command) (error, bool) {
		if cmd.DB == "db" && simcaller.Name(cmd) == "insert" && cmd.Body.Lookup("insert").StringValue() == "cap" {
			wrote = true
		}
		if wrote && simcaller.Name(cmd) == "update" && cmd.DB == "replicator" {
			return &mongo.LostError{Host: "x", Err: errors.New("gone")}, false
		}
		return nil, false
	}))
	all := l.batches()
	one := batch.Batch{Last: all[1].Last, Wall: all[1].Wall, FetchFrom: all[1].FetchFrom, Entries: all[0].Entries + all[1].Entries, Bytes: 200}
	one.Items = append(append(one.Items, all[0].Items...), all[1].Items...)
	a := must.Get(r.begin(t.Context(), func(c *Config) { c.Relaxed = true }))(t)
	if err := a.run(t.Context(), []batch.Batch{one}, 0); err == nil {
		t.Fatal("it was not cut off")
	}
	r.target.intercept(nil)
	if n := len(r.target.documents(t, "db.cap")); n != 8 {
		t.Fatalf("%d documents are in the target, want all 8", n)
	}
	return r, l
}

// A drain inside of a span that an earlier attempt had announced applies nothing of it:
// only the complete span shows which part of it is in the target.
func TestDrainInsideOfWhatWasBegun(t *testing.T) {
	r, l := announcedRig(t)
	a := must.Get(r.begin(t.Context(), func(c *Config) { c.Relaxed = true }))(t)
	err := a.run(t.Context(), l.batches()[:1], 0)
	if !errors.Is(err, ErrLogIncomplete) {
		t.Errorf("the drain ended with %v, want %v", err, ErrLogIncomplete)
	}
	b := must.Get(r.begin(t.Context(), func(c *Config) { c.Relaxed = true }))(t)
	must.Succeed(t, b.run(t.Context(), l.batches(), 0))
	if n := len(r.target.documents(t, "db.cap")); n != 8 {
		t.Errorf("%d documents are in the target, want all 8", n)
	}
}

// Transactions that become atomic do not cut a span that an earlier attempt had
// announced.
func TestAtomicInsideOfWhatWasBegun(t *testing.T) {
	r, l := announcedRig(t)
	a := must.Get(r.begin(t.Context(), nil))(t)
	must.Succeed(t, a.run(t.Context(), l.batches(), 0))
	if n := len(r.target.documents(t, "db.cap")); n != 8 {
		t.Errorf("%d documents are in the target, want all 8", n)
	}
}

// While a lane waits for the rest of a span that an earlier attempt had announced, the
// batches in between release their memory budget: otherwise that rest might have no room.
func TestBudgetWhileTheRestIsAwaited(t *testing.T) {
	r, l := announcedRig(t)
	given := make(chan int64, 10)
	a := must.Get(r.begin(t.Context(), func(c *Config) {
		c.Relaxed = true
		c.Release = func(n int64) { given <- n }
	}))(t)
	in, out := make(chan batch.Batch), make(chan checkpoint.Applied)
	end := make(chan error, 1)
	go func() { end <- a.Run(t.Context(), in, out) }()
	all := l.batches()
	in <- all[0]
	select {
	case n := <-given:
		if n != all[0].Bytes {
			t.Errorf("%d bytes were given back, want %d", n, all[0].Bytes)
		}
	case <-time.After(time.Minute):
		t.Fatal("nothing was given back, and the rest cannot come")
	}
	in <- all[1]
	close(in)
	for range out {
	}
	must.Succeed(t, <-end)
	if len(given) != 1 || <-given != all[1].Bytes {
		t.Error("the bytes of the second batch were not given back, or more than that")
	}
}

// A hold inside of a span that an earlier attempt had announced begins after it: its lane cannot
// finish before it has the rest.
func TestHoldInsideOfWhatWasBegun(t *testing.T) {
	r, l := announcedRig(t)
	a := must.Get(r.begin(t.Context(), func(c *Config) {
		c.Relaxed = true
		(&jerky{every: 2}).on(c)
	}))(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	must.Succeed(t, a.run(ctx, l.batches(), 0))
	checkHolds(t, a)
	if n := len(r.target.documents(t, "db.cap")); n != 8 {
		t.Errorf("%d documents are in the target, want all 8", n)
	}
}

// A lane does not wait for the rest of an announced span once the log has passed it.
func TestRestThatDoesNotCome(t *testing.T) {
	r, l := announcedRig(t)
	last := &l.entries[len(l.entries)-1]
	other := newLog(t)
	other.entries = make([]logged, len(l.entries)-1)
	other.add(bson.D{{Key: "op", Value: "n"}, {Key: "ns", Value: ""}, {Key: "o", Value: bson.D{}}})
	last.raw = other.entries[len(other.entries)-1].raw
	a := must.Get(r.begin(t.Context(), func(c *Config) { c.Relaxed, c.ReportDivergence = true, true }))(t)
	must.Succeed(t, a.run(t.Context(), l.batches(), 0))
	if n := a.Stats().Divergences; n == 0 {
		t.Error("nothing was found wrong")
	}
}

// serially runs a hook for one command at a time: the lanes send theirs at once. It must
// not wait for another command.
func serially(before func(cmd mongo.Command) (error, bool)) func(cmd mongo.Command) (error, bool) {
	var mu sync.Mutex
	return func(cmd mongo.Command) (error, bool) {
		mu.Lock()
		defer mu.Unlock()
		return before(cmd)
	}
}
