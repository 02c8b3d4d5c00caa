package replay

import (
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// maxNesting is how deep applyOps commands may be nested.
const maxNesting = 10

// applyGroup carries out an applyOps entry, or nothing of it if more parts of its
// transaction follow.
func (a *Applier) applyGroup(w *storage.Writer, e *oplog.Entry) error {
	group, err := e.ApplyOps()
	if err != nil {
		return err
	}
	chained, s := e.InTransaction(), e.Session()
	switch {
	case !chained && (group.Prepare || group.PartialTxn):
		return fmt.Errorf("%w: a part of a transaction without prevOpTime", ErrBrokenChain)
	case group.PartialTxn:
		if !s.PrevOpTime.IsNull() {
			if _, err := partAt(w, s.PrevOpTime, e); err != nil {
				return err
			}
		} else {
			w.HoldOplog(e.OpTime.TS)
		}
		return a.commit(w, e, nil)
	case group.Prepare:
		if err := a.prepare(w, e); err != nil {
			return err
		}
		err := a.commit(w, e, nil)
		if err != nil {
			a.prepared[e.OpTime.TS].Unit.Abort()
			delete(a.prepared, e.OpTime.TS)
		}
		return err
	}
	ops, first, err := operations(w, e)
	if err != nil {
		return err
	}
	// The log does not say what a user's applyOps found: it may have replaced or
	// inserted. Transactions and grouped inserts do not.
	r := rules{replace: a.opts.Tolerant || !chained && s.MultiOpType != 1}
	if err := a.commit(w, e, func(u *storage.Unit) error { return a.all(u, ops, r) }); err != nil {
		return err
	}
	w.ReleaseOplog(first, e.OpTime.TS)
	return nil
}

// all carries out operations in order.
func (a *Applier) all(u *storage.Unit, ops []oplog.Op, r rules) error {
	for i := range ops {
		op := &ops[i]
		var err error
		switch {
		case a.opts.Tolerant && changesFCV(op):
			err = errFCV
		case op.Kind == oplog.KindNoop:
		case op.Kind == oplog.KindCommand:
			err = a.command(u, op)
		default:
			r.upsert = op.Upsert
			_, _, err = a.crud(u, op, r)
		}
		if err != nil {
			return fmt.Errorf("operation %d, %s on %s: %w", i, op.Kind, op.NS, err)
		}
	}
	return nil
}

// prepare makes a prepared unit of a chain that ends with e.
func (a *Applier) prepare(w *storage.Writer, e *oplog.Entry) error {
	ops, first, err := operations(w, e)
	if err != nil {
		return err
	}
	u := a.begin(w)
	if err := a.all(u, ops, rules{replace: a.opts.Tolerant}); err != nil {
		u.Abort()
		return err
	}
	u.Keep()
	u.Prepare(e.OpTime.TS)
	w.HoldOplog(first)
	s := e.Session()
	a.prepared[e.OpTime.TS] = opwrite.Prepared{
		Session: opwrite.Session{LSID: s.LSID, TxnNumber: s.TxnNumber}, Unit: u, At: e.OpTime,
	}
	return nil
}

// decide executes commitTransaction and abortTransaction.
func (a *Applier) decide(w *storage.Writer, e *oplog.Entry) error {
	s := e.Session()
	p, ok := a.prepared[s.PrevOpTime.TS]
	ok = ok && p.At.Equal(s.PrevOpTime)
	isCommit := e.Command == oplog.CommandCommitTransaction
	var visible bson.Timestamp
	if isCommit {
		var err error
		if visible, err = e.CommitTimestamp(); err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("%w: no transaction was prepared at %s", ErrBrokenChain, s.PrevOpTime)
		}
	}
	if isCommit && (oplog.CompareTimestamps(visible, p.At.TS) < 0 || oplog.CompareTimestamps(visible, e.OpTime.TS) > 0) {
		return fmt.Errorf("%w: the commit timestamp %d:%d is not between %s and the entry", ErrBrokenChain, visible.T, visible.I, p.At)
	}
	if ok && (p.Session.TxnNumber != s.TxnNumber || string(p.Session.LSID) != string(s.LSID)) {
		return fmt.Errorf("%w: the transaction prepared at %s is of another session", ErrBrokenChain, s.PrevOpTime)
	}
	before, _, err := opwrite.ReadRecord(w.View(bson.Timestamp{}), s.LSID)
	if err != nil {
		return err
	}
	if err := a.commit(w, e, nil); err != nil {
		return err
	}
	w.ReleaseOplog(before.Start.TS, e.OpTime.TS)
	if ok {
		delete(a.prepared, s.PrevOpTime.TS)
		if isCommit {
			p.Unit.CommitAt(visible, e.OpTime.TS)
		} else {
			p.Unit.Abort()
		}
	}
	return nil
}

