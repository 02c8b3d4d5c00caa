package applier

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// prepared is a rig with the collection db.a, which has some documents.
func prepared(t *testing.T, writers int, docs ...bson.D) *rig {
	t.Helper()
	r := newRig(t, writers, mongosim.Options{Members: 1})
	r.target.run(t, "db", bson.D{{Key: "create", Value: "a"}})
	if len(docs) > 0 {
		r.target.run(t, "db", bson.D{{Key: "insert", Value: "a"}, {Key: "documents", Value: docs}})
	}
	return r
}

// fails runs an applier that must fail.
func (r *rig) fails(t *testing.T, l *sourceLog, set func(*Config)) error {
	t.Helper()
	a := must.Get(r.begin(t.Context(), set))(t)
	err := a.run(t.Context(), l.batches(), 0)
	if err == nil {
		t.Fatal("it was applied")
	}
	return err
}

func TestDivergence(t *testing.T) {
	for _, c := range []struct {
		name string
		op   bson.D
		what string
		// after is the result if the run continues, given documents 1 and 2 with v 0.
		after []bson.D
	}{
		{"insert meets another", insertOp("db.a", doc(1, 5)), "the insert met", []bson.D{doc(1, 5), doc(2, 9)}},
		{"delta meets nothing", setOp("db.a", 7, 5), "found no document", []bson.D{doc(1, 0), doc(2, 9)}},
		{"no collection", insertOp("db.b", doc(7, 5)), "does not exist", []bson.D{doc(1, 0), doc(2, 9)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := prepared(t, 4, doc(1, 0), doc(2, 0))
			l := newLog(t)
			for i := range 200 {
				l.add(insertOp("db.a", doc(fmt.Sprint("x", i), 1)))
				l.add(deleteOp("db.a", fmt.Sprint("x", i)))
			}
			l.add(c.op)
			l.add(setOp("db.a", 2, 9))
			err := r.fails(t, l, nil)
			d, ok := errors.AsType[*DivergenceError](err)
			if !ok || !strings.Contains(d.What, c.what) || d.OpTime != optimeOf(400) {
				t.Fatalf("error %v, want a divergence at %s: %s", err, optimeOf(400), c.what)
			}
			var told []event.Event
			a := r.apply(t, l.after(start), func(cfg *Config) {
				cfg.ReportDivergence = true
				cfg.Observer = func(e event.Event) {
					if e.Message() == "target diverged" {
						told = append(told, e)
					}
				}
			})
			if n := a.Stats().Divergences; n != 1 || len(told) != 1 {
				t.Errorf("%d divergences counted, %d told, want 1", n, len(told))
			}
			wantDocs(t, r.target, "db.a", c.after...)
		})
	}
}

// Divergences are also found where transactions cannot write.
func TestDirectDivergence(t *testing.T) {
	for _, op := range []bson.D{
		insertOp("db.system.js", doc(1, 5)), setOp("db.system.js", 7, 5), insertOp("db.cap", doc(1, 5)),
	} {
		r := prepared(t, 4)
		r.target.run(t, "db", bson.D{{Key: "create", Value: "cap"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}})
		for _, c := range []string{"system.js", "cap"} {
			r.target.run(t, "db", bson.D{{Key: "insert", Value: c}, {Key: "documents", Value: bson.A{doc(1, 0), doc(2, 0)}}})
		}
		l := newLog(t)
		l.add(setOp("db.system.js", 2, 3))
		l.add(op)
		l.add(setOp("db.system.js", 2, 4))
		a := r.apply(t, l.batches(), func(c *Config) { c.ReportDivergence = true })
		if n := a.Stats().Divergences; n != 1 {
			t.Errorf("%d divergences, want 1", n)
		}
		if docs := r.target.documents(t, "db.system.js"); len(docs) != 2 || docs[1].Lookup("v").Int32() != 4 {
			t.Errorf("documents %s", docs)
		}
	}
}

