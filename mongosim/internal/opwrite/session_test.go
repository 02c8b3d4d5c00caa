package opwrite_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

var recordedDialect = opwrite.Dialect{Version: "5.0.7"}

func insert(t *testing.T, b *opwrite.Batch, id int32, stmt opwrite.Stmt) error {
	t.Helper()
	coll, _ := b.View().Collection("db.c")
	var stmts []opwrite.Stmt
	if stmt.Session != nil {
		stmts = []opwrite.Stmt{stmt}
	}
	_, err := b.Insert(coll, []bson.Raw{doc(t, bson.D{{Key: "_id", Value: id}})}, stmts)
	return err
}

// TestRetries follows a session through its retryable writes.
func TestRetries(t *testing.T) {
	p, store := newPath(t, recordedDialect)
	create(t, p, "db.c", nil)
	stmt := func(number int64, id int32) opwrite.Stmt {
		return opwrite.Stmt{Session: &opwrite.Session{LSID: lsid(t), TxnNumber: number}, ID: id}
	}
	check(t, p.Write(func(b *opwrite.Batch) error {
		for id := range int32(5) {
			check(t, insert(t, b, id, stmt(7, id)))
		}
		return nil
	}))
	// Another primary knows what this one has promised, from the store alone.
	for _, path := range []*opwrite.Path{p, pathOn(t, store, recordedDialect)} {
		check(t, path.Write(func(b *opwrite.Batch) error {
			for id := range int32(7) {
				entry, _, done, err := b.Executed(stmt(7, id))
				if err != nil || done != (id < 5) {
					t.Errorf("statement %d: executed %v, %v", id, done, err)
				}
				if done && entry.Raw.Lookup("o", "_id").Int32() != id {
					t.Errorf("statement %d: entry %s", id, entry.Raw)
				}
			}
			if _, _, done, err := b.Executed(stmt(8, 0)); done || err != nil {
				t.Errorf("a new number: executed %v, %v", done, err)
			}
			for _, err := range []error{insert(t, b, 99, stmt(6, 0)), executed(b, stmt(6, 0))} {
				refusal(t, err, servererr.TransactionTooOld, "Retryable write with txnNumber 6 is prohibited on session "+
					"00000000-0000-0000-0000-000000000001 - AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA= because a newer "+
					"retryable write with txnNumber 7 has already started on this session.")
			}
			return nil
		}))
	}
}

func executed(b *opwrite.Batch, stmt opwrite.Stmt) error {
	_, _, _, err := b.Executed(stmt)
	return err
}

func refusal(t *testing.T, err error, code servererr.Code, message string) {
	t.Helper()
	r, ok := errors.AsType[*servererr.Error](err)
	if !ok || r.Code != code || r.Message != message {
		t.Errorf("got %v, want %s: %s", err, code, message)
	}
}

// TestForgottenRetries asks for statements that the oplog no longer has.
func TestForgottenRetries(t *testing.T) {
	store := storage.New(storage.Options{OplogBytes: 2000})
	p := pathOn(t, store, recordedDialect)
	create(t, p, "db.c", nil)
	s := &opwrite.Session{LSID: lsid(t), TxnNumber: 1}
	for id := range int32(20) {
		check(t, p.Write(func(b *opwrite.Batch) error { return insert(t, b, id, opwrite.Stmt{Session: s, ID: id}) }))
		check(t, store.Write(func(w *storage.Writer) error {
			last, _ := w.Oplog().Last()
			w.SetStable(last.At.TS)
			return nil
		}))
	}
	check(t, pathOn(t, store, recordedDialect).Write(func(b *opwrite.Batch) error {
		if _, _, done, err := b.Executed(opwrite.Stmt{Session: s, ID: 19}); !done || err != nil {
			t.Errorf("the newest statement: executed %v, %v", done, err)
		}
		err := executed(b, opwrite.Stmt{Session: s, ID: 0})
		r, ok := errors.AsType[*servererr.Error](err)
		if !ok || r.Code != servererr.IncompleteTransactionHistory || !strings.HasPrefix(r.Message, "oplog no longer contains the complete write history of this transaction, log with opTime { ts: Timestamp(7, ") {
			t.Errorf("the oldest statement: %v", err)
		}
		return nil
	}))
}

