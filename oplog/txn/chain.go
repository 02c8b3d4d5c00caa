package txn

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/oplog"
)

// chain is a transaction whose end has not been added yet.
type chain struct {
	// start is its first entry, last the one that the next entry has to link to.
	start, last oplog.OpTime

	lsid         bson.Raw // a copy
	txnNumber    int64
	hasTxnNumber bool

	prepared bool
	// ghost marks a chain that started before the first entry added: its parts are
	// followed but not kept.
	ghost bool

	flat         flattener
	parts        int
	count        int
	bytes        int64
	individually bool
	store        store

	older, newer *chain // in the order of start; ghosts are not in it
	place        int    // in Assembler.inMemory, or nowhere
}

func (c *chain) hasSession() bool { return c.hasTxnNumber && c.lsid != nil }

// belongs checks that an entry has the chain's session. Links alone identify the
// chain, so a different session means that the log cannot be trusted.
func (c *chain) belongs(e *oplog.Entry, s *oplog.Session) error {
	if c.ghost || c.hasTxnNumber == s.HasTxnNumber && c.txnNumber == s.TxnNumber && bytes.Equal(c.lsid, s.LSID) {
		return nil
	}
	return bad(e, "prevOpTime", "it links to %s of another session or transaction", c.last)
}

// tally counts operations.
type tally struct {
	count        int
	individually bool
	err          error
}

func (y *tally) add(op oplog.Op, err error) bool {
	y.count++
	y.individually = y.individually || op.MustBeProcessedIndividually()
	y.err = err
	return true
}

// take counts a part. It reads all of it, so that faults show while the entry is at
// hand, not when the transaction is applied.
func (c *chain) take(group *oplog.ApplyOps) error {
	var y tally
	c.flat.group(group, 0, y.add)
	if y.err != nil {
		return y.err
	}
	c.parts++
	c.count += y.count
	c.individually = c.individually || y.individually
	c.bytes += int64(group.Size())
	return nil
}

// checkCount compares the number of operations with the count in the last part. The
// server writes a count only if there are several parts.
func (c *chain) checkCount(e *oplog.Entry, last *oplog.ApplyOps) error {
	switch {
	case !last.HasCount && c.parts > 1:
		return e.Fault("o.count", fmt.Errorf("%w: the last of several entries says how many operations they have", oplog.ErrMissingField))
	case last.HasCount && last.Count != int64(c.count):
		return bad(e, "o.count", "it is %d where the transaction's %d entries have %d operations", last.Count, c.parts, c.count)
	default:
		return nil
	}
}

// transaction moves the chain's parts to the transaction that the entry completes.
func (c *chain) transaction(e *oplog.Entry) *Transaction {
	return &Transaction{
		Kind: c.flat.kind, OpTime: e.OpTime, Start: c.start, Wall: e.Wall,
		LSID: c.lsid, TxnNumber: c.txnNumber, HasTxnNumber: c.hasTxnNumber,
		Prepared: c.prepared, Parts: c.parts, Count: c.count, Bytes: c.bytes,
		MustBeProcessedIndividually: c.individually, flat: c.flat, store: c.store,
	}
}

// begin returns a chain without parts.
func (a *Assembler) begin(e *oplog.Entry, s *oplog.Session, ghost bool) *chain {
	return &chain{
		start: e.OpTime, ghost: ghost, flat: newFlattener(e), place: nowhere,
		lsid: bytes.Clone(s.LSID), txnNumber: s.TxnNumber, hasTxnNumber: s.HasTxnNumber,
		store: store{budget: a.budget, segments: a.segments, start: e.OpTime},
	}
}

// extend makes the entry the chain's last part. The steps that can fail come first,
// so that an error leaves the bookkeeping unchanged.
func (a *Assembler) extend(c *chain, e *oplog.Entry, group *oplog.ApplyOps) error {
	isNew := c.parts == 0
	if !c.ghost {
		if err := a.takePart(c, e, group); err != nil {
			if isNew {
				err = errors.Join(err, c.store.release())
			}
			return err
		}
		if isNew {
			a.enter(c)
		}
	}
	delete(a.byLast, c.last.TS)
	c.last = e.OpTime
	if c.prepared = group.Prepare; c.prepared && !c.ghost {
		a.prepared++
	}
	a.byLast[c.last.TS] = c
	return nil
}

func (a *Assembler) takePart(c *chain, e *oplog.Entry, group *oplog.ApplyOps) error {
	if err := c.take(group); err != nil {
		return err
	}
	if group.Prepare {
		if err := c.checkCount(e, group); err != nil {
			return err
		}
	}
	return a.store(c, e.O)
}

// enter registers a chain: in the list by start, and by its session.
func (a *Assembler) enter(c *chain) {
	c.older = a.newest
	if c.older != nil {
		c.older.newer = c
	} else {
		a.oldest = c
	}
	a.newest = c
	if c.hasSession() {
		a.sessions[string(c.lsid)] = append(a.sessions[string(c.lsid)], c)
	}
}

// end unregisters a chain. It keeps its parts.
func (a *Assembler) end(c *chain) {
	delete(a.byLast, c.last.TS)
	if c.ghost {
		return
	}
	if c.prepared {
		a.prepared--
	}
	a.inMemory.remove(c)
	if c.older != nil {
		c.older.newer = c.newer
	} else {
		a.oldest = c.newer
	}
	if c.newer != nil {
		c.newer.older = c.older
	} else {
		a.newest = c.older
	}
	if !c.hasSession() {
		return
	}
	others := slices.DeleteFunc(a.sessions[string(c.lsid)], func(d *chain) bool { return d == c })
	if len(others) == 0 {
		delete(a.sessions, string(c.lsid))
	} else {
		a.sessions[string(c.lsid)] = others
	}
}

// drop ends a chain without effect and returns the number of its parts.
func (a *Assembler) drop(c *chain) (parts int, err error) {
	if err := c.store.release(); err != nil {
		return 0, err
	}
	a.end(c)
	return c.parts, nil
}

// sessionChains returns the open chains of an entry's session.
func (a *Assembler) sessionChains(s *oplog.Session) []*chain {
	if !s.HasTxnNumber || s.LSID == nil {
		return nil
	}
	return a.sessions[string(s.LSID)]
}

// dropAll drops chains and returns the number of their parts. The slice must not be
// the one that sessionChains returned, which dropping modifies.
func (a *Assembler) dropAll(chains []*chain) (parts int, err error) {
	for _, c := range chains {
		n, err := a.drop(c)
		if err != nil {
			return parts, err
		}
		parts += n
	}
	return parts, nil
}
