package txn

import (
	"errors"
	"fmt"
	"iter"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/oplog"
)

// Kind tells what a Transaction stands for.
type Kind uint8

const (
	// KindTransaction is a transaction of a session. Its operations happened
	// together, and its inserts never meet a document that is there already.
	KindTransaction Kind = iota + 1
	// KindApplyOps is any other group of operations: the applyOps command of a
	// user, or writes that the server logged together.
	KindApplyOps
)

// String returns the kind's name.
func (k Kind) String() string {
	switch k {
	case KindTransaction:
		return "transaction"
	case KindApplyOps:
		return "applyOps"
	}
	return "Kind(" + strconv.Itoa(int(k)) + ")"
}

// Transaction is a group of operations that took effect together. It is to be
// closed when it has been applied.
type Transaction struct {
	// Kind is never zero.
	Kind Kind
	// OpTime is where it took effect: the last entry of its chain, which for a
	// prepared one is the commitTransaction.
	OpTime oplog.OpTime
	// Start is its first entry, the same as OpTime if there is only one.
	Start oplog.OpTime
	// Wall is the primary's clock at OpTime, in milliseconds since the epoch.
	Wall bson.DateTime
	// LSID is the session, nil where there is none. Like the operations it may
	// be a view into the entry at OpTime.
	LSID bson.Raw
	// TxnNumber is the session's transaction, see HasTxnNumber.
	TxnNumber int64
	// HasTxnNumber tells a zero from an absent number.
	HasTxnNumber bool
	// Prepared is set for a transaction that was prepared, then committed.
	Prepared bool
	// CommitTimestamp is as of when a prepared transaction is visible at the
	// source: from its prepare entry's timestamp to OpTime's. It is zero for
	// others.
	CommitTimestamp bson.Timestamp
	// Parts is how many entries its operations came in.
	Parts int
	// Count is how many operations it has, nested ones counted, not what nests
	// them.
	Count int
	// Bytes is what the operations take in the log.
	Bytes int64
	// MustBeProcessedIndividually is set if one of the operations must be; see the
	// method of oplog.Op. All of them are applied one after the other then.
	MustBeProcessedIndividually bool

	flat   flattener
	store  store
	tail   bson.Raw // the o of the last part, where OpTime is its entry
	closed bool
}

// Ops yields the operations in order, each with the transaction's OpTime. A
// nested applyOps is replaced by its operations. Ops can be called any number of
// times, until Close.
//
// An operation is a set of views: into the entry at OpTime, into the memory of
// the transaction, or, read back from a file one part at a time, into memory of
// its own. All of it stays as it is while the operation is in use, provided that
// the caller leaves the entry's bytes alone, and so does the memory that it
// pins: up to the size of an entry, which may be 16 MiB.
//
// An error is the last thing yielded: a [*SpillError], or ErrClosed.
func (t *Transaction) Ops() iter.Seq2[oplog.Op, error] {
	return func(yield func(oplog.Op, error) bool) {
		if t.closed {
			yield(oplog.Op{}, fmt.Errorf("read transaction %s: %w", t.OpTime, ErrClosed))
			return
		}
		part := func(o bson.Raw) bool {
			entry := oplog.Op{OpTime: t.OpTime, Kind: oplog.KindCommand, Command: oplog.CommandApplyOps, O: o}
			return t.flat.entry(&entry, 0, yield)
		}
		more, err := t.store.parts(part)
		switch {
		case err != nil:
			yield(oplog.Op{}, err)
		case more && t.tail != nil:
			part(t.tail)
		}
	}
}

// Close gives back the transaction's memory and files. It is to come after the
// last operation that was taken out of it has been dropped: operations stay valid
// beyond it, but what they pin no longer counts towards Config.MemoryBytes. It
// may be called again.
func (t *Transaction) Close() error {
	t.closed, t.tail = true, nil
	return t.store.release()
}

// maxDepth is how many levels of applyOps inside an applyOps there may be, as
// in the server's validation of the command.
const maxDepth = 10

// flattener turns groups of operations into operations.
type flattener struct {
	kind Kind
	// upsert is set if updates insert where there is no document. The server's
	// applier does so for a group without txnNumber, unless the command said
	// otherwise.
	upsert bool
}

func newFlattener(e *oplog.Entry) flattener {
	kind := KindApplyOps
	if e.InTransaction() && e.HasTxnNumber && e.LSID != nil {
		kind = KindTransaction
	}
	return flattener{kind: kind, upsert: !e.HasTxnNumber}
}

// entry yields the operations of one applyOps until yield returns false, and
// reports whether it did not. An error is the last thing yielded.
func (f flattener) entry(op *oplog.Op, depth int, yield func(oplog.Op, error) bool) bool {
	group, err := op.ApplyOps()
	if err == nil && depth > 0 && (group.Prepare || group.PartialTxn) {
		err = op.Fault("o", fmt.Errorf("%w: a part of a transaction inside another group", oplog.ErrBadField))
	}
	if err != nil {
		yield(oplog.Op{}, err)
		return false
	}
	return f.group(&group, depth, yield)
}

func (f flattener) group(group *oplog.ApplyOps, depth int, yield func(oplog.Op, error) bool) bool {
	n := 0
	for op, err := range group.Ops() {
		if err == nil {
			err = within(f.check(&op, depth), n)
		}
		switch {
		case err != nil:
			yield(oplog.Op{}, err)
			return false
		case op.Command == oplog.CommandApplyOps:
			inner, at := op, n // copies, so that op and n need no allocation where nothing nests
			more := f.entry(&inner, depth+1, func(op oplog.Op, err error) bool {
				return yield(op, within(err, at))
			})
			if !more {
				return false
			}
		default:
			if op.Kind == oplog.KindUpdate && f.upsert && group.AlwaysUpsert {
				op.Upsert = true
			}
			if !yield(op, nil) {
				return false
			}
		}
		n++
	}
	return true
}

// check refuses commands that have no place in a group.
func (f flattener) check(op *oplog.Op, depth int) error {
	switch op.Command {
	case oplog.CommandCommitTransaction, oplog.CommandAbortTransaction:
		return op.Fault("o", fmt.Errorf("%w: a %s inside a group of operations", oplog.ErrBadField, op.Command))
	case oplog.CommandApplyOps:
		if f.kind == KindTransaction {
			return op.Fault("o", fmt.Errorf("%w: an applyOps inside a transaction", oplog.ErrBadField))
		}
		if depth == maxDepth {
			return op.Fault("o", fmt.Errorf("%w: more than %d levels of applyOps", oplog.ErrUnsupported, maxDepth))
		}
	default:
		// Whether the target supports the others is for the applier to decide.
	}
	return nil
}

// within puts the path of operation n before the field of an error.
func within(err error, n int) error {
	if f, ok := errors.AsType[*oplog.EntryError](err); ok {
		return f.Within("o.applyOps." + strconv.Itoa(n))
	}
	return err
}
