package applier

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
)

// A divergence after which the run continues is recorded in the metadata (see checkpoint.Diverged), so that it is known
// after the process has ended, too:
//
//	met in                          recorded
//	a transaction of a lane         in that transaction
//	writes outside of transactions  before the span is recorded as done, also if the attempt ends meanwhile
//	no collection                   before the barrier, or the watermark, passes the operation
//
// Each is counted once, although an operation without a collection is met again after a restart. One is lost if the process is killed
// between a write outside of transactions and the record, or if the target has no primary for keepTimeout then: the next attempt cannot
// tell what the write has met.

// keepTimeout is how long a lane tries to record divergences that no other attempt can meet: longer than an election.
const keepTimeout = 15 * time.Second

// lostWriter is the writer of the records of operations without a collection, which go to no lane.
const lostWriter = "none"

// met are the collections that have records, by their names at the source. Most links have none, so that a rename does nothing more.
type met struct {
	mu  sync.Mutex
	all map[oplog.Namespace]struct{}
	// counted are the last operations that earlier attempts have recorded as lost. It is not changed after the start.
	counted map[oplog.Namespace]checkpoint.Diverged
}

// add adds collections.
func (m *met) add(names ...oplog.Namespace) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all == nil {
		m.all = map[oplog.Namespace]struct{}{}
	}
	for _, ns := range names {
		m.all[ns] = struct{}{}
	}
}

// that returns the collections for which is holds.
func (m *met) that(is func(oplog.Namespace) bool) []oplog.Namespace {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []oplog.Namespace
	for ns := range m.all {
		if is(ns) {
			out = append(out, ns)
		}
	}
	slices.Sort(out)
	return out
}

// loadDiverged reads what earlier attempts have recorded.
func (a *Applier) loadDiverged(ctx context.Context) error {
	if a.cfg.ReportDivergence {
		if err := a.create(ctx, metadata.Diverged); err != nil {
			return err
		}
	}
	counted, all, err := checkpoint.DivergedBy(ctx, a.cfg.Target, a.cfg.MetaDB, a.cfg.Link, lostWriter)
	a.met.counted = counted
	a.met.add(all...)
	return err
}

// diverged returns the record of a divergence.
func (e *DivergenceError) diverged() checkpoint.Diverged {
	now := time.Now()
	return checkpoint.Diverged{
		NS: e.NS.Series(), Source: e.source.Series(), Ops: 1, First: e.OpTime.TS, Last: e.OpTime.TS, Op: e.op, Since: now, Until: now, What: e.What,
	}
}

// sums are divergences by their collections' names at the source.
type sums map[oplog.Namespace]*checkpoint.Diverged

func (s sums) add(d checkpoint.Diverged) {
	if s[d.Source] == nil {
		s[d.Source] = &checkpoint.Diverged{}
	}
	s[d.Source].Add(&d)
}

// write records all of them for a writer: one statement for each collection, however many operations there are.
func (s sums) write(ctx context.Context, a *Applier, c mongo.Caller, writer string) error {
	statements := make([]metadata.Statement, 0, len(s))
	for ns, d := range s {
		statements = append(statements, d.Statement(a.cfg.Link, a.cfg.Of, writer))
		a.met.add(ns) // before it is committed: a rename looks for it then
	}
	return metadata.Run(ctx, c, metadata.Update(a.cfg.MetaDB, metadata.Diverged, statements...), -1)
}

// keepDiverged records divergences in a transaction of the lane. addedBy, if not zero, is the transaction's id.
func (w *writer) keepDiverged(ctx context.Context, txn mongo.Caller, list []*DivergenceError, addedBy bson.ObjectID) error {
	if len(list) == 0 {
		return nil
	}
	of := sums{}
	for _, e := range list {
		d := e.diverged()
		d.AddedBy = addedBy
		of.add(d)
	}
	return of.write(ctx, w.Applier, txn, w.name)
}

