package memstore

import (
	"errors"
	"fmt"

	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/txn"
)

// Group has the operations that take effect with one entry: its operation,
// those of the transaction that it completes, or nothing.
type Group struct {
	// Ops are views into the entries that brought them.
	Ops []oplog.Op
	// Kind is zero for a single operation.
	Kind txn.Kind
}

// Grouper takes entries in log order and returns the operations that take
// effect with each.
type Grouper struct {
	assembler *txn.Assembler
}

// NewGrouper returns a Grouper. It is to be closed.
func NewGrouper(cfg txn.Config) (*Grouper, error) {
	assembler, err := txn.New(cfg)
	if err != nil {
		return nil, err
	}
	return &Grouper{assembler}, nil
}

// Add takes the next entry, which is kept in memory for as long as the group
// is.
func (g *Grouper) Add(e *oplog.Entry) (Group, error) {
	var group Group
	result, err := g.assembler.Add(e)
	if err != nil {
		return group, err
	}
	switch result.Outcome {
	case txn.Pass:
		group.Ops = []oplog.Op{e.Op}
		return group, nil
	case txn.Committed:
		group.Kind = result.Txn.Kind
		group.Ops, err = collect(result.Txn)
		return group, err
	case txn.Partial, txn.Aborted, txn.Past:
		return group, nil
	default:
		return group, fmt.Errorf("group operations of %s: unknown outcome %s", e.OpTime, result.Outcome)
	}
}

func collect(t *txn.Transaction) (ops []oplog.Op, err error) {
	defer func() { err = errors.Join(err, t.Close()) }()
	ops = make([]oplog.Op, 0, t.Count)
	for op, err := range t.Ops() {
		if err != nil {
			return nil, err
		}
		ops = append(ops, op)
	}
	return ops, nil
}

// Close gives up the transactions that are not complete.
func (g *Grouper) Close() error { return g.assembler.Close() }

// ApplyGroup applies the operations of a group in order. In Steady mode an
// insert of a transaction must not find its document there. An error is an
// [*OpError]; the operations before it stay applied.
func (s *Store) ApplyGroup(g *Group, mode Mode) error {
	for i := range g.Ops {
		op := &g.Ops[i]
		if g.Kind == txn.KindTransaction && mode == Steady {
			if err := s.checkNew(op); err != nil {
				return opError(op, err)
			}
		}
		if err := s.Apply(op, mode); err != nil {
			return err
		}
	}
	return nil
}

// checkNew reports whether an insert finds its document there. The server does
// not turn the inserts of a transaction into replacements.
func (s *Store) checkNew(op *oplog.Op) error {
	if op.Kind != oplog.KindInsert || s.cfg.Ignore(op.NS) {
		return nil
	}
	c, err := s.resolve(op, op.NS)
	if err != nil {
		return nil //nolint:nilerr // a missing collection is for Apply to judge
	}
	if _, exists := c.get(op.ID); exists {
		return DuplicateKey.because("the transaction inserts _id %s, which is there already", op.ID)
	}
	return nil
}

// Applier applies whole entries to a store, in log order.
type Applier struct {
	store   *Store
	mode    Mode
	grouper *Grouper
}

// NewApplier returns an Applier for store. It is to be closed.
func NewApplier(store *Store, mode Mode, cfg txn.Config) (*Applier, error) {
	g, err := NewGrouper(cfg)
	if err != nil {
		return nil, err
	}
	return &Applier{store, mode, g}, nil
}

// Apply applies the operations that take effect with the next entry. For errors
// see [Store.ApplyGroup] and package txn.
func (a *Applier) Apply(e *oplog.Entry) error {
	g, err := a.grouper.Add(e)
	if err != nil {
		return err
	}
	return a.store.ApplyGroup(&g, a.mode)
}

// Close gives up the transactions that are not complete.
func (a *Applier) Close() error { return a.grouper.Close() }
