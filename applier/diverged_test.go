package applier

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
)

func reports(c *Config) { c.ReportDivergence, c.Link = true, "link" }

// recorded are the collections with divergences, and how many operations.
func (r *rig) recorded(t *testing.T) string {
	t.Helper()
	var out []string
	for _, d := range must.Get(checkpoint.ReadDiverged(t.Context(), r.target, "replicator", "link"))(t) {
		out = append(out, fmt.Sprintf("%s %d", d.NS, d.Ops))
	}
	return strings.Join(out, ", ")
}

// killedAt ends an attempt at a command on its way.
func (r *rig) killedAt(t *testing.T, l *sourceLog, set func(*Config), at func(cmd mongo.Command) bool) {
	t.Helper()
	kill := errors.New("killed")
	var dead atomic.Bool
	r.target.intercept(func(cmd mongo.Command) (error, bool) {
		if dead.Load() || at(cmd) {
			dead.Store(true)
			return &mongo.LostError{Err: kill}, false
		}
		return nil, false
	})
	defer r.target.intercept(nil)
	if err := r.fails(t, l, set); !dead.Load() {
		t.Fatalf("it was not killed: %v", err)
	}
}

// TestDivergedIsRecorded: each operation that diverges is counted once for its collection, whatever it is and however often the process
// is killed, with few writes.
func TestDivergedIsRecorded(t *testing.T) {
	const many = 300
	outside := func(t *testing.T) *sourceLog {
		l := newLog(t)
		l.add(setOp("db.system.js", 7, 5))
		return l
	}
	log := func(t *testing.T) *sourceLog {
		l := outside(t)
		for i := range many {
			l.add(setOp("db.a", fmt.Sprint("x", i), 1))
			l.add(insertOp("db.none", doc(i, 1)))
		}
		l.add(insertOp("db.a", doc(1, 5)))
		return l
	}
	ready := func(t *testing.T) *rig {
		r := prepared(t, 4, doc(1, 0))
		r.target.run(t, "db", bson.D{{Key: "create", Value: "system.js"}})
		return r
	}
	want := fmt.Sprintf("db.a %d, db.none %d, db.system.js 1", many+1, many)
	onRecords := func(cmd mongo.Command) bool {
		return simcaller.Name(cmd) == "update" && cmd.Body.Lookup("update").StringValue() == metadata.Diverged
	}
	t.Run("at once", func(t *testing.T) {
		r := ready(t)
		var writes atomic.Int64
		r.target.intercept(func(cmd mongo.Command) (error, bool) {
			if onRecords(cmd) {
				writes.Add(1)
			}
			return nil, false
		})
		r.apply(t, log(t).batches(), reports)
		r.target.intercept(nil)
		if is := r.recorded(t); is != want {
			t.Errorf("recorded %s, want %s", is, want)
		}
		if n := writes.Load(); n > many/4 {
			t.Errorf("%d writes for %d operations", n, 2*many)
		}
	})
	for name, at := range map[string]func(n int64, cmd mongo.Command) bool{
		"before the records":    func(_ int64, cmd mongo.Command) bool { return onRecords(cmd) },
		"after some of them":    func(n int64, cmd mongo.Command) bool { return onRecords(cmd) && n > 2 },
		"after those of lanes":  func(n int64, cmd mongo.Command) bool { return n > 0 && simcaller.Name(cmd) == "commitTransaction" },
		"before the checkpoint": func(n int64, cmd mongo.Command) bool { return n > 4 && simcaller.Name(cmd) == "commitTransaction" },
	} {
		t.Run(name, func(t *testing.T) {
			r := ready(t)
			r.apply(t, outside(t).batches(), reports) // A kill between this write and its record would lose it.
			var n atomic.Int64
			r.killedAt(t, log(t), reports, func(cmd mongo.Command) bool {
				if onRecords(cmd) {
					n.Add(1)
				}
				return at(n.Load(), cmd)
			})
			r.apply(t, log(t).batches(), reports)
			if is := r.recorded(t); is != want {
				t.Errorf("recorded %s, want %s", is, want)
			}
			r.apply(t, log(t).batches(), reports) // from the beginning again
			if is := r.recorded(t); is != want {
				t.Errorf("recorded %s after it was read again, want %s", is, want)
			}
		})
	}
}