// A field that moves is inserted where it exists already, so that a guarded statement
// does not match.
func TestGuard(t *testing.T) {
	r := prepared(t, 1, bson.D{{Key: "_id", Value: 1}, {Key: "v", Value: 1}, {Key: "w", Value: 2}})
	l := newLog(t)
	diff := bson.D{{Key: "i", Value: bson.D{{Key: "v", Value: 5}}}}
	l.add(bson.D{
		{Key: "op", Value: "u"},
		{Key: "ns", Value: "db.a"},
		{Key: "o", Value: bson.D{{Key: "$v", Value: 2}, {Key: "diff", Value: diff}}},
		{Key: "o2", Value: bson.D{{Key: "_id", Value: 1}}},
	})
	var filters []string
	r.target.intercept(func(cmd mongo.Command) (error, bool) {
		if simcaller.Name(cmd) == "update" && cmd.DB == "db" {
			filters = append(filters, cmd.Docs[0].Lookup("q").String())
		}
		return nil, false
	})
	if s := r.apply(t, l.batches(), nil).Stats(); s.Divergences != 0 || s.Flushes != 1 {
		t.Errorf("stats %+v", s)
	}
	r.target.intercept(nil)
	if len(filters) != 2 || !strings.Contains(filters[0], "$exists") || strings.Contains(filters[1], "$exists") {
		t.Errorf("filters %v, want one with a guard, then one without", filters)
	}
	wantDocs(t, r.target, "db.a", bson.D{{Key: "_id", Value: 1}, {Key: "w", Value: 2}, {Key: "v", Value: 5}})
}

func TestEqualInsertIsNoDivergence(t *testing.T) {
	r := prepared(t, 2, doc(1, 0))
	l := newLog(t)
	l.add(insertOp("db.a", doc(1, 0)))
	l.add(deleteOp("db.a", 5))
	if s := r.apply(t, l.batches(), nil).Stats(); s.Divergences != 0 || s.DeletesEmpty != 1 {
		t.Errorf("stats %+v, want one empty delete", s)
	}
}

// With a copy that was taken during writes, all of these are normal.
func TestCopied(t *testing.T) {
	r := prepared(t, 4, doc(1, 0), doc(2, 0))
	l := newLog(t)
	l.add(insertOp("db.a", doc(1, 5)))
	l.add(setOp("db.a", 7, 5))
	l.add(deleteOp("db.a", 8))
	l.add(insertOp("db.gone", doc(7, 5)))
	l.end()
	copied := l.optime()
	l.add(setOp("db.a", 2, 9))
	if s := r.apply(t, l.batches(), func(c *Config) { c.CopiedUntil = copied }).Stats(); s.Divergences != 0 || s.Ignored != 2 {
		t.Errorf("stats %+v, want 2 ignored", s)
	}
	wantDocs(t, r.target, "db.a", doc(1, 5), doc(2, 9))
}

