package write

import (
	"context"
	"errors"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/command/ddl"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/mongosim/internal/viewdef"
	"github.com/oplogrep/replicator/oplog"
)

const (
	// Chunk is the number of documents written before the lock is released for
	// others.
	Chunk = 500
	// maxErrorTexts is the total size of messages after which the write errors of a
	// reply have none, as in the server.
	maxErrorTexts = 1 << 20
	// unknownStage is the code of a pipeline with a stage that does not exist.
	unknownStage = 40324
)

// writer executes the operations of one write command.
type writer struct {
	t   *tables
	r   *dispatch.Request
	out *dispatch.Reply
	ns  oplog.Namespace

	ordered, bypass bool
	// uuid is the required UUID of the collection, zero for any.
	uuid oplog.UUID
	// stmts are the statement ids, one per operation; nil means that they count
	// from 0.
	stmts []int32
	// session is set if the operations are retryable, and fresh if the txnNumber is
	// new, so that none of them can have been executed before.
	session *opwrite.Session

	n, modified int
	upserted    []upserted
	errors      []writeError
	retried     []int32
	// stopped is true when no more operations are tried.
	stopped bool
	// kind is the kind of the current operation: insert, update, delete or
	// findAndModify.
	kind string
}

type upserted struct {
	index int
	id    bson.RawValue
}

type writeError struct {
	index int
	err   *servererr.Error
}

// tables has the state shared by the write commands of a server.
type tables struct {
	series bucketTable
	checks validatorCache
}

// newWriter reads the arguments that insert, update and delete have in common.
func (t *tables) newWriter(r *dispatch.Request, out *dispatch.Reply, operations int) (*writer, error) {
	ns, err := r.FirstName()
	if err != nil {
		return nil, err
	}
	if operations < 1 || operations > dispatch.MaxBatch {
		return nil, servererr.New(servererr.InvalidLength,
			"Write batch sizes must be between 1 and %d. Got %d operations.", dispatch.MaxBatch, operations)
	}
	if err := checkSystemInTxn(r, ns); err != nil {
		return nil, err
	}
	w := &writer{t: t, r: r, out: out, ns: ns, ordered: true, kind: r.Spec.Name}
	if err := w.parseOptions(operations); err != nil {
		return nil, err
	}
	w.setSession()
	return w, nil
}

func (w *writer) parseOptions(operations int) error {
	r := w.r
	it := rawbson.NewIter(r.Cmd)
	it.Next()
	first := int32(-1)
	for it.Next() {
		switch string(it.Key) {
		case "ordered":
			b, ok := it.Bool()
			if !ok {
				return dispatch.WrongType(r.Spec.StructName, "ordered", it.Type, "bool")
			}
			w.ordered = b
		case "bypassDocumentValidation":
			w.bypass = it.Truth()
		case "stmtId":
			n, ok := it.Int64()
			if !ok {
				return dispatch.WrongType(r.Spec.StructName, "stmtId", it.Type, "int")
			}
			first = int32(n)
		case "stmtIds":
			list, err := statementIDs(r, &it.Elem)
			if err != nil {
				return err
			}
			w.stmts = list
		case "collectionUUID":
			subtype, data, ok := it.Binary()
			if !r.Server.AtLeast(6, 0) {
				return dispatch.UnknownField(r.Spec.StructName, "collectionUUID")
			}
			if !ok || subtype != bson.TypeBinaryUUID || len(data) != len(w.uuid) {
				return dispatch.WrongType(r.Spec.StructName, "collectionUUID", it.Type, "binData")
			}
			w.uuid = oplog.UUID(data)
		case "let", "runtimeConstants":
			if doc, ok := it.Document(); !ok || len(doc) > rawbson.MinSize {
				return servererr.New(servererr.NotImplemented, "the argument %s of %s is not implemented here", it.Name(), r.Name)
			}
		}
	}
	if w.stmts != nil {
		if first >= 0 {
			return servererr.New(servererr.InvalidOptions, "May not specify both stmtId and stmtIds in write command.")
		}
		if len(w.stmts) != operations {
			return servererr.New(servererr.InvalidLength,
				"Number of statement ids must match the number of batch entries. Got %d statement ids but %d operations.",
				len(w.stmts), operations)
		}
	}
	if first >= 0 {
		w.stmts = make([]int32, operations)
		for i := range w.stmts {
			w.stmts[i] = first + int32(i)
		}
	}
	return nil
}

func statementIDs(r *dispatch.Request, e *rawbson.Elem) ([]int32, error) {
	array, ok := e.Array()
	if !ok {
		return nil, dispatch.WrongType(r.Spec.StructName, "stmtIds", e.Type, "array")
	}
	list := []int32{}
	it := rawbson.NewIter(array)
	for it.Next() {
		n, ok := it.Int64()
		if !ok {
			return nil, dispatch.WrongType(r.Spec.StructName, "stmtIds."+it.Name(), it.Type, "int")
		}
		list = append(list, int32(n))
	}
	return list, nil
}

