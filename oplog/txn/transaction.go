package txn

import (
	"errors"
	"fmt"
	"iter"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/oplog"
)

// Kind distinguishes the groups that a Transaction can be.
type Kind uint8

const (
	// KindTransaction is a transaction of a session. Its operations took effect
	// together, and its inserts never find an existing document.
	KindTransaction Kind = iota + 1
	// KindApplyOps is any other group of operations: a client's applyOps command, or
	// writes that the server logged together.
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

// Transaction is a group of operations that took effect together. It must be closed
// when it has been applied.
type Transaction struct {
	// Kind is never zero.
	Kind Kind
	// OpTime is the optime at which it took effect: the last entry of its chain,
	// which is the commitTransaction for a prepared one.
	OpTime oplog.OpTime
	// Start is its first entry, equal to OpTime if there is only one.
	Start oplog.OpTime
	// Wall is the primary's wall clock time at OpTime, in milliseconds since the
	// epoch.
	Wall bson.DateTime
	// LSID is the session, nil if there is none. Like the operations it may be a view
	// into the entry at OpTime.
	LSID bson.Raw
	// TxnNumber is the session's transaction number; see HasTxnNumber.
	TxnNumber int64
	// HasTxnNumber distinguishes a zero from an absent number.
	HasTxnNumber bool
	// Prepared is set for a transaction that was prepared, then committed.
	Prepared bool
	// CommitTimestamp is the timestamp as of which a prepared transaction is visible
	// on the source: between those of its prepare entry and of OpTime, both included.
	// It is zero for others.
	CommitTimestamp bson.Timestamp
	// Parts is the number of entries with its operations.
	Parts int
	// Count is the number of its operations, including nested ones, but not the
	// applyOps that contain them.
	Count int
	// Bytes is the size of the operations in the log.
	Bytes int64
	// MustBeProcessedIndividually is set if it is true of one of the operations; see
	// the method of oplog.Op. All of them are then applied one after the other.
	MustBeProcessedIndividually bool

	flat   flattener
	store  store
	tail   bson.Raw // the o of the last part, where OpTime is its entry
	closed bool
}

// Ops yields the operations in order, each with the transaction's OpTime. A nested
// applyOps is replaced by its operations. Ops may be called any number of times
// before Close.
//
// An operation is a set of views into the entry at OpTime, into the transaction's
// memory, or, if read back from a file one part at a time, into newly allocated
// memory. It stays valid as long as the caller does not modify the entry's bytes,
// and pins the memory that it refers to: up to the size of an entry, 16 MiB.
//
// An error is yielded last: a [*SpillError], or ErrClosed.
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

// Close frees the transaction's memory and files. Call it after the last use of its
// operations: they stay valid beyond it, but the memory that they pin no longer
// counts towards Config.MemoryBytes. It is idempotent.
func (t *Transaction) Close() error {
	t.closed, t.tail = true, nil
	return t.store.release()
}

// maxDepth is the maximum nesting of applyOps inside an applyOps, as in the
// server's validation of the command.
const maxDepth = 10

// flattener yields the operations of groups, including nested ones.
type flattener struct {
	kind Kind
	// upsert is set if updates insert when the document is missing. The server's
	// applier does so for a group without txnNumber, unless the command says
	// otherwise.
	upsert bool
}

func newFlattener(e *oplog.Entry) flattener {
	kind := KindApplyOps
	if e.InTransaction() && e.HasSession() {
		kind = KindTransaction
	}
	return flattener{kind: kind, upsert: !e.HasTxnNumber()}
}

// entry yields the operations of one applyOps, and reports whether to continue:
// false once yield has returned false. An error is yielded last.
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
			inner, at := op, n // copies, so that op and n are not heap-allocated unless something nests
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

// check refuses commands that must not be in a group.
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
		// The applier decides whether the target supports the others.
	}
	return nil
}

// within prepends the path of operation n to the field of an error.
func within(err error, n int) error {
	if f, ok := errors.AsType[*oplog.EntryError](err); ok {
		return f.Within("o.applyOps." + strconv.Itoa(n))
	}
	return err
}
