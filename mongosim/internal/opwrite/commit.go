package opwrite

import (
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// Commit logs and commits a transaction, in one entry or a chain. One without
// changes logs nothing and returns the null optime. A refused commit leaves the
// transaction open.
func (t *Txn) Commit(b *Batch) (oplog.OpTime, error) {
	if err := t.open(); err != nil {
		return oplog.OpTime{}, err
	}
	if len(t.ops) == 0 {
		t.end().Abort()
		return oplog.OpTime{}, nil
	}
	if err := t.begin(b); err != nil {
		return oplog.OpTime{}, err
	}
	groups := pack(t.ops, b.p.cfg.MaxApplyOpsBytes)
	// The server reserves a timestamp for each operation, however few entries
	// they need.
	first, err := b.reserve(len(t.ops))
	if err != nil {
		return oplog.OpTime{}, err
	}
	at := slot(first, len(groups)-1)
	record := Record{State: StateCommitted}
	if err := t.logChain(b, groups, first, at, &record, nil, func() { t.end().Commit(at.TS) }); err != nil {
		return oplog.OpTime{}, err
	}
	if len(groups) > 1 {
		// A crash may take back the end of the chain only, and a member that applies that end
		// again needs the beginning.
		b.w.HoldOplog(first.TS)
		b.w.ReleaseOplog(first.TS, at.TS)
	}
	return at, nil
}

// Prepare logs the prepare entry and returns its optime.
func (t *Txn) Prepare(b *Batch) (oplog.OpTime, error) {
	if t.prepared != (oplog.OpTime{}) && !t.ended && t.unit.Open() {
		return t.prepared, nil
	}
	if err := t.open(); err != nil {
		return oplog.OpTime{}, err
	}
	if err := t.begin(b); err != nil {
		return oplog.OpTime{}, err
	}
	groups := pack(t.ops, b.p.cfg.MaxApplyOpsBytes)
	slots := max(1, len(t.ops))
	first, err := b.reserve(slots)
	if err != nil {
		return oplog.OpTime{}, err
	}
	at := slot(first, slots-1)
	record := Record{State: StatePrepared, Start: at}
	if len(groups) > 1 {
		record.Start = first
	}
	prepare := func(dst []byte) []byte { return bsoncore.AppendBooleanElement(dst, "prepare", true) }
	if err := t.logChain(b, groups, first, at, &record, prepare, func() {
		t.unit.Prepare(at.TS)
		b.w.HoldOplog(record.Start.TS)
	}); err != nil {
		return oplog.OpTime{}, err
	}
	t.prepared = at
	t.ops = nil
	return at, nil
}

// begin refuses to log a transaction whose session has moved on.
func (t *Txn) begin(b *Batch) error {
	if err := b.needCollection(TransactionsNS); err != nil {
		return err
	}
	r, ok, err := ReadRecord(b.View(), t.session.LSID)
	switch {
	case err != nil:
		return err
	case ok && r.TxnNumber > t.session.TxnNumber:
		return servererr.New(servererr.TransactionTooOld,
			"Cannot start transaction with { txnNumber: %d } on session %s because a newer %s with txnNumber { txnNumber: %d } has already started on this session.",
			t.session.TxnNumber, b.p.sessionName(t.session.LSID), r.what(), r.TxnNumber)
	case ok && r.TxnNumber == t.session.TxnNumber:
		return servererr.New(servererr.ConflictingOperationInProgress,
			"Cannot start transaction %d on session %s because a %s with the same number has already been logged",
			t.session.TxnNumber, b.p.sessionName(t.session.LSID), r.what())
	}
	return nil
}

// logChain logs the entries of a transaction: all but the last at the timestamps
// from first on, the last one at at, where last makes it take effect. The session's
// record changes with the first and the last.
func (t *Txn) logChain(b *Batch, groups [][][]byte, first, at oplog.OpTime, final *Record, tail func([]byte) []byte, last func()) error {
	final.TxnNumber, final.LastWrite, final.Wall = t.session.TxnNumber, at, dateTime(b.wall)
	// The records are written by units of their own: the transaction's snapshot may
	// be older than the record that they replace.
	side, err := t.recordUnit(b, final)
	if err != nil {
		return err
	}
	e := entry{op: "c", ns: adminCommands, session: &t.session, prev: nullOpTime}
	for n, ops := range groups[:len(groups)-1] {
		part := slot(first, n)
		if n == 0 {
			side.Abort()
			start := Record{
				TxnNumber: t.session.TxnNumber, LastWrite: part, Wall: final.Wall, Start: part, State: StateInProgress,
			}
			unit, err := t.recordUnit(b, &start)
			if err != nil {
				return err
			}
			unit.Commit(part.TS)
		}
		e.o = applyOpsDocument(ops, func(dst []byte) []byte { return bsoncore.AppendBooleanElement(dst, "partialTxn", true) })
		b.log(&e, part)
		e.prev = part
	}
	if len(groups) > 1 {
		if side, err = t.recordUnit(b, final); err != nil {
			return err
		}
	}
	e.o = applyOpsDocument(groups[len(groups)-1], func(dst []byte) []byte {
		if tail != nil {
			dst = tail(dst)
		}
		if len(groups) > 1 {
			dst = bsoncore.AppendInt64Element(dst, "count", int64(len(t.ops)))
		}
		return dst
	})
	last()
	side.Commit(at.TS)
	b.log(&e, at)
	return nil
}

func (t *Txn) recordUnit(b *Batch, r *Record) (*storage.Unit, error) {
	u := b.w.Begin(bson.Timestamp{})
	if err := WriteRecord(u, t.session.LSID, r); err != nil {
		u.Abort()
		return nil, err
	}
	return u, nil
}

// maxAheadSeconds is how far ahead of the clock the timestamps of entries may be
// pushed: as far as the server lets a cluster time be, in seconds.
const maxAheadSeconds = 365 * 24 * 60 * 60

// CommitPrepared logs commitTransaction with the commit timestamp. The changes
// are seen from the commit timestamp on; the optime is that of the entry.
func (t *Txn) CommitPrepared(b *Batch, at bson.Timestamp) (oplog.OpTime, error) {
	switch {
	case t.ended || !t.unit.Open():
		return oplog.OpTime{}, ErrEnded
	case t.prepared == oplog.OpTime{}:
		return oplog.OpTime{}, servererr.New(servererr.InvalidOptions,
			"commitTransaction cannot provide commitTimestamp to unprepared transaction.")
	case int64(at.T) > b.p.cfg.Now().Unix()+maxAheadSeconds:
		return oplog.OpTime{}, servererr.New(servererr.InvalidOptions,
			"'commitTimestamp' Timestamp(%d, %d) is too far from this node's wall clock time", at.T, at.I)
	case oplog.CompareTimestamps(at, t.prepared.TS) < 0:
		return oplog.OpTime{}, servererr.New(servererr.InvalidOptions,
			"'commitTimestamp' Timestamp(%d, %d) must be greater than or equal to 'prepareTimestamp' Timestamp(%d, %d)",
			at.T, at.I, t.prepared.TS.T, t.prepared.TS.I)
	}
	start, o := bsoncore.AppendDocumentStart(nil)
	o = bsoncore.AppendInt32Element(o, "commitTransaction", 1)
	o = bsoncore.AppendTimestampElement(o, "commitTimestamp", at.T, at.I)
	o, _ = bsoncore.AppendDocumentEnd(o, start)
	b.p.advance(at)
	return b.endTransaction(&t.session, o, t.prepared, StateCommitted, func(ts bson.Timestamp) { t.end().CommitAt(at, ts) })
}

// Abort drops the transaction; a prepared one logs abortTransaction.
func (t *Txn) Abort(b *Batch) error {
	switch {
	case t.ended || !t.unit.Open():
		t.ended = true
		return nil
	case t.prepared == oplog.OpTime{}:
		t.end().Abort()
		return nil
	}
	_, err := b.endTransaction(&t.session, abortCommand(), t.prepared, StateAborted, func(bson.Timestamp) { t.end().Abort() })
	return err
}

// Release drops the transaction and logs nothing: for a primary that steps down.
// A prepared one is read from the oplog again, by the member's own replay and by
// every other member's, and the next primary decides it.
func (t *Txn) Release(*Batch) {
	if !t.ended && t.unit.Open() {
		t.unit.Abort()
	}
	t.end()
}

// end marks the transaction as ended and returns its unit.
func (t *Txn) end() *storage.Unit {
	t.ended = true
	t.ops = nil
	return t.unit
}

func abortCommand() bson.Raw {
	start, o := bsoncore.AppendDocumentStart(nil)
	o = bsoncore.AppendInt32Element(o, "abortTransaction", 1)
	o, _ = bsoncore.AppendDocumentEnd(o, start)
	return o
}

// endTransaction logs the decision about a transaction whose entries end at prev,
// and makes it take effect.
func (b *Batch) endTransaction(s *Session, o bson.Raw, prev oplog.OpTime, state string, effect func(ts bson.Timestamp)) (oplog.OpTime, error) {
	at, err := b.reserve(1)
	if err != nil {
		return oplog.OpTime{}, err
	}
	before, _, err := ReadRecord(b.View(), s.LSID)
	if err != nil {
		return oplog.OpTime{}, err
	}
	u := b.w.Begin(bson.Timestamp{})
	r := Record{TxnNumber: s.TxnNumber, LastWrite: at, Wall: dateTime(b.wall), State: state}
	if err := WriteRecord(u, s.LSID, &r); err != nil {
		u.Abort()
		return oplog.OpTime{}, err
	}
	if effect != nil {
		effect(at.TS)
	}
	u.Commit(at.TS)
	b.log(&entry{op: "c", ns: adminCommands, o: o, session: s, prev: prev}, at)
	b.w.ReleaseOplog(before.Start.TS, at.TS)
	return at, nil
}