// TestDivergedOnceInATransaction: an operation of a transaction of the source is counted once, although all of it is routed twice if it
// cannot be applied as one.
func TestDivergedOnceInATransaction(t *testing.T) {
	r := prepared(t, 4, doc(1, 0))
	r.target.run(t, "db", bson.D{{Key: "create", Value: "system.js"}})
	l := newLog(t)
	l.add(l.transactionOp(insertOp("db.none", doc(1, 1)), setOp("db.system.js", 7, 5), insertOp("db.none", doc(2, 1)), setOp("db.a", 1, 5)))
	l.add(l.transactionOp(insertOp("db.none", doc(3, 1))))
	a := r.apply(t, l.batches(), reports)
	if is, want := r.recorded(t), "db.none 3, db.system.js 1"; is != want {
		t.Errorf("recorded %q, want %q", is, want)
	}
	if n := a.Stats().Divergences; n != 4 {
		t.Errorf("%d divergences", n)
	}
}

// TestDivergedAtTheEnd: what a write outside of transactions has met is recorded although the attempt ends, as no other meets it again. It
// is logged even if it cannot be recorded.
func TestDivergedAtTheEnd(t *testing.T) {
	for _, gone := range []bool{false, true} {
		t.Run(fmt.Sprint("target gone ", gone), func(t *testing.T) {
			t.Parallel()
			r := prepared(t, 4, doc(1, 0))
			r.target.run(t, "db", bson.D{{Key: "create", Value: "system.js"}})
			var logged atomic.Int64
			a := r.live(t, func(c *Config) {
				reports(c)
				c.Observer = func(e event.Event) {
					if e.Message() == Diverged {
						logged.Add(1)
					}
				}
			})
			crash := errors.New("crash")
			var seen atomic.Bool
			r.target.intercept(func(cmd mongo.Command) (error, bool) {
				if simcaller.Name(cmd) != "update" || cmd.Body.Lookup("update").StringValue() != metadata.Diverged || seen.Swap(true) && !gone {
					return nil, false
				}
				a.stop(crash)
				return &mongo.LostError{Err: crash}, false
			})
			l := newLog(t)
			l.add(setOp("db.system.js", 7, 5))
			a.send(l, start)
			if err := a.ended(); !errors.Is(err, crash) {
				t.Fatal(err)
			}
			r.target.intercept(nil)
			r.apply(t, l.batches(), reports)
			want := "db.system.js 1"
			if gone {
				want = "" // the next attempt cannot tell
			}
			if is := r.recorded(t); is != want {
				t.Errorf("recorded %q, want %q", is, want)
			}
			if n := logged.Load(); n != 1 {
				t.Errorf("logged %d times", n)
			}
		})
	}
}

// TestDivergedInAFailover: a divergence outside of transactions is recorded once, also if the target has a failover, or loses the
// connection, while its record is written or committed.
func TestDivergedInAFailover(t *testing.T) {
	for name, tt := range map[string]struct {
		command string
		err     error
		after   bool
	}{
		"stepped down":       {"update", servererr.New(servererr.NotWritablePrimary, "stepped down"), false},
		"lost":               {"update", &mongo.LostError{Err: errors.New("reset")}, false},
		"commit not arrived": {"commitTransaction", &mongo.LostError{Err: errors.New("reset")}, false},
		"commit done":        {"commitTransaction", &mongo.LostError{Err: errors.New("reset")}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := prepared(t, 4, doc(1, 0))
			r.target.run(t, "db", bson.D{{Key: "create", Value: "system.js"}})
			var number, failed atomic.Int64
			r.target.intercept(func(cmd mongo.Command) (error, bool) {
				txn, _ := cmd.Body.Lookup("txnNumber").Int64OK()
				recorded := simcaller.Name(cmd) == "update" && cmd.Body.Lookup("update").StringValue() == metadata.Diverged
				if recorded {
					number.Store(txn)
				}
				if simcaller.Name(cmd) != tt.command || !recorded && txn != number.Load() || failed.Add(1) > 3 {
					return nil, false
				}
				return tt.err, tt.after
			})
			l := newLog(t)
			l.add(setOp("db.system.js", 7, 5))
			r.apply(t, l.batches(), reports)
			if is := r.recorded(t); is != "db.system.js 1" || failed.Load() == 0 {
				t.Errorf("recorded %q after %d failures", is, failed.Load())
			}
		})
	}
}