// TestErrorTexts: an error says what happened, in one line, with ids as the server shows
// them. It does not say what to do.
func TestErrorTexts(t *testing.T) {
	at, ns := oplog.NewOpTime(5, 1, 1), oplog.Namespace("db.a")
	id := func(v any) bson.RawValue {
		kind, data, err := bson.MarshalValue(v)
		if err != nil {
			t.Fatal(err)
		}
		return bson.RawValue{Type: kind, Value: data}
	}
	key, err := bson.Marshal(bson.D{{Key: "v", Value: 7}})
	if err != nil {
		t.Fatal(err)
	}
	refused := errors.New("no")
	long := bson.D{{Key: "a", Value: bson.A{"x" + strings.Repeat("ü", 60), "z"}}}
	for want, err := range map[string]error{
		`apply entry 5:1 t1: db.a, _id 3: the target differs from what the link wrote: the update found no document`:                               &DivergenceError{NS: ns, ID: id(int32(3)), OpTime: at, What: "the update found no document"},
		`apply entry 5:1 t1: db.a, _id "a\nb": the target differs from what the link wrote: gone`:                                                  &DivergenceError{NS: ns, ID: id("a\nb"), OpTime: at, What: "gone"},
		`apply entry 5:1 t1: db.a, _id { a: [ "x` + strings.Repeat("ü", 59) + `... (151 bytes): the target differs from what the link wrote: gone`: &DivergenceError{NS: ns, ID: id(long), OpTime: at, What: "gone"},
		`apply entry 5:1 t1: db.a, _id 1: unique index v_1 has the key { v: 7 } already, which _id 2.5 has: no`:                                    &UniqueError{NS: ns, Index: "v_1", Key: key, ID: id(int64(1)), Other: id(2.5), OpTime: at, Err: refused},
		`apply entry 5:1 t1: db.a, _id 1: unique index without a known name has its key already: no`:                                               &UniqueError{NS: ns, ID: id(int64(1)), OpTime: at, Err: refused},
	} {
		if got := err.Error(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestUniqueError(t *testing.T) {
	r := prepared(t, 4, doc("old", 7))
	r.target.run(t, "db", bson.D{{Key: "createIndexes", Value: "a"}, {Key: "indexes", Value: bson.A{
		bson.D{{Key: "key", Value: bson.D{{Key: "v", Value: 1}}}, {Key: "name", Value: "v_1"}, {Key: "unique", Value: true}},
	}}})
	l := newLog(t)
	l.add(insertOp("db.a", doc("new", 7)))
	for _, report := range []bool{false, true} {
		err := r.fails(t, l, func(c *Config) { c.ReportDivergence = report })
		u, ok := errors.AsType[*UniqueError](err)
		if !ok || u.Index != "v_1" || u.ID.StringValue() != "new" || u.Other.Type == 0 || u.Other.StringValue() != "old" || len(u.Key) == 0 {
			t.Fatalf("error %v (%+v), want all that can be known of index v_1", err, u)
		}
	}
	wantDocs(t, r.target, "db.a", doc("old", 7))
}

// refuse makes the next commands of a name fail.
//
//nolint:unparam // Calls read better with the name.
func refuse(g *simTarget, name string, times int, e *servererr.Error) {
	var n atomic.Int64
	g.intercept(func(cmd mongo.Command) (error, bool) {
		if simcaller.Name(cmd) == name && cmd.DB == "db" && n.Add(1) <= int64(times) {
			return e, false
		}
		return nil, false
	})
}

func inserts(t *testing.T, n int) *sourceLog {
	t.Helper()
	l := newLog(t)
	for i := range n {
		l.add(insertOp("db.a", doc(i, i)))
	}
	return l
}

func TestConflictIsTriedAgain(t *testing.T) {
	r := prepared(t, 1)
	l := inserts(t, 10)
	refuse(r.target, "insert", 3, servererr.New(servererr.WriteConflict, "conflict").WithLabels(labelTransient))
	if s := r.apply(t, l.batches(), nil).Stats(); s.Retries != 3 || s.Flushes != 1 {
		t.Errorf("stats %+v, want 3 retries of one flush", s)
	}
}

func TestConflictForTooLong(t *testing.T) {
	r := prepared(t, 1)
	refuse(r.target, "insert", 1000, servererr.New(servererr.LockTimeout, "locked").WithLabels(labelTransient))
	err := r.fails(t, inserts(t, 10), func(c *Config) { c.RetryFor = 50 * time.Millisecond })
	if _, ok := errors.AsType[*StuckError](err); !ok {
		t.Fatalf("error %v, want a *StuckError", err)
	}
	r.target.intercept(nil)
	wantDocs(t, r.target, "db.a")
}

func TestTooLargeIsHalved(t *testing.T) {
	for _, atomic := range []bool{false, true} {
		t.Run(strconv.FormatBool(atomic), func(t *testing.T) {
			r := prepared(t, 1)
			l := newLog(t)
			var ops, want []bson.D
			for i := range 40 {
				ops, want = append(ops, insertOp("db.a", doc(i, i))), append(want, doc(i, i))
			}
			if atomic {
				l.add(l.transactionOp(ops...))
			} else {
				for _, op := range ops {
					l.add(op)
				}
			}
			r.target.intercept(func(cmd mongo.Command) (error, bool) {
				if simcaller.Name(cmd) == "insert" && len(cmd.Docs) > 12 {
					return servererr.New(servererr.TransactionTooLarge, "too large"), false
				}
				return nil, false
			})
			told := 0
			s := r.apply(t, l.batches(), func(c *Config) {
				c.Observer = func(e event.Event) {
					if e.Message() == notAtomic {
						told++
					}
				}
			}).Stats()
			if s.Flushes != 4 || (told > 0) != atomic {
				t.Errorf("stats %+v, told %d times, want 4 flushes", s, told)
			}
			r.target.intercept(nil)
			wantDocs(t, r.target, "db.a", want...)
		})
	}
}

// An error that is not about one operation ends the attempt at once.
func TestEnds(t *testing.T) {
	for _, code := range []servererr.Code{
		servererr.NotWritablePrimary, servererr.NoSuchTransaction, servererr.InterruptedDueToReplStateChange, servererr.Unauthorized,
	} {
		t.Run(code.String(), func(t *testing.T) {
			r := prepared(t, 2)
			refuse(r.target, "insert", 1, servererr.New(code, "no").WithLabels(labelTransient))
			err := r.fails(t, inserts(t, 10), nil)
			if e, ok := asServerError(err); !ok || e.Code != code {
				t.Fatalf("error %v, want %s", err, code)
			}
			r.apply(t, inserts(t, 10).batches(), nil)
		})
	}
}

func TestOpErrorNamesTheOperation(t *testing.T) {
	r := prepared(t, 2)
	l := inserts(t, 300)
	bad := int32(137)
	r.target.intercept(func(cmd mongo.Command) (error, bool) {
		if simcaller.Name(cmd) != "insert" {
			return nil, false
		}
		for _, d := range cmd.Docs {
			if d.Lookup("_id").Int32() == bad {
				return servererr.New(servererr.BSONObjectTooLarge, "too large"), false
			}
		}
		return nil, false
	})
	err := r.fails(t, l, nil)
	e, ok := errors.AsType[*OpError](err)
	if !ok || e.ID.Int32() != bad || e.OpTime != optimeOf(int(bad)) || e.NS != oplog.Namespace("db.a") {
		t.Fatalf("error %v, want an *OpError of _id %d", err, bad)
	}
}

// The state before a command is not cached.
func TestDropped(t *testing.T) {
	r := prepared(t, 2)
	l := newLog(t)
	l.add(insertOp("db.a", doc(1, 1)))
	l.alone(commandOp("db", bson.D{{Key: "drop", Value: "a"}}))
	l.add(insertOp("db.a", doc(2, 1)))
	err := r.fails(t, l, nil)
	if d, ok := errors.AsType[*DivergenceError](err); !ok || !strings.Contains(d.What, "does not exist") {
		t.Fatalf("error %v, want the collection not to exist", err)
	}
}

// An operation that ends the run leaves no transaction open, which would lock the
// documents of its flush.
func TestDivergenceLeavesNothingLocked(t *testing.T) {
	r := prepared(t, 1, doc(1, 0), doc(2, 0))
	l := newLog(t)
	l.add(setOp("db.a", 1, 1))
	l.add(insertOp("db.a", doc(2, 5)))
	if err := r.fails(t, l, nil); !isStop(err) {
		t.Fatal(err)
	}
	r.target.run(t, "db", bson.D{{Key: "update", Value: "a"}, {Key: "maxTimeMS", Value: 1000}, {Key: "updates", Value: bson.A{bson.D{
		{Key: "q", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: 7}}}}},
	}}}})
	wantDocs(t, r.target, "db.a", doc(1, 7), doc(2, 0))
}

