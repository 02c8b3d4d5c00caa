package lease

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"go.uber.org/goleak"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// store is a set with documents that have a lease and documents that are fenced.
type store struct {
	t *testing.T
	mongo.Caller
	// before, if not nil, is called once, before the next update is sent.
	mu     sync.Mutex
	before func()
}

func (s *store) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	s.mu.Lock()
	before := s.before
	if cmd.Sequence == "updates" {
		s.before = nil
	} else {
		before = nil
	}
	s.mu.Unlock()
	if before != nil {
		before()
	}
	return s.Caller.Call(ctx, cmd)
}

// newStore starts a set with the document "a" in term 0, and the document "a/0".
func newStore(t *testing.T) *store {
	t.Helper()
	sim := mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1, Moods: mongosim.GentleMoods("nothing here begins another attempt")})
	set := client.Open(t, driver.Config{URI: sim.URI()})
	s := &store{t: t, Caller: set}
	s.write("insert", "documents", metadata.Document(func(dst []byte) []byte {
		r := Record{Instance: "1"}
		return r.Append(metadata.ByID("a")(dst))
	}))
	s.write("insert", "documents", metadata.Document(func(dst []byte) []byte {
		return bsoncore.AppendInt64Element(metadata.ByID("a/0")(dst), "term", 0)
	}))
	return s
}

func (s *store) write(name, sequence string, doc bson.Raw) {
	s.t.Helper()
	must.Get(s.Caller.Call(s.t.Context(), metadata.Majority(metadata.Write("db", name, "c", sequence, doc))))(s.t)
}

// set changes fields of the document a.
func (s *store) set(fields func(dst []byte) []byte) {
	s.t.Helper()
	update := metadata.Statement{
		Filter: metadata.ByID("a"),
		Change: func(dst []byte) []byte { return metadata.AppendDoc(dst, "$set", fields) },
	}
	s.write("update", "updates", update.Doc())
}

func (s *store) config(holder string) Config {
	return Config{Target: s, Retry: mongo.Retry{Again: mongo.Passes}, DB: "db", Collection: "c", ID: "a", Holder: holder}
}

// record reads the record in the document.
func (s *store) record() Record {
	s.t.Helper()
	doc := must.Get(metadata.FindOne(s.t.Context(), s, "db", "c", metadata.ByID("a")))(s.t)
	r := metadata.NewReader(doc)
	record := ReadRecord(r)
	must.Succeed(s.t, r.Err())
	return record
}

// acquire acquires the lease for a process that has had no term.
func (s *store) acquire(holder string) *Lease {
	s.t.Helper()
	l, _, err := Acquire(s.t.Context(), s.config(holder), s.record(), 0)
	must.Succeed(s.t, err)
	return l
}

func same(dst []byte) []byte { return dst }

// move updates the document in a transaction of the lease.
func move(ctx context.Context, l *Lease, session *mongo.Session) error {
	return l.InTxn(ctx, session, func(txn *mongo.Txn) error {
		_, err := l.Update(ctx, txn, same, same)
		return err
	})
}

// TestFences: once another process has acquired the lease, nothing of the older term
// succeeds: by number on the sessions, and by term on sessions that the server does not
// know.
func TestFences(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := newStore(t)
	old := s.acquire("old")
	lane := old.Session("a/0")
	must.Succeed(t, old.Fence(ctx, lane, "c", "a/0"))
	must.Succeed(t, move(ctx, old, old.Own()))
	must.Succeed(t, old.Check(ctx))
	open := old.Own().Begin()
	if _, err := old.Update(ctx, open, same, same); err != nil {
		t.Fatal(err)
	}

	next := s.acquire("next")
	if now := s.record(); next.Term() != 2 || now.Term != 2 || now.Holder != "next" || now.Instance != "1" {
		t.Errorf("term %d, record %+v", next.Term(), s.record())
	}
	if _, err := open.Commit(ctx, true); !servererr.IsOldNumber(err) {
		t.Errorf("late commit: %v", err)
	}
	must.Fail(t, move(ctx, old, old.Own()), ErrFenced)
	forgotten := mongo.NewSession(s, mongo.SessionID("forgotten"), 1)
	err := move(ctx, old, forgotten)
	must.Fail(t, err, ErrFenced)
	if servererr.IsOldNumber(err) || !strings.Contains(err.Error(), "term 2") {
		t.Errorf("the document does not fence: %v", err)
	}
	must.Fail(t, old.Check(ctx), ErrFenced)
	must.Succeed(t, next.Fence(ctx, next.Session("a/0"), "c", "a/0"))
	if _, err := lane.Write(ctx, metadata.Write("db", "insert", "c", "documents", metadata.Document(metadata.ByID("late")))); !servererr.IsOldNumber(err) {
		t.Errorf("late write on a fenced session: %v", err)
	}
	must.Fail(t, old.Fence(ctx, mongo.NewSession(s, mongo.SessionID("other"), 1), "c", "a/0"), ErrFenced)
	must.Succeed(t, move(ctx, next, next.Own()))
	must.Succeed(t, next.Touch(ctx))
}

// TestOneNumberTwoProcesses: two processes that raise the term under the same number both
// get a successful reply, and only one of them has the lease.
func TestOneNumberTwoProcesses(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	found := s.record()
	s.before = func() { s.acquire("quick") }
	_, _, err := Acquire(t.Context(), s.config("slow"), found, 0)
	must.Fail(t, err, ErrFenced)
	if got := s.record(); got.Holder != "quick" || got.Term != 1 {
		t.Errorf("%+v", got)
	}
}