// TestOutlasted: a failover is outlasted, the loss of the lease is not, whatever it was seen by.
func TestOutlasted(t *testing.T) {
	t.Parallel()
	down := servererr.New(servererr.NotWritablePrimary, "stepped down")
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{down, true},
		{&mongo.LostError{Err: errors.New("reset")}, true},
		{servererr.New(servererr.WriteConflict, "conflict"), true},
		{fmt.Errorf("%w: %w", lease.ErrFenced, down), false},
		{fmt.Errorf("%w: %w", lease.ErrRewound, down), false},
		{servererr.New(servererr.Unauthorized, "no"), false},
	} {
		if is := isOutlasted(tt.err); is != tt.want {
			t.Errorf("%v: %t", tt.err, is)
		}
	}
}

// TestDivergedUnknownCommit: an operation is counted once where the attempt ends while the transaction of its record commits, whether that was
// executed or not, and whether there is an earlier record of the collection or not.
func TestDivergedUnknownCommit(t *testing.T) {
	for name, tt := range map[string]struct {
		earlier, executed bool
		want              string
	}{
		"executed":                {false, true, "db.system.js 1"},
		"not executed":            {false, false, "db.system.js 1"},
		"executed, not first":     {true, true, "db.system.js 2"},
		"not executed, not first": {true, false, "db.system.js 2"},
	} {
		t.Run(name, func(t *testing.T) { divergedUnknownCommit(t, tt.earlier, tt.executed, tt.want) })
	}
}

func divergedUnknownCommit(t *testing.T, earlier, executed bool, want string) {
	r := prepared(t, 4, doc(1, 0))
	r.target.run(t, "db", bson.D{{Key: "create", Value: "system.js"}})
	l, from := newLog(t), start
	if earlier {
		l.add(setOp("db.system.js", 6, 5))
		r.apply(t, l.batches(), reports)
		from = l.optime()
	}
	a := r.live(t, reports)
	crash := errors.New("crash")
	var number, lost atomic.Int64
	r.target.intercept(func(cmd mongo.Command) (error, bool) {
		txn, _ := cmd.Body.Lookup("txnNumber").Int64OK()
		if simcaller.Name(cmd) == "update" && cmd.Body.Lookup("update").StringValue() == metadata.Diverged {
			number.CompareAndSwap(0, txn)
		}
		if simcaller.Name(cmd) != "commitTransaction" || txn != number.Load() {
			return nil, false
		}
		lost.Add(1)
		a.stop(crash)
		return &mongo.LostError{Err: crash}, executed
	})
	l.add(setOp("db.system.js", 7, 5))
	a.send(l, from)
	if err := a.ended(); !errors.Is(err, crash) {
		t.Fatal(err)
	}
	r.target.intercept(nil)
	r.apply(t, l.batches(), reports)
	if is := r.recorded(t); is != want || lost.Load() == 0 {
		t.Errorf("recorded %q, want %q, and %d replies to commits were lost", is, want, lost.Load())
	}
}

// TestDivergedBeforeTheBarrier: an operation without a collection is recorded before a transaction that follows in its batch, and goes to several
// lanes, is applied: if the process is killed right after that, the next one does not meet the operation again.
func TestDivergedBeforeTheBarrier(t *testing.T) {
	r := prepared(t, 4, doc(1, 0))
	l := newLog(t)
	l.add(insertOp("db.none", doc(1, 1)))
	l.add(l.transactionOp(insertOp("db.a", doc(2, 1)), insertOp("db.a", doc(3, 1)), insertOp("db.a", doc(4, 1)), insertOp("db.a", doc(5, 1))))
	a := r.live(t, reports)
	kill := errors.New("killed")
	var number atomic.Int64
	r.target.intercept(func(cmd mongo.Command) (error, bool) {
		txn, _ := cmd.Body.Lookup("txnNumber").Int64OK()
		switch simcaller.Name(cmd) {
		case "insert", "bulkWrite":
			number.Store(txn)
		case "commitTransaction":
			if txn == number.Load() {
				a.stop(kill)
				return &mongo.LostError{Err: kill}, true
			}
		}
		return nil, false
	})
	a.send(l, start)
	if err := a.ended(); !errors.Is(err, kill) {
		t.Fatal(err)
	}
	r.target.intercept(nil)
	if n := len(r.target.documents(t, "db.a")); n != 5 {
		t.Fatalf("%d documents: the transaction was not applied before the process was killed", n)
	}
	r.apply(t, l.batches(), reports)
	if is := r.recorded(t); is != "db.none 1" {
		t.Errorf("recorded %q", is)
	}
}