// keepMet records and reports divergences outside of the lane's transactions. No other attempt would meet them again: a failover of the
// target, and the end of this attempt, are outlasted for keepTimeout. They are reported even if they could not be recorded.
func (w *writer) keepMet(ctx context.Context, list ...*DivergenceError) error {
	if len(list) == 0 {
		return nil
	}
	addedBy, tried := bson.NewObjectID(), false
	keep := func(ctx context.Context) error {
		return w.link.Within(ctx, func(txn mongo.Caller) error {
			if tried { // It may have been committed, and the reply was lost.
				added, err := checkpoint.IsAdded(ctx, txn, w.cfg.MetaDB, w.cfg.Link, w.name, list[0].source.Series(), addedBy)
				if added || err != nil {
					return err
				}
			}
			tried = true
			return w.keepDiverged(ctx, txn, list, addedBy)
		})
	}
	err := keep(ctx)
	if err != nil && (ctx.Err() != nil || isOutlasted(err)) {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepTimeout)
		defer cancel()
		err = mongo.Retry{For: mongo.Forever, Again: isOutlasted}.Do(last, func() error { return keep(last) })
	}
	for _, d := range list {
		w.diverged(d)
	}
	return err
}

// isOutlasted reports whether a write under the lease that failed may succeed once the target has a primary again.
func isOutlasted(err error) bool {
	return !errors.Is(err, lease.ErrFenced) && !errors.Is(err, lease.ErrRewound) && (isPassing(err) || mongo.Passes(err))
}

// lost are operations without a collection that are not recorded yet, and the last one of each collection that this attempt has met. They
// belong to the dispatcher.
type lost struct {
	of   sums
	last map[oplog.Namespace]checkpoint.Position
}

// lose counts an operation whose collection does not exist.
func (d *dispatcher) lose(o *routed) error {
	op := o.op.planned()
	e := divergence(&op, o.what)
	if op.At.Compare(d.lost.last[e.source]) <= 0 {
		return nil // A transaction that cannot be applied as one is routed again.
	}
	if d.lost.last == nil {
		d.lost.last = map[oplog.Namespace]checkpoint.Position{}
	}
	d.lost.last[e.source] = op.At
	if !d.cfg.ReportDivergence {
		return e
	}
	d.diverged(e)
	is := e.diverged()
	if was, known := d.met.counted[is.Source]; known {
		if c := oplog.CompareTimestamps(is.Last, was.Last); c < 0 || c == 0 && is.Op <= was.Op {
			return nil
		}
	}
	if d.lost.of == nil {
		d.lost.of = sums{}
	}
	d.lost.of.add(is)
	return nil
}

// keepLost records the lost operations, before anything says that the log was applied up to there.
func (d *dispatcher) keepLost(ctx context.Context) error {
	if len(d.lost.of) == 0 {
		return nil
	}
	err := d.link.Within(ctx, func(txn mongo.Caller) error { return d.lost.of.write(ctx, d.Applier, txn, lostWriter) })
	if err == nil {
		clear(d.lost.of)
	}
	return err
}

// followDiverged renames and removes records with their collections, once a command is applied. It may be repeated.
func (d *dispatcher) followDiverged(ctx context.Context, op *oplog.Op, at oplog.OpTime) error {
	ns, to, err := op.Target()
	if err != nil {
		return err
	}
	is := func(one oplog.Namespace) bool { return one == ns.Series() }
	switch op.Command {
	case oplog.CommandDropDatabase:
		is = func(one oplog.Namespace) bool { return one.DB() == string(ns) }
	case oplog.CommandRenameCollection:
		is = func(one oplog.Namespace) bool { return one == ns.Series() || one == to.Series() }
	case oplog.CommandDrop, oplog.CommandEmptyCapped:
	default:
		return nil
	}
	names := d.met.that(is)
	if len(names) == 0 {
		return nil
	}
	target, mirrored := d.cfg.Scope.Target(to)
	return d.link.Within(ctx, func(txn mongo.Caller) error {
		if op.Command != oplog.CommandRenameCollection || !mirrored {
			return checkpoint.DropDiverged(ctx, txn, d.cfg.MetaDB, d.cfg.Link, names...)
		}
		d.met.add(to.Series().Clone())
		return checkpoint.MoveDiverged(ctx, txn, d.cfg.MetaDB, d.cfg.Link, d.cfg.Of, ns.Series(), to.Series(), target.Series(), at.TS)
	})
}