// TestTransactionStates follows the record of a session through transactions.
func TestTransactionStates(t *testing.T) {
	p, store := newPath(t, recordedDialect)
	create(t, p, "db.c", nil)
	number := int64(0)
	begin := func(b *opwrite.Batch, id int32) *opwrite.Txn {
		number++
		txn := b.Begin(&opwrite.Session{LSID: lsid(t), TxnNumber: number}, bson.Timestamp{})
		coll, _ := txn.View().Collection("db.c")
		_, err := txn.Insert(coll, []bson.Raw{doc(t, bson.D{{Key: "_id", Value: id}})}, nil)
		check(t, err)
		return txn
	}
	state := func(b *opwrite.Batch, want string) {
		t.Helper()
		if got, err := b.SessionRecord(lsid(t)); err != nil || got.State != want || got.TxnNumber != number || !got.Exists {
			t.Errorf("record %+v, %v, want %s", got, err, want)
		}
	}
	check(t, p.Write(func(b *opwrite.Batch) error {
		txn := begin(b, 1)
		at, err := txn.Commit(b)
		check(t, err)
		state(b, opwrite.StateCommitted)
		if at != b.LastOpTime() {
			t.Errorf("committed at %s, the log ends at %s", at, b.LastOpTime())
		}
		if _, err := txn.Commit(b); !errors.Is(err, opwrite.ErrEnded) {
			t.Errorf("committed twice: %v", err)
		}
		refusal(t, executed(b, opwrite.Stmt{Session: &opwrite.Session{LSID: lsid(t), TxnNumber: number}}), servererr.InvalidOptions,
			"Must specify autocommit=false on all operations of a multi-statement transaction.")

		txn = begin(b, 2)
		prepared, err := txn.Prepare(b)
		check(t, err)
		state(b, opwrite.StatePrepared)
		coll, _ := b.View().Collection("db.c")
		if _, ok := coll.Get(doc(t, bson.D{{Key: "_id", Value: int32(2)}}).Lookup("_id")); ok {
			t.Error("a prepared insert is seen")
		}
		if err := insert(t, b, 2, opwrite.Stmt{}); !errors.Is(err, storage.ErrWriteConflict) {
			t.Errorf("an insert of what a prepared transaction inserts: %v", err)
		}
		_, err = txn.CommitPrepared(b, bson.Timestamp{T: 1})
		if r, ok := errors.AsType[*servererr.Error](err); !ok || r.Code != servererr.InvalidOptions {
			t.Errorf("committed before its prepare: %v", err)
		}
		_, err = txn.CommitPrepared(b, prepared.TS)
		check(t, err)
		state(b, opwrite.StateCommitted)

		txn = begin(b, 3)
		_, err = txn.Prepare(b)
		check(t, err)
		check(t, txn.Abort(b))
		state(b, opwrite.StateAborted)
		check(t, txn.Abort(b)) // again: nothing

		before := b.LastOpTime()
		check(t, begin(b, 4).Abort(b))
		number++
		at, err = b.Begin(&opwrite.Session{LSID: lsid(t), TxnNumber: number}, bson.Timestamp{}).Commit(b)
		if err != nil || !at.IsNull() || b.LastOpTime() != before {
			t.Errorf("a transaction without writes: %s, %v, the log ends at %s, not %s", at, err, b.LastOpTime(), before)
		}
		return nil
	}))
	var ids []int32
	check(t, store.Read(func(r *storage.Reader) error {
		coll, _ := r.View(bson.Timestamp{}).Collection("db.c")
		for d := range coll.Natural(0) {
			ids = append(ids, d.Doc.Lookup("_id").Int32())
		}
		return nil
	}))
	if d := cmp.Diff([]int32{1, 2}, slices.Sorted(slices.Values(ids))); d != "" {
		t.Error(d)
	}
}