// TestDivergedBeforeTheWatermark: an operation without a collection is recorded before the watermark passes it.
func TestDivergedBeforeTheWatermark(t *testing.T) {
	r := prepared(t, 4, doc(1, 0))
	a := r.live(t, reports)
	l := newLog(t)
	l.add(insertOp("db.none", doc(1, 1)))
	a.send(l, start)
	a.reaches(l.optime())
	if is := r.recorded(t); is != "db.none 1" {
		t.Errorf("recorded %q", is)
	}
	a.drain()
}

// unmirrored is out of the scope without.
const unmirrored oplog.Namespace = "db.unmirrored"

type without struct{ everything }

func (w without) Target(ns oplog.Namespace) (oplog.Namespace, bool) {
	to, in := w.everything.Target(ns)
	return to, in && ns != unmirrored
}

// TestDivergedFollows: the records follow their collections, also if the process is killed after it has moved them.
func TestDivergedFollows(t *testing.T) {
	command := func(ns string, o bson.D) bson.D {
		return bson.D{{Key: "op", Value: "c"}, {Key: "ns", Value: ns}, {Key: "o", Value: o}}
	}
	for name, c := range map[string]struct {
		op   bson.D
		want string
	}{
		"dropped":          {command("db.$cmd", bson.D{{Key: "drop", Value: "a"}}), "db.b 2"},
		"renamed":          {command("db.$cmd", bson.D{{Key: "renameCollection", Value: "db.a"}, {Key: "to", Value: "db.c"}, {Key: "stayTemp", Value: false}}), "db.b 2, db.c 1"},
		"renamed away":     {command("db.$cmd", bson.D{{Key: "renameCollection", Value: "db.a"}, {Key: "to", Value: string(unmirrored)}, {Key: "stayTemp", Value: false}}), "db.b 2"},
		"database dropped": {command("db.$cmd", bson.D{{Key: "dropDatabase", Value: 1}}), ""},
		"another":          {command("db.$cmd", bson.D{{Key: "drop", Value: "d"}}), "db.a 1, db.b 2"},
		"renamed over one": {command("db.$cmd", bson.D{{Key: "renameCollection", Value: "db.a"}, {Key: "to", Value: "db.b"}, {Key: "stayTemp", Value: false}, {Key: "dropTarget", Value: bson.Binary{Subtype: bson.TypeBinaryUUID, Data: []byte("another-of-the-n")}}}), "db.b 1"},
	} {
		for _, how := range []string{"at once", "after a restart", "killed"} {
			t.Run(name+" "+how, func(t *testing.T) {
				r := prepared(t, 4, doc(1, 0))
				for _, name := range []string{"b", "d"} {
					r.target.run(t, "db", bson.D{{Key: "create", Value: name}})
				}
				set := func(c *Config) {
					r.serialized(t)(c)
					reports(c)
					c.Scope = without{}
				}
				l := newLog(t)
				l.add(setOp("db.a", 7, 5))
				l.add(setOp("db.b", 7, 5))
				l.add(setOp("db.b", 8, 5))
				if how == "after a restart" {
					r.apply(t, l.batches(), set)
				}
				l.alone(c.op)
				if how == "killed" {
					var gone atomic.Bool
					r.killedAt(t, l, set, func(cmd mongo.Command) bool {
						if simcaller.Name(cmd) == "commitTransaction" && gone.Load() {
							return false
						}
						is := simcaller.Name(cmd)
						if slices.Contains([]string{"drop", "renameCollection", "dropDatabase"}, is) {
							gone.Store(true)
						}
						body, _ := cmd.Body.Lookup("update").StringValueOK()
						return gone.Load() && body == metadata.Lanes && strings.Contains(fmt.Sprint(cmd.Docs), "$unset")
					})
				}
				r.apply(t, l.batches(), set)
				if is := r.recorded(t); is != c.want {
					t.Errorf("recorded %q, want %q", is, c.want)
				}
			})
		}
	}
}
