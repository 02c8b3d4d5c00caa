package opwrite

import (
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// ErrEnded is returned by calls on a transaction that has been committed,
// aborted or released, or that a rollback has undone.
var ErrEnded = errors.New("opwrite: the transaction has ended")

// Txn is an open multi-document transaction. Its methods may be called only within
// Path.Write.
type Txn struct {
	p       *Path
	session Session
	unit    *storage.Unit
	ops     [][]byte
	// created are the collections that the transaction has made.
	created map[oplog.UUID]bool
	// prepared is the optime of the prepare entry, the zero value before.
	prepared oplog.OpTime
	ended    bool
	// refuse is that of the present command: see Batch.Refuse.
	refuse func(ns oplog.Namespace) error
}

// Refuse sets a function that is called before each write of the commands that follow: see Batch.Refuse.
func (t *Txn) Refuse(refuse func(ns oplog.Namespace) error) { t.refuse = refuse }

// allowed returns the refusal of a write to a namespace.
func (t *Txn) allowed(ns oplog.Namespace) error {
	if t.refuse == nil {
		return nil
	}
	return t.refuse(ns)
}

var _ Ops = (*Txn)(nil)

// Begin starts a transaction that reads the snapshot at the timestamp; zero means
// the newest state. The transaction lives on after Path.Write.
func (b *Batch) Begin(s *Session, at bson.Timestamp) *Txn {
	if at.IsZero() {
		if last, ok := b.w.Oplog().Last(); ok {
			at = last.At.TS
		}
	}
	t := &Txn{p: b.p, session: Session{LSID: clone(s.LSID), TxnNumber: s.TxnNumber}, unit: b.w.Begin(at)}
	t.unit.Keep()
	return t
}

// Adopt makes a transaction out of one that a former primary prepared, as replay
// left it in the store, after this member was elected.
func (p *Path) Adopt(prepared Prepared) *Txn {
	return &Txn{p: p, session: prepared.Session, unit: prepared.Unit, prepared: prepared.At}
}

// Prepared is a prepared transaction that replay holds.
type Prepared struct {
	Session Session
	Unit    *storage.Unit
	At      oplog.OpTime
}

// View shows the snapshot with the transaction's own changes.
func (t *Txn) View() storage.View { return t.unit.View() }

// writable refuses to write to a collection that transactions cannot write to.
func (t *Txn) writable(coll *storage.Collection) error {
	if coll.CappedBytes > 0 {
		return servererr.New(servererr.OperationNotSupportedInTransaction,
			"Collection '%s' is a capped collection. Writes in transactions are not allowed on capped collections.", coll.NS)
	}
	return t.open()
}

// open refuses to change a transaction that has been decided.
func (t *Txn) open() error {
	switch {
	case t.ended || !t.unit.Open():
		return ErrEnded
	case t.prepared != oplog.OpTime{}:
		return servererr.New(servererr.PreparedTransactionInProgress,
			"Cannot call any operation other than abort, prepare or commit on a prepared transaction")
	}
	return nil
}

// Insert stores documents; see Ops. Statements of transactions have no identity.
func (t *Txn) Insert(coll *storage.Collection, docs []bson.Raw, _ []Stmt) (n int, err error) {
	if err := t.writable(coll); err != nil {
		return 0, err
	}
	if err := t.allowed(coll.NS); err != nil {
		return 0, err
	}
	for n, doc := range docs {
		id, err := documentID(doc)
		if err != nil {
			return n, err
		}
		e := entry{op: "i", ns: coll.NS, ui: coll.UUID, o: doc}
		if t.p.format.modern {
			e.o2 = storage.IDDocument(id)
		}
		_, err = t.unit.Insert(coll.UUID, doc)
		if err := t.add(&e, err); err != nil {
			return n, err
		}
	}
	return len(docs), nil
}

// Update replaces a document; see Ops.
func (t *Txn) Update(coll *storage.Collection, old storage.Record, up Update, _ Stmt) error {
	if err := t.writable(coll); err != nil {
		return err
	}
	e, changed, err := t.p.format.updateEntry(coll, old, &up)
	if err != nil || !changed {
		return err
	}
	if err := t.allowed(coll.NS); err != nil {
		return err
	}
	return t.add(e, t.unit.Update(coll.UUID, old.ID, up.Post))
}

// Delete removes a document; see Ops.
func (t *Txn) Delete(coll *storage.Collection, old storage.Record, _ Stmt, _ Image) error {
	if err := t.writable(coll); err != nil {
		return err
	}
	id, err := documentID(old.Doc)
	if err != nil {
		return err
	}
	if err := t.allowed(coll.NS); err != nil {
		return err
	}
	return t.add(&entry{op: "d", ns: coll.NS, ui: coll.UUID, o: storage.IDDocument(id)}, t.unit.Delete(coll.UUID, old.ID))
}

// Create makes a collection; see Ops.
func (t *Txn) Create(ns oplog.Namespace, options, idIndex bson.Raw) (*storage.Collection, error) {
	if err := t.open(); err != nil {
		return nil, err
	}
	if err := t.allowed(ns); err != nil {
		return nil, err
	}
	if err := t.unit.CheckCase(ns.DB()); err != nil {
		return nil, err
	}
	id := t.p.cfg.NewUUID()
	options, idIndex = creation(options, idIndex)
	e := entry{op: "c", ns: commands(ns), ui: id, o: createCommand(ns, options, idIndex)}
	if err := t.add(&e, t.unit.Create(ns, id, options, idIndex)); err != nil {
		return nil, err
	}
	if t.created == nil {
		t.created = map[oplog.UUID]bool{}
	}
	t.created[id] = true
	return find(t.View(), id)
}

// CreateIndexes makes indexes; see Ops. In a transaction the collection has to be
// empty: the server's builds in two phases cannot be part of one.
func (t *Txn) CreateIndexes(coll *storage.Collection, specs []bson.Raw) error {
	if err := t.open(); err != nil {
		return err
	}
	if coll.Len() > 0 && !t.created[coll.UUID] {
		return servererr.New(servererr.OperationNotSupportedInTransaction,
			"Cannot create new indexes on non-empty collection %s in a multi-document transaction.", coll.NS)
	}
	if err := t.allowed(coll.NS); err != nil {
		return err
	}
	for _, spec := range specs {
		spec = clone(spec)
		e := entry{op: "c", ns: commands(coll.NS), ui: coll.UUID, o: createIndexesCommand(coll.NS, spec)}
		if err := t.add(&e, t.unit.AddIndex(coll.UUID, spec, oplog.UUID{})); err != nil {
			return err
		}
	}
	return nil
}

// add keeps an operation for the log, unless it was refused.
func (t *Txn) add(e *entry, refused error) error {
	if refused == nil {
		t.ops = append(t.ops, t.p.format.inner(e))
	}
	return refused
}