// setSession prepares the session fields that retryable writes log.
func (w *writer) setSession() {
	if w.r.TxnNumber != nil && !w.r.InTxn() {
		w.session = &opwrite.Session{LSID: w.r.LSID.Logged, TxnNumber: *w.r.TxnNumber}
	}
}

// stmt identifies an operation; the zero Stmt outside of retryable writes.
func (w *writer) stmt(index int) opwrite.Stmt {
	if w.session == nil {
		return opwrite.Stmt{}
	}
	id := int32(index)
	if w.stmts != nil {
		id = w.stmts[index]
	}
	return opwrite.Stmt{Session: w.session, ID: id}
}

// section runs fn with the store, on the newest data or the transaction. fn is
// run again after a conflict outside of transactions, so it must continue where
// it was.
func (w *writer) section(ctx context.Context, fn func(ops opwrite.Ops) error) error {
	if w.ns.DB() == "local" {
		return servererr.New(servererr.NotImplemented, "writing to the database local is not implemented here")
	}
	return w.r.Write(ctx, w.out, fn)
}

// failed records an operation's error. It returns the error if it fails the
// whole command.
func (w *writer) failed(index int, err error) error {
	e, ok := errors.AsType[*servererr.Error](err)
	if !ok || ofWholeCommand(e.Code) {
		return err
	}
	if w.r.InTxn() && dispatch.Transient(e.Code, false, false) {
		return err
	}
	w.errors = append(w.errors, writeError{index, e})
	// In a transaction any error is its end.
	if w.ordered || w.r.InTxn() {
		w.stopped = true
	}
	return nil
}

// ofWholeCommand reports whether a code fails a batch as a whole.
func ofWholeCommand(code servererr.Code) bool {
	return dispatch.StateChange(code) || dispatch.Shutdown(code) || slices.Contains([]servererr.Code{
		servererr.MaxTimeMSExpired, servererr.ExceededTimeLimit, servererr.Interrupted, servererr.ClientDisconnect,
		servererr.TransactionTooOld, servererr.IncompleteTransactionHistory, servererr.NoSuchTransaction,
		servererr.InternalError, unknownStage,
	}, code)
}

// collection finds the collection to write to; it is nil if there is none.
func (w *writer) collection(ops opwrite.Ops) (*storage.Collection, error) {
	if err := checkWritable(w.ns); err != nil {
		return nil, err
	}
	if err := checkSystemInTxn(w.r, w.ns); err != nil {
		return nil, err
	}
	v := ops.View()
	coll, ok := v.Collection(w.ns)
	if !w.uuid.IsZero() && (!ok || coll.UUID != w.uuid) {
		return nil, dispatch.UUIDMismatch(v, w.ns, w.uuid)
	}
	if !ok {
		if _, isView, err := viewdef.Lookup(v, w.ns); err != nil {
			return nil, err
		} else if isView {
			return nil, servererr.New(servererr.CommandNotSupportedOnView, "Namespace %s is a view, not a collection", w.ns)
		}
		return nil, nil
	}
	if coll.CappedBytes > 0 && w.r.InTxn() {
		return nil, servererr.New(servererr.OperationNotSupportedInTransaction,
			"Collection '%s' is a capped collection. Writes in transactions are not allowed on capped collections.", w.ns)
	}
	return coll, nil
}

// existing is collection, and makes it if there is none.
func (w *writer) existing(ops opwrite.Ops) (*storage.Collection, error) {
	coll, err := w.collection(ops)
	if coll != nil || err != nil {
		return coll, err
	}
	if err := ddl.CreateCollection(ops, w.ns); err != nil {
		return nil, err
	}
	return w.collection(ops)
}

// checkWritable refuses namespaces that commands must not write to.
func checkWritable(ns oplog.Namespace) error {
	if ns == dispatch.OplogNamespace || ns.Collection() == "system.profile" {
		return servererr.New(servererr.InvalidNamespace, "cannot write to %s", ns)
	}
	return ddl.CheckCreateName(ns)
}

// checkSystemInTxn refuses a transaction's write to a system collection other than
// those of users and roles and, from 8.0 on, the buckets of a time series
// (doTransactionValidationForWrites in transaction_validation.cpp).
func checkSystemInTxn(r *dispatch.Request, ns oplog.Namespace) error {
	switch {
	case !r.InTxn(), !strings.HasPrefix(ns.Collection(), "system."), ns.IsPrivileges():
		return nil
	case ns.IsBuckets() && r.Server.AtLeast(8, 0):
		return nil
	}
	return servererr.New(codeSystemInTxn, "Cannot write to system collection %s within a transaction.", ns)
}

// codeSystemInTxn is a number without a name.
const codeSystemInTxn servererr.Code = 50791

