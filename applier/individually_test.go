package applier

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/batcher"
	"github.com/oplogrep/replicator/internal/testkit/corpus"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/batch"
	"github.com/oplogrep/replicator/scope"
)

// individually states the rule independently: whether an operation must be processed
// individually, and whether it is DDL.
func individually(op *oplog.Op) (must, isDDL bool) {
	switch {
	case op.Kind == oplog.KindNoop:
		return false, false
	case op.Kind == oplog.KindCommand, op.NS.Collection() == "system.views":
		return true, true
	default:
		return slices.Contains([]oplog.Namespace{"admin.system.users", "admin.system.roles"}, op.NS), false
	}
}

// executor has everything in scope.
func executor(t *testing.T) *ddl.Executor {
	t.Helper()
	r := newRig(t, 1, mongosim.Options{Members: 1})
	all := must.Get(scope.New(scope.Config{UsersAndRoles: true}))(t)
	link := must.Get(r.store.Acquire(t.Context(), 0))(t)
	return must.Get(ddl.New(ddl.Config{
		Target: r.target, Fence: link, Catalog: must.Get(catalog.Load(t.Context(), r.target, nil))(t), Scope: all, Link: "link",
	}))(t)
}

// TestIndividuallyCorpus: for every recorded entry the batcher, the transaction assembler
// and ddl agree with the rule.
func TestIndividuallyCorpus(t *testing.T) {
	t.Parallel()
	exec := executor(t)
	all := must.Get(corpus.Open("../testdata/corpus"))(t)
	seen := map[string]bool{}
	for i := range all {
		reply := oplog.Reply{Bytes: 1}
		for e, err := range all[i].Oplog() {
			must.Succeed(t, err)
			reply.Entries = append(reply.Entries, *e)
		}
		b := must.Get(batcher.New(batcher.Config{SpillDir: t.TempDir()}))(t)
		in, out := make(chan oplog.Reply, 1), make(chan batch.Batch)
		in <- reply
		close(in)
		var wg sync.WaitGroup
		var ended error
		wg.Go(func() { ended = b.Run(t.Context(), in, out) })
		for got := range out {
			judgeBatch(t, exec, &got, seen)
		}
		wg.Wait()
		must.Succeed(t, ended)
	}
	for _, kind := range []string{"insert", "update", "delete", "create", "drop", "renameCollection", "collMod", "view", "in a transaction"} {
		if !seen[kind] {
			t.Errorf("the corpus has no %s", kind)
		}
	}
}

func judgeBatch(t *testing.T, exec *ddl.Executor, b *batch.Batch, seen map[string]bool) {
	t.Helper()
	wanted := false
	take := func(op *oplog.Op, inTxn bool) {
		must, isDDL := individually(op)
		if op.MustBeProcessedIndividually() != must || op.IsDDL() != isDDL {
			t.Errorf("%s %s: individually %t, DDL %t", op.Kind, op.O, op.MustBeProcessedIndividually(), op.IsDDL())
		}
		if in, err := exec.InScope(op); err != nil || in && !isDDL {
			t.Errorf("%s %s: ddl takes it: %t, %v", op.Kind, op.O, in, err)
		}
		wanted = wanted || must
		seen[op.Kind.String()] = true
		seen[op.Command.String()] = true
		seen["view"] = seen["view"] || isDDL && op.Kind.IsCRUD()
		seen["in a transaction"] = seen["in a transaction"] || must && inTxn
	}
	for _, item := range b.Items {
		if item.Txn == nil {
			take(&item.Entry.Op, false)
			continue
		}
		before := wanted
		wanted = false
		for op, err := range item.Txn.Ops() {
			must.Succeed(t, err)
			take(&op, true)
		}
		if item.Txn.MustBeProcessedIndividually != wanted {
			t.Errorf("transaction %s: individually %t", item.Txn.OpTime, !wanted)
		}
		wanted = wanted || before
		must.Succeed(t, item.Txn.Close())
	}
	if b.Individually != wanted || wanted && len(b.Items) != 1 {
		t.Errorf("the batch up to %s has %d items, individually: %t", b.Last, len(b.Items), b.Individually)
	}
}

// TestIndividuallyApplied: an operation that must be processed individually is refused in
// a batch that is not marked so, alone and in a transaction, and no other is.
func TestIndividuallyApplied(t *testing.T) {
	t.Parallel()
	var ops []bson.D
	for c := oplog.CommandCreate; c <= oplog.CommandImportCollection; c++ {
		switch c {
		case oplog.CommandApplyOps, oplog.CommandCommitTransaction, oplog.CommandAbortTransaction:
			continue // assembled earlier
		default:
			ops = append(ops, commandOp("db", bson.D{{Key: c.String(), Value: "a"}}))
		}
	}
	for _, ns := range []string{"db.a", "db.system.views", "db.my.system.views", "admin.system.users", "admin.system.roles", "db.system.users", "db.system.js"} {
		ops = append(ops, insertOp(ns, doc("db.v", 1)), setOp(ns, "db.v", 2), deleteOp(ns, "db.v"))
	}
	ops = append(ops, bson.D{{Key: "op", Value: "n"}, {Key: "ns", Value: ""}, {Key: "o", Value: bson.D{}}})
	refused := 0
	for _, fields := range ops {
		for _, inTxn := range []bool{false, true} {
			l := newLog(t)
			l.add(fields)
			if inTxn {
				l = newLog(t)
				l.add(l.transactionOp(fields))
			}
			b := l.batches()
			d := &dispatcher{Applier: &Applier{}, ended: true}
			d.cfg.Scope, d.cfg.WindowBytes = nowhere{}, 1<<20
			d.routes.a = d.Applier
			d.routes.forget()
			want := false
			for i := range b[0].Items {
				item := &b[0].Items[i]
				want, _ = individually(&item.Entry.Op)
				if item.Txn != nil {
					for op, err := range item.Txn.Ops() {
						must.Succeed(t, err)
						want, _ = individually(&op)
					}
				}
				_, err := d.item(t.Context(), b[0].Items[i:])
				if errors.Is(err, errNotIndividually) != want || !want && err != nil {
					t.Errorf("%v, in a transaction: %t: %v", fields, inTxn, err)
				}
			}
			if want {
				refused++
			}
		}
	}
	if want := 2 * (13 + 9); refused != want {
		t.Errorf("%d are refused, want %d", refused, want)
	}
}

// nowhere is a scope without namespaces.
type nowhere struct{}

func (nowhere) Target(ns oplog.Namespace) (oplog.Namespace, bool) { return ns, false }
func (nowhere) Source(ns oplog.Namespace) (oplog.Namespace, bool) { return ns, false }