// TestStepUp ends the unfinished transactions of a former primary.
func TestStepUp(t *testing.T) {
	p, store := newPath(t, opwrite.Dialect{Version: "7.0.1"})
	check(t, p.Write(func(b *opwrite.Batch) error { return b.StepUp() }))
	create(t, p, "db.temporary", doc(t, bson.D{{Key: "temp", Value: true}}))
	// The first part of a chain has come, the others are lost.
	part := oplog.NewOpTime(7, 4, 2)
	check(t, store.Write(func(w *storage.Writer) error {
		u := w.Begin(bson.Timestamp{})
		check(t, opwrite.WriteRecord(u, lsid(t), &opwrite.Record{TxnNumber: 4, LastWrite: part, Start: part, State: opwrite.StateInProgress}))
		u.Commit(part.TS)
		return nil
	}))
	check(t, p.Write(func(b *opwrite.Batch) error {
		check(t, b.StepUp())
		if got, err := b.SessionRecord(lsid(t)); err != nil || got.State != opwrite.StateAborted {
			t.Errorf("record %+v, %v", got, err)
		}
		return nil
	}))
	var what []string
	for _, e := range entries(t, store, 0) {
		e = short(e)
		_, o, _ := strings.Cut(e, `"o":{"`)
		o, _, _ = strings.Cut(o, ",")
		what = append(what, o)
	}
	want := []string{
		`create":"transactions"`, `create":"system.indexBuilds"`, `create":"image_collection"`, `create":"temporary"`,
		`abortTransaction":1}`, `drop":"temporary"}`,
	}
	if d := cmp.Diff(want, what); d != "" {
		t.Error(d)
	}
}

// TestFailedBuild logs the abort of a build whose documents its index refuses.
func TestFailedBuild(t *testing.T) {
	p, store := newPath(t, recordedDialect)
	create(t, p, "db.c", nil)
	check(t, p.Write(func(b *opwrite.Batch) error {
		check(t, insert(t, b, 1, opwrite.Stmt{}))
		check(t, insert(t, b, 2, opwrite.Stmt{}))
		coll, _ := b.View().Collection("db.c")
		err := b.CreateIndexes(coll, []bson.Raw{doc(t, bson.D{
			{Key: "v", Value: int32(2)}, {Key: "unique", Value: true}, {Key: "key", Value: bson.D{{Key: "k", Value: int32(1)}}}, {Key: "name", Value: "k_1"},
		})})
		if !errors.Is(err, servererr.New(servererr.DuplicateKey, "")) {
			t.Errorf("got %v", err)
		}
		if coll, _ = b.View().Collection("db.c"); len(coll.Indexes) != 1 {
			t.Errorf("indexes left: %v", coll.Indexes)
		}
		if builds, _ := b.View().Collection(opwrite.IndexBuildsNS); builds.Len() != 0 {
			t.Errorf("%d builds left", builds.Len())
		}
		return nil
	}))
	log := strings.Join(entries(t, store, 0), "\n")
	for _, want := range []string{`"startIndexBuild":"c"`, `"abortIndexBuild":"c"`, `"cause":{"ok":false,"code":11000,"codeName":"DuplicateKey","errmsg":"E11000 `} {
		if !strings.Contains(log, want) {
			t.Errorf("no %s in %s", want, log)
		}
	}
}

// TestNotPrimary refuses every write, without effect.
func TestNotPrimary(t *testing.T) {
	_, store := newPath(t, recordedDialect)
	refused := servererr.New(servererr.NotWritablePrimary, "not master")
	p, err := opwrite.New(opwrite.Config{
		Store: store, Dialect: recordedDialect, Term: func() (int64, error) { return 0, refused }, Now: time.Now,
		NewUUID: func() oplog.UUID { return oplog.UUID{1} }, OnWrite: func(oplog.OpTime, time.Time) { t.Error("told of a write") },
	})
	check(t, err)
	err = p.Write(func(b *opwrite.Batch) error {
		_, err := b.Create("db.c", nil, nil)
		return err
	})
	if !errors.Is(err, refused) {
		t.Error(err)
	}
	// A member's own database is its own.
	check(t, p.Write(func(b *opwrite.Batch) error {
		_, err := b.Create("local.c", nil, nil)
		return err
	}))
	if got := entries(t, store, 0); len(got) != 0 {
		t.Errorf("logged: %v", got)
	}
}
