package opwrite

import (
	"encoding/base64"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// TxnState is the state of the newest transaction of a session as its record in
// config.transactions gives it: "", "prepared", "committed", "aborted", "inProgress".
type TxnState struct {
	TxnNumber int64
	State     string
	LastWrite oplog.OpTime
	// Exists is false if the session has no record.
	Exists bool
}

// SessionRecord reads the record of a session.
func (b *Batch) SessionRecord(lsid bson.Raw) (TxnState, error) {
	r, ok, err := ReadRecord(b.View(), lsid)
	if err != nil || !ok {
		return TxnState{}, err
	}
	return TxnState{TxnNumber: r.TxnNumber, State: r.State, LastWrite: r.LastWrite, Exists: true}, nil
}

// link checks that a session may write under its number, and returns the optime
// that the next entry links to.
func (b *Batch) link(s *Session) (prev oplog.OpTime, err error) {
	if err := b.needCollection(TransactionsNS); err != nil {
		return prev, err
	}
	r, ok, err := ReadRecord(b.View(), s.LSID)
	switch {
	case err != nil:
		return prev, err
	case !ok || r.TxnNumber < s.TxnNumber:
		return nullOpTime, nil
	}
	return r.LastWrite, b.p.current(s, &r)
}

// current refuses a retryable write whose number does not match the record.
func (p *Path) current(s *Session, r *Record) error {
	switch {
	case r.TxnNumber > s.TxnNumber:
		return servererr.New(servererr.TransactionTooOld,
			"Retryable write with txnNumber %d is prohibited on session %s because a newer %s with txnNumber %d has already started on this session.",
			s.TxnNumber, p.sessionName(s.LSID), r.what(), r.TxnNumber)
	case r.State != "":
		return servererr.New(servererr.InvalidOptions,
			"Must specify autocommit=false on all operations of a multi-statement transaction.")
	}
	return nil
}

func (r *Record) what() string {
	if r.State == "" {
		return "retryable write"
	}
	return "transaction"
}

// sessionName is a session's id as the server writes it in messages.
func (p *Path) sessionName(lsid bson.Raw) string {
	var id oplog.UUID
	e, _ := rawbson.Lookup(lsid, "id")
	if _, data, ok := e.Binary(); ok && len(data) == len(id) {
		id = oplog.UUID(data)
	}
	e, _ = rawbson.Lookup(lsid, "uid")
	_, uid, _ := e.Binary()
	return fmt.Sprintf("%s - %s%s", id, base64.StdEncoding.EncodeToString(uid), p.format.sessionTail)
}

// record stores the record of a retryable write, as part of its unit.
func (b *Batch) record(u *storage.Unit, s *Session, at oplog.OpTime) error {
	return WriteRecord(u, s.LSID, &Record{TxnNumber: s.TxnNumber, LastWrite: at, Wall: dateTime(b.wall)})
}

// stmtChain caches the statements of a session's newest retryable write, as a
// walk through the oplog would find them. It is valid while last equals the
// record's, which a rollback or another primary changes.
type stmtChain struct {
	txnNumber int64
	last      oplog.OpTime
	entries   map[int32]oplog.OpTime
	// missing is the optime of an entry that was removed from the oplog.
	missing oplog.OpTime
}

// maxChains bounds how many sessions are remembered.
const maxChains = 4096

// executed records that a statement was written by the entry, if the chain
// before it is known.
func (p *Path) executed(s *Session, prev, at oplog.OpTime, ids ...int32) {
	c := p.chains[string(s.LSID)]
	switch {
	case prev == nullOpTime:
		if len(p.chains) >= maxChains {
			clear(p.chains)
		}
		c = &stmtChain{txnNumber: s.TxnNumber, entries: map[int32]oplog.OpTime{}}
		p.chains[string(s.LSID)] = c
	case c == nil || c.txnNumber != s.TxnNumber || c.last != prev:
		return
	}
	c.last = at
	for _, id := range ids {
		c.entries[id] = at
	}
}

// Executed reports whether a retryable statement has been executed already
// (with its entry, and the image entry if it had one), from the session's record
// and the chain of its entries in the oplog. A TxnNumber older than the record's
// is TransactionTooOld; a chain that the oplog no longer holds is
// IncompleteTransactionHistory. Since 6.0 images are not entries: then image is a
// no-op of the same form, with the optime of the statement's entry.
func (b *Batch) Executed(stmt Stmt) (entry, image storage.OplogEntry, done bool, err error) {
	s := stmt.Session
	r, ok, err := ReadRecord(b.View(), s.LSID)
	if err != nil || !ok || r.TxnNumber < s.TxnNumber {
		return entry, image, false, err
	}
	if err := b.p.current(s, &r); err != nil {
		return entry, image, false, err
	}
	c, err := b.chain(s, &r)
	if err != nil {
		return entry, image, false, err
	}
	at, ok := c.entries[stmt.ID]
	if !ok {
		if !c.missing.IsNull() {
			return entry, image, false, incomplete(c.missing)
		}
		return entry, image, false, nil
	}
	if entry, ok = b.w.Oplog().At(at.TS); !ok {
		return entry, image, false, incomplete(at)
	}
	image, err = b.image(s, &entry)
	return entry, image, err == nil, err
}

func incomplete(at oplog.OpTime) error {
	return servererr.New(servererr.IncompleteTransactionHistory,
		"oplog no longer contains the complete write history of this transaction, log with opTime { ts: Timestamp(%d, %d), t: %d } cannot be found",
		at.TS.T, at.TS.I, at.Term)
}

// chain returns the statements of a session's newest retryable write.
func (b *Batch) chain(s *Session, r *Record) (*stmtChain, error) {
	if c := b.p.chains[string(s.LSID)]; c != nil && c.txnNumber == r.TxnNumber && c.last == r.LastWrite {
		return c, nil
	}
	c := &stmtChain{txnNumber: r.TxnNumber, last: r.LastWrite, entries: map[int32]oplog.OpTime{}}
	for at := r.LastWrite; !at.IsNull(); {
		stored, ok := b.w.Oplog().At(at.TS)
		if !ok || !stored.At.Equal(at) {
			c.missing = at
			break
		}
		e, err := oplog.ParseEntry(stored.Raw)
		if err != nil {
			return nil, fmt.Errorf("opwrite: read the history of a session: %w", err)
		}
		for _, id := range stmtIDs(&e) {
			if _, newer := c.entries[id]; !newer {
				c.entries[id] = at
			}
		}
		s := e.Session()
		if !s.HasPrevOpTime {
			break
		}
		at = s.PrevOpTime
	}
	if len(b.p.chains) >= maxChains {
		clear(b.p.chains)
	}
	b.p.chains[string(s.LSID)] = c
	return c, nil
}

// stmtIDs are the statements that an entry has executed, by itself or by the
// operations in it.
func stmtIDs(e *oplog.Entry) []int32 {
	ids := appendStmtIDs(nil, e.Session().StmtID)
	if e.Command != oplog.CommandApplyOps {
		return ids
	}
	first := rawbson.NewIter(e.O)
	first.Next()
	ops, _ := first.Array()
	for it := rawbson.NewIter(ops); it.Next(); {
		op, _ := it.Document()
		if id, ok := rawbson.Lookup(op, "stmtId"); ok {
			ids = appendStmtIDs(ids, id.Raw())
		}
	}
	return ids
}

func appendStmtIDs(ids []int32, v bson.RawValue) []int32 {
	if id, ok := v.Int32OK(); ok {
		return append(ids, id)
	}
	if v.Type == bson.TypeArray {
		for it := rawbson.NewIter(v.Value); it.Next(); {
			element := it.Raw()
			if id, ok := element.Int32OK(); ok {
				ids = append(ids, id)
			}
		}
	}
	return ids
}
