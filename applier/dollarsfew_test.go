package applier

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/mongosim"
)

// mixedTransaction is a transaction of a source from 5.0 on: n updates, a few of which a target before 5.0 refuses, because they write a
// name with a dollar, or become a pipeline on a document that has one. The target has the documents. After a command follows another
// transaction, with one such update.
func mixedTransaction(t *testing.T, r *rig, n int) (l *sourceLog, want []string) {
	t.Helper()
	var docs bson.A
	query := bson.E{Key: "q", Value: bson.D{{Key: "$gt", Value: 5}}}
	list := func(of ...any) bson.E { return bson.E{Key: "l", Value: bson.A(of)} }
	l = newLog(t)
	var ops []bson.D
	for id := range n {
		switch first := (bson.E{Key: "_id", Value: id}); id {
		case n / 2: // a name that the operation does not show
			docs = append(docs, bson.D{first, query, list(1, 2, 3)})
			ops = append(ops, deltaOp("db.c", id, bson.D{{Key: "sl", Value: bson.D{{Key: "a", Value: true}, {Key: "l", Value: 2}}}}))
			want = append(want, must.Marshal(t, bson.D{first, query, list(1, 2)}).String())
		case 1, n - 2:
			docs = append(docs, bson.D{first, {Key: "q", Value: 0}, {Key: "v", Value: 0}})
			ops = append(ops, setOp("db.c", id, id), deltaOp("db.c", id, bson.D{{Key: "u", Value: bson.D{query}}}))
			want = append(want, must.Marshal(t, bson.D{first, query, {Key: "v", Value: id}}).String())
		default:
			docs = append(docs, doc(id, -1))
			ops = append(ops, setOp("db.c", id, id))
			want = append(want, must.Marshal(t, doc(id, id)).String())
		}
	}
	r.target.run(t, "db", bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: docs}})
	ops, want = append(ops, insertOp("db.c", doc(n, 0))), append(want, must.Marshal(t, doc(n, 0)).String())
	l.add(l.transactionOp(ops...))
	l.alone(commandOp("db", bson.D{{Key: "create", Value: "d"}}))
	replaced := bson.D{{Key: "_id", Value: 3}, query}
	ops, want[3] = []bson.D{replaceOp("db.c", replaced)}, must.Marshal(t, replaced).String()
	for id := range n {
		if id > 3 && id < n/2 {
			ops, want[id] = append(ops, setOp("db.c", id, 7*id)), must.Marshal(t, doc(id, 7*id)).String()
		}
	}
	l.add(l.transactionOp(ops...))
	slices.Sort(want)
	return l, want
}

func wantMixed(t *testing.T, r *rig, want []string) {
	t.Helper()
	got := texts(r.target.documents(t, "db.c"))
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%d documents:\n%s\nwant %d:\n%s", len(got), got, len(want), want)
	}
}

// TestFewDollars: a transaction is in the target within its transactionLifetimeLimitSeconds only if a few updates that a target
// before 5.0 refuses do not cost the others a command each.
func TestFewDollars(t *testing.T) {
	for _, copied := range []bool{false, true} {
		for _, coalesce := range []bool{false, true} {
			t.Run(fmt.Sprintf("copied=%t coalesce=%t", copied, coalesce), func(t *testing.T) {
				r := newRig(t, 1, mongosim.Options{Members: 1, Dialect: "4.4"})
				l, want := mixedTransaction(t, r, 1000)
				var commands, refused atomic.Int64
				r.target.intercept(func(cmd mongo.Command) (error, bool) {
					switch name := simcaller.Name(cmd); {
					case name == "abortTransaction":
						refused.Add(1)
					case cmd.DB == "db":
						commands.Add(1)
					}
					return nil, false
				})
				r.apply(t, l.batches(), func(c *Config) {
					c.Plan = must.Get(plan.Ask(t.Context(), r.target, "db"))(t)
					c.Plan.Coalesce = coalesce
					if copied {
						c.CopiedUntil = l.optime()
					}
				})
				r.target.intercept(nil)
				wantMixed(t, r, want)
				if n := commands.Load(); n > 30 {
					t.Errorf("%d commands", n)
				}
				if n := refused.Load(); n != 2 {
					t.Errorf("%d transactions were refused: the one by which the name becomes known, and the one with a pipeline", n)
				}
			})
		}
	}
}

