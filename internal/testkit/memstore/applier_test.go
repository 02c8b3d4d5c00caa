package memstore

import (
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/txn"
)

// session is a transaction of the log, entry by entry.
type session struct {
	*log
	number int64
	last   bson.D
}

func (l *log) begin(number int64) *session {
	return &session{l, number, bson.D{{Key: "ts", Value: bson.Timestamp{}}, {Key: "t", Value: int64(-1)}}}
}

func (s *session) command(o bson.D) *oplog.Entry {
	s.t.Helper()
	e := s.entry("c", "admin.$cmd", oplog.UUID{}, o,
		bson.E{Key: "lsid", Value: bson.D{{Key: "id", Value: uid(int(s.number)).Binary()}}},
		bson.E{Key: "txnNumber", Value: s.number}, bson.E{Key: "prevOpTime", Value: s.last})
	s.last = bson.D{{Key: "ts", Value: e.OpTime.TS}, {Key: "t", Value: e.OpTime.Term}}
	return e
}

func (s *session) ops(ops bson.A, more ...bson.E) *oplog.Entry {
	s.t.Helper()
	return s.command(append(bson.D{{Key: "applyOps", Value: ops}}, more...))
}

func (s *session) commit() *oplog.Entry {
	s.t.Helper()
	return s.command(bson.D{{Key: "commitTransaction", Value: 1}, {Key: "commitTimestamp", Value: s.last[0].Value}})
}

func (s *session) abort() *oplog.Entry {
	s.t.Helper()
	return s.command(bson.D{{Key: "abortTransaction", Value: 1}})
}

var (
	partial = bson.E{Key: "partialTxn", Value: true}
	prepare = bson.E{Key: "prepare", Value: true}
)

func innerInsert(u, id int) bson.D {
	return bson.D{{Key: "op", Value: "i"}, {Key: "ns", Value: "d.c"}, {Key: "ui", Value: uid(u).Binary()}, {Key: "o", Value: bson.D{{Key: "_id", Value: id}}}}
}

// TestTransactions applies what a transaction leaves in the log to an empty
// collection: all at the end, or nothing. The data may be there already, in
// whole or in part, and the collection may be gone.
func TestTransactions(t *testing.T) {
	one, two := bson.A{innerInsert(1, 1)}, bson.A{innerInsert(1, 2)}
	both := []string{`{"_id":1}`, `{"_id":2}`}
	tests := []struct {
		name    string
		entries func(s *session) []*oplog.Entry
		want    []string
	}{
		{"CommitUnpreparedTransaction", func(s *session) []*oplog.Entry {
			return []*oplog.Entry{s.ops(bson.A{innerInsert(1, 1), innerInsert(1, 2)})}
		}, both},
		{"CommitUnpreparedTransactionWithPartialTxnOps", func(s *session) []*oplog.Entry {
			return []*oplog.Entry{s.ops(one, partial), s.ops(two, bson.E{Key: "count", Value: int64(2)})}
		}, both},
		{"SinglePartialTxnOp", func(s *session) []*oplog.Entry { return []*oplog.Entry{s.ops(one, partial)} }, []string{}},
		{"CommitPreparedTransaction", func(s *session) []*oplog.Entry {
			return []*oplog.Entry{s.ops(bson.A{innerInsert(1, 1), innerInsert(1, 2)}, prepare), s.commit()}
		}, both},
		{"PrepareTransactionWithPartialTxnOps", func(s *session) []*oplog.Entry {
			return []*oplog.Entry{s.ops(one, partial), s.ops(two, prepare, bson.E{Key: "count", Value: int64(2)})}
		}, []string{}},
		{"CommitPreparedTransactionWithPartialTxnOps", func(s *session) []*oplog.Entry {
			return []*oplog.Entry{s.ops(one, partial), s.ops(two, prepare, bson.E{Key: "count", Value: int64(2)}), s.commit()}
		}, both},
		{"AbortPreparedTransaction", func(s *session) []*oplog.Entry { return []*oplog.Entry{s.ops(one, prepare), s.abort()} }, []string{}},
		{"AbortInProgressTransaction", func(s *session) []*oplog.Entry { return []*oplog.Entry{s.ops(one, partial), s.abort()} }, []string{}},
		{"EmptyPrepareTransaction", func(s *session) []*oplog.Entry { return []*oplog.Entry{s.ops(bson.A{}, prepare), s.commit()} }, []string{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := &log{t: t}
			create := l.create("d.c", 1)
			entries := tt.entries(l.begin(1))
			for _, mode := range []Mode{Steady, InitialSync} {
				s := New(Config{})
				mustApply(t, s, mode, create)
				mustApply(t, s, mode, entries...)
				wantEqual(t, mode.String(), docs(s, "d.c"), tt.want)
			}
			t.Run("DataPartiallyApplied", func(t *testing.T) {
				s := New(Config{})
				mustApply(t, s, InitialSync, create, l.insert("d.c", 1, bson.D{{Key: "_id", Value: 1}}))
				mustApply(t, s, InitialSync, entries...)
				if len(tt.want) > 0 {
					wantEqual(t, "documents", docs(s, "d.c"), tt.want)
				}
			})
			t.Run("IgnoresNamespaceNotFoundErrors", func(t *testing.T) {
				s := New(Config{})
				mustApply(t, s, InitialSync, entries...)
				wantEqual(t, "names", names(s), []string{})
			})
			t.Run("idempotent", func(t *testing.T) {
				wantIdempotent(t, New(Config{}), append([]*oplog.Entry{create}, entries...)...)
			})
		})
	}
}

func TestTransactionInsertsAreNew(t *testing.T) {
	l := &log{t: t}
	s := New(Config{})
	mustApply(t, s, Steady, l.create("d.c", 1), l.insert("d.c", 1, bson.D{{Key: "_id", Value: 1}}))
	if err := apply(t, s, Steady, l.begin(1).ops(bson.A{innerInsert(1, 1)})); !errors.Is(err, DuplicateKey) {
		t.Errorf("got %v, want DuplicateKey", err)
	}
	if err := apply(t, s, Steady, l.begin(2).ops(bson.A{innerInsert(9, 1)})); !errors.Is(err, NamespaceNotFound) {
		t.Errorf("got %v, want NamespaceNotFound", err)
	}
	// The command applyOps replaces.
	mustApply(t, s, Steady, l.command("admin", 0, bson.D{{Key: "applyOps", Value: bson.A{innerInsert(1, 1)}}}))
}

func TestApplyOpsUpserts(t *testing.T) {
	l := &log{t: t}
	s := New(Config{})
	inner := bson.D{
		{Key: "op", Value: "u"}, {Key: "ns", Value: "d.c"}, {Key: "o2", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "o", Value: setX(1)},
	}
	mustApply(t, s, InitialSync, l.create("d.c", 1), l.command("admin", 0, bson.D{{Key: "applyOps", Value: bson.A{inner}}}))
	wantEqual(t, "documents", docs(s, "d.c"), []string{`{"_id":1,"x":1}`})
}

func TestApplierErrors(t *testing.T) {
	if _, err := NewApplier(New(Config{}), Steady, txn.Config{MemoryBytes: -1}); err == nil {
		t.Error("a bad configuration is accepted")
	}
	l := &log{t: t}
	e := l.begin(1)
	e.last = bson.D{{Key: "ts", Value: bson.Timestamp{T: 1, I: 0}}, {Key: "t", Value: int64(1)}}
	err := apply(t, New(Config{}), Steady, e.commit())
	if _, ok := errors.AsType[*txn.BrokenChainError](err); !ok {
		t.Errorf("got %v, want a BrokenChainError", err)
	}
}