// executed reports whether a retryable statement has already been executed.
func (w *writer) executed(ops opwrite.Ops, stmt opwrite.Stmt) (entry, image storage.OplogEntry, done bool, err error) {
	b, ok := ops.(*opwrite.Batch)
	if !ok || stmt.Session == nil || w.r.Fresh {
		return entry, image, false, nil
	}
	return b.Executed(stmt)
}

// finish ends the command: in a transaction any failed operation aborts it,
// although the reply is not an error.
func (w *writer) finish() {
	if len(w.errors) > 0 && w.r.InTxn() {
		w.r.AbandonTxn()
	}
	if w.ns == "config.transactions" {
		w.r.Server.ForgetSessions()
	}
}

// appendReply appends the fields that the replies of all batches have.
func (w *writer) appendReply(buf []byte) []byte {
	buf = bsoncore.AppendInt32Element(buf, "n", int32(w.n))
	v := &w.r.Self
	buf = bsoncore.AppendObjectIDElement(buf, "electionId", v.ElectionID)
	buf = dispatch.AppendOpTime(buf, "opTime", w.out.Wrote)
	if len(w.errors) > 0 {
		i, b := bsoncore.AppendArrayElementStart(buf, "writeErrors")
		texts := 0
		for n := range w.errors {
			e := w.errors[n]
			if n >= 2 && texts >= maxErrorTexts {
				e.err = &servererr.Error{Code: e.err.Code, Info: e.err.Info}
			}
			texts += len(e.err.Message)
			b = e.append(b, dispatch.ArrayKey(n))
		}
		buf, _ = bsoncore.AppendArrayEnd(b, i)
	}
	if len(w.retried) > 0 && w.r.Server.AtLeast(5, 1) {
		i, b := bsoncore.AppendArrayElementStart(buf, "retriedStmtIds")
		for n, id := range w.retried {
			b = bsoncore.AppendInt32Element(b, dispatch.ArrayKey(n), id)
		}
		buf, _ = bsoncore.AppendArrayEnd(b, i)
	}
	return buf
}

// append appends a write error as an element of an array.
func (e *writeError) append(buf []byte, key string) []byte {
	i, buf := bsoncore.AppendDocumentElementStart(buf, key)
	buf = bsoncore.AppendInt32Element(buf, "index", int32(e.index))
	buf = bsoncore.AppendInt32Element(buf, "code", int32(e.err.Code))
	buf = dispatch.AppendFields(buf, e.err.Info)
	buf = bsoncore.AppendStringElement(buf, "errmsg", e.err.Message)
	buf, _ = bsoncore.AppendDocumentEnd(buf, i)
	return buf
}

// appendUpdateReply appends the fields of update's reply beyond appendReply.
func (w *writer) appendUpdateReply(buf []byte) []byte {
	if len(w.upserted) > 0 {
		i, b := bsoncore.AppendArrayElementStart(buf, "upserted")
		for n, u := range w.upserted {
			j, d := bsoncore.AppendDocumentElementStart(b, dispatch.ArrayKey(n))
			d = bsoncore.AppendInt32Element(d, "index", int32(u.index))
			d = bsoncore.AppendValueElement(d, "_id", bsoncore.Value{Type: bsoncore.Type(u.id.Type), Data: u.id.Value})
			b, _ = bsoncore.AppendDocumentEnd(d, j)
		}
		buf, _ = bsoncore.AppendArrayEnd(b, i)
	}
	return bsoncore.AppendInt32Element(buf, "nModified", int32(w.modified))
}

// each executes operations in order, in sections of the store's lock. one does a
// part of the operations from i on, at most as many documents as are left of the
// budget, and returns how many operations that completed; an error is that of the
// one after them.
func (w *writer) each(ctx context.Context, count int, one func(ops opwrite.Ops, i int, budget *int) (done int, err error)) error {
	next := 0
	for next < count && !w.stopped {
		err := w.section(ctx, func(ops opwrite.Ops) error {
			for budget := Chunk; next < count && budget > 0 && !w.stopped; {
				err, done := w.r.StatementMood(), 0
				if err == nil {
					done, err = one(ops, next, &budget)
				}
				next += done
				if errors.Is(err, storage.ErrWriteConflict) {
					return err
				}
				if err != nil {
					if err := w.failed(next, err); err != nil {
						return err
					}
					next++
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		if err := goesOn(ctx); err != nil && next < count {
			return err
		}
	}
	return nil
}

// goesOn returns the error that ends a write between two sections. A disconnected
// client does not end it, as in the server.
func goesOn(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	if err := dispatch.Interrupted(ctx); !errors.Is(err, dispatch.ErrDisconnected) {
		return err
	}
	return nil
}

// completed is an operation's result for each: it is done unless it failed.
func completed(err error) (int, error) {
	if err != nil {
		return 0, err
	}
	return 1, nil
}