// entryAt reads an entry of the store's oplog.
func entryAt(w *storage.Writer, at oplog.OpTime) (*oplog.Entry, error) {
	stored, ok := w.Oplog().At(at.TS)
	if !ok || !stored.At.Equal(at) {
		return nil, fmt.Errorf("%w: the oplog has no entry %s", ErrBrokenChain, at)
	}
	e, err := oplog.ParseEntry(stored.Raw)
	return &e, err
}

// partAt reads a part of the chain that e continues.
func partAt(w *storage.Writer, at oplog.OpTime, e *oplog.Entry) (*oplog.Entry, error) {
	part, err := entryAt(w, at)
	if err != nil {
		return nil, err
	}
	if part.Command == oplog.CommandApplyOps {
		group, err := part.ApplyOps()
		if err != nil {
			return nil, err
		}
		if is, of := part.Session(), e.Session(); group.PartialTxn && is.TxnNumber == of.TxnNumber && string(is.LSID) == string(of.LSID) {
			return part, nil
		}
	}
	return nil, fmt.Errorf("%w: %s is no part of the same transaction", ErrBrokenChain, at)
}

// operations are those of a chain that ends with e, in order, nested ones taken
// out of their groups. Each has the optime of e. The chain's first entry is at
// first.
func operations(w *storage.Writer, e *oplog.Entry) (ops []oplog.Op, first bson.Timestamp, err error) {
	parts := []*oplog.Entry{e}
	if e.InTransaction() {
		for at := e.Session().PrevOpTime; !at.IsNull(); at = parts[len(parts)-1].Session().PrevOpTime {
			part, err := partAt(w, at, e)
			if err != nil {
				return nil, first, err
			}
			parts = append(parts, part)
		}
	}
	first = parts[len(parts)-1].OpTime.TS
	for _, part := range slices.Backward(parts) {
		group, err := part.ApplyOps()
		if err != nil {
			return nil, first, err
		}
		if ops, err = flatten(ops, &group, !e.InTransaction(), 1); err != nil {
			return nil, first, err
		}
		if group.HasCount && e.InTransaction() && group.Count != int64(len(ops)) {
			return nil, first, fmt.Errorf("%w: %d operations, the entry counts %d", ErrBrokenChain, len(ops), group.Count)
		}
	}
	for i := range ops {
		ops[i].OpTime = e.OpTime
	}
	return ops, first, nil
}

func flatten(ops []oplog.Op, group *oplog.ApplyOps, user bool, depth int) ([]oplog.Op, error) {
	if depth > maxNesting {
		return nil, fmt.Errorf("applyOps nested more than %d times", maxNesting)
	}
	for op, err := range group.Ops() {
		if err != nil {
			return nil, err
		}
		if op.Command != oplog.CommandApplyOps {
			op.Upsert = op.Upsert || user && group.AlwaysUpsert
			ops = append(ops, op)
			continue
		}
		nested, err := op.ApplyOps()
		if err != nil {
			return nil, err
		}
		if ops, err = flatten(ops, &nested, user, depth+1); err != nil {
			return nil, err
		}
	}
	return ops, nil
}