// TestFewDollarsCrash: where a process ends in such a transaction, the next one applies it once: its insert would meet its own document.
func TestFewDollarsCrash(t *testing.T) {
	r := newRig(t, 1, mongosim.Options{Members: 1, Dialect: "4.4"})
	crash := errors.New("the process ends")
	for after := int64(1); ; after++ {
		r.target.run(t, "db", bson.D{{Key: "dropDatabase", Value: 1}})
		r = rigOn(t, r.target, fmt.Sprint("link", after), 1)
		l, want := mixedTransaction(t, r, 20)
		set := func(c *Config) { c.Plan = must.Get(plan.Ask(t.Context(), r.target, "db"))(t) }
		a := must.Get(r.begin(t.Context(), set))(t)
		ctx, end := context.WithCancelCause(t.Context())
		var seen atomic.Int64
		r.target.intercept(func(cmd mongo.Command) (error, bool) {
			if cmd.Body.Lookup("autocommit").Type != 0 && seen.Add(1) >= after {
				end(crash)
				return &mongo.LostError{Err: crash}, true
			}
			return nil, false
		})
		err := a.run(ctx, l.batches(), 1)
		r.target.intercept(nil)
		if seen.Load() < after {
			must.Succeed(t, err)
			wantMixed(t, r, want)
			return
		}
		r.apply(t, l.batches(), set)
		wantMixed(t, r, want)
		if t.Failed() {
			t.Fatalf("crashed at command %d", after)
		}
	}
}

// TestMissingDollars: an update that writes a name with a dollar finds no document, in a flush in which it is applied by itself. That is
// recorded.
func TestMissingDollars(t *testing.T) {
	r := newRig(t, 1, mongosim.Options{Members: 1, Dialect: "4.4"})
	l, want := mixedTransaction(t, r, 20)
	l.add(replaceOp("db.c", bson.D{{Key: "_id", Value: 77}, {Key: "q", Value: bson.D{{Key: "$gt", Value: 5}}}}))
	r.apply(t, l.batches(), func(c *Config) {
		c.Plan = must.Get(plan.Ask(t.Context(), r.target, "db"))(t)
		reports(c)
	})
	wantMixed(t, r, want)
	if got := r.recorded(t); got != "db.c 1" {
		t.Errorf("divergences: %q", got)
	}
}

// TestDollarsOutsideTransactions: writes outside of transactions are planned as before a lane's flush that was refused for such a name: the
// target's refusal is told, and no operation is left out.
func TestDollarsOutsideTransactions(t *testing.T) {
	for _, ops := range [][]bson.D{
		{insertOp("db.system.js", bson.D{{Key: "_id", Value: 7}, {Key: "q", Value: bson.D{{Key: "$gt", Value: 5}}}})},
		{setOp("db.system.js", 6, 1), replaceOp("db.system.js", bson.D{{Key: "_id", Value: 6}, {Key: "q", Value: bson.D{{Key: "$gt", Value: 5}}}})},
	} {
		r := newRig(t, 1, mongosim.Options{Members: 1, Dialect: "4.4"})
		r.target.run(t, "db", bson.D{{Key: "insert", Value: "system.js"}, {Key: "documents", Value: bson.A{doc(6, 0)}}})
		l, _ := mixedTransaction(t, r, 20)
		for _, op := range ops {
			l.add(op)
		}
		if err := r.fails(t, l, nil); !servererr.IsDollarName(err) {
			t.Errorf("%v: %v", ops, err)
		}
	}
}