// TestSeenNumber: a term whose number a server has seen, but which the document does
// not have, is skipped.
func TestSeenNumber(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	l := s.acquire("us")
	seen := mongo.NewSession(s, l.Own().ID(), (l.Term()+1)<<mongo.NumberBits+5)
	must.Get(seen.Write(t.Context(), metadata.Write("db", "insert", "c", "documents", metadata.Document(metadata.ByID("seen")))))(t)
	if l = s.acquire("us"); l.Term() != 3 {
		t.Errorf("term %d", l.Term())
	}
	must.Succeed(t, move(t.Context(), l, l.Own()))
}

// TestAfter: a process that has had a term notices a newer one of another process, can
// acquire the lease again after its own, and goes on above a term that was lost.
func TestAfter(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := newStore(t)
	s.acquire("us")
	own := s.acquire("us")
	again, _, err := Acquire(ctx, s.config("us"), s.record(), 1)
	must.Succeed(t, err)
	if own.Term() != 2 || again.Term() != 3 {
		t.Errorf("terms %d and %d", own.Term(), again.Term())
	}
	beyond, _, err := Acquire(ctx, s.config("us"), s.record(), 6)
	must.Succeed(t, err)
	if beyond.Term() != 7 {
		t.Errorf("term %d after a lost one, 6", beyond.Term())
	}
	s.acquire("them")
	_, _, err = Acquire(ctx, s.config("us"), s.record(), 7)
	must.Fail(t, err, ErrFenced)
}

// TestAbove: where a lock in another store decides which process leads, each term is above its token and above all
// terms before, also when that store was restored and begins again; the leader before is refused.
func TestAbove(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := newStore(t)
	var before *Lease
	for _, tt := range []struct{ token, want int64 }{{5, 6}, {6, 7}, {40, 41}, {1, 42}, {43, 44}} {
		cfg := s.config("us")
		cfg.Above = tt.token
		l, _, err := Acquire(ctx, cfg, s.record(), 0)
		must.Succeed(t, err)
		if l.Term() != tt.want || s.record().Term != tt.want {
			t.Errorf("term %d, in the document %d, above token %d: want %d", l.Term(), s.record().Term, tt.token, tt.want)
		}
		must.Succeed(t, move(ctx, l, l.Session("lane")))
		if before != nil {
			must.Fail(t, move(ctx, before, before.Session("lane")), ErrFenced)
		}
		before = l
	}
}

// TestRewound: a document with an older term, or none, is ErrRewound and not ErrFenced.
func TestRewound(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := newStore(t)
	s.acquire("us")
	l := s.acquire("us")
	s.set(func(dst []byte) []byte { return bsoncore.AppendInt64Element(dst, "term", 1) })
	must.Fail(t, l.Check(ctx), ErrRewound)
	must.Fail(t, move(ctx, l, l.Own()), ErrRewound)
	s.write("delete", "deletes", metadata.Document(func(dst []byte) []byte {
		return bsoncore.AppendInt32Element(metadata.AppendDoc(dst, "q", metadata.ByID("a")), "limit", 1)
	}))
	must.Fail(t, l.Check(ctx), ErrRewound)
	must.Fail(t, move(ctx, l, l.Own()), ErrRewound)
}

// TestUpdateWhere: Update returns a document that has the lease's term and does not match
// where.
func TestUpdateWhere(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := newStore(t)
	l := s.acquire("us")
	where := func(dst []byte) []byte { return bsoncore.AppendInt64Element(dst, "progress", 7) }
	for _, there := range []bool{false, true} {
		if there {
			s.set(where)
		}
		must.Succeed(t, l.InTxn(ctx, l.Own(), func(txn *mongo.Txn) error {
			doc, err := l.Update(ctx, txn, where, same)
			if (doc == nil) != there {
				t.Errorf("there: %t, the document that does not match: %s", there, doc)
			}
			return err
		}))
	}
}

// TestLock: one goroutine at a time has the session of the document, none whose context is
// done, and none once the lease is spent.
func TestLock(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	l := s.acquire("us")
	unlock, err := l.Lock(t.Context())
	must.Succeed(t, err)
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = l.Lock(short)
	must.Fail(t, err, context.DeadlineExceeded)
	unlock()
	for range 20 {
		_, err = l.Lock(short)
		must.Fail(t, err, context.DeadlineExceeded)
	}
	unlock, err = l.Lock(t.Context())
	must.Succeed(t, err)
	l.Spend()
	unlock()
	for range 2 {
		_, err = l.Lock(t.Context())
		must.Fail(t, err, ErrSpent)
	}
}

// TestLastTerm: Acquire fails after the last term that fits into transaction numbers.
func TestLastTerm(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.set(func(dst []byte) []byte { return bsoncore.AppendInt64Element(dst, "term", mongo.MaxPrefix) })
	if _, _, err := Acquire(t.Context(), s.config("us"), s.record(), 0); err == nil || !strings.Contains(err.Error(), "not between 0 and") {
		t.Errorf("error %v", err)
	}
	s.set(func(dst []byte) []byte { return bsoncore.AppendInt64Element(dst, "holder", 5) })
	_, _, err := Acquire(t.Context(), s.config("us"), Record{Term: mongo.MaxPrefix - 1, Instance: "1"}, 0)
	if _, ok := errors.AsType[*metadata.DamagedError](err); !ok {
		t.Errorf("error %v", err)
	}
}