// A flush of one operation that is too much for the target at the moment is retried: the
// target may have more room later.
func TestAloneIsTriedAgain(t *testing.T) {
	for _, code := range []servererr.Code{
		servererr.TransactionExceededLifetimeLimitSeconds, servererr.TransactionTooLargeForCache, servererr.ExceededMemoryLimit,
	} {
		r := prepared(t, 1)
		refuse(r.target, "insert", 2, servererr.New(code, "no"))
		if s := r.apply(t, inserts(t, 1).batches(), nil).Stats(); s.Retries != 2 || s.Flushes != 1 {
			t.Errorf("%s: stats %+v, want 2 retries of one flush", code, s)
		}
	}
}

// The error of an operation that is tried again for long names it.
func TestStuckNamesOperation(t *testing.T) {
	r := prepared(t, 1)
	refuse(r.target, "insert", 1_000_000, servererr.New(servererr.TransactionTooLargeForCache, "no"))
	err := r.fails(t, inserts(t, 1), func(c *Config) { c.RetryFor = time.Millisecond })
	stuck, is := errors.AsType[*StuckError](err)
	op, named := errors.AsType[*OpError](err)
	if !is || !named || stuck.Ops != 1 || op.NS != "db.a" || op.OpTime != stuck.At.OpTime || len(op.ID.Value) == 0 {
		t.Errorf("%v", err)
	}
}

// A flush that meets repeated conflicts is split.
func TestCrowdIsCut(t *testing.T) {
	r := prepared(t, 1)
	r.target.intercept(func(cmd mongo.Command) (error, bool) {
		if simcaller.Name(cmd) == "insert" && len(cmd.Docs) > 3 {
			return servererr.New(servererr.WriteConflict, "conflict").WithLabels(labelTransient), false
		}
		return nil, false
	})
	s := r.apply(t, inserts(t, 8).batches(), func(c *Config) { c.RetryFor = 500 * time.Millisecond }).Stats()
	if s.Flushes < 3 {
		t.Errorf("stats %+v, want 3 flushes at least", s)
	}
}
