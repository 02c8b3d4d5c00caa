package mongo

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// recorder is a Caller that records commands, and answers from a list.
type recorder struct {
	t       *testing.T
	sent    []string
	replies []any // bson.Raw or error; none means {ok: 1}
}

func (r *recorder) Call(_ context.Context, cmd Command) (bson.Raw, error) {
	if err := cmd.Body.Validate(); err != nil {
		r.t.Errorf("a body that is no BSON: %v", err)
	}
	// The session's id is the same in all of them.
	text := string(must.Get(bson.MarshalExtJSON(cmd.Body, false, false))(r.t))
	text = strings.Replace(text, `"lsid":{"id":{"$binary":{"base64":"MTIzNDU2Nzg5MDEyMzQ1Ng==","subType":"04"}}},`, "", 1)
	r.sent = append(r.sent, fmt.Sprintf("%s %s %s%d", cmd.DB, text, cmd.Sequence, len(cmd.Docs)))
	if len(r.replies) == 0 {
		return bsongen.FromJSON(r.t, `{"ok": 1}`), nil
	}
	reply := r.replies[0]
	r.replies = r.replies[1:]
	if err, ok := reply.(error); ok {
		return nil, err
	}
	return reply.(bson.Raw), nil
}

func (r *recorder) check(want ...string) {
	r.t.Helper()
	if got := strings.Join(r.sent, "\n"); got != strings.Join(want, "\n") {
		r.t.Errorf("sent\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
	r.sent = nil
}

func session(t *testing.T, first int64) (*Session, *recorder) {
	r := &recorder{t: t}
	id := must.Get(bson.Marshal(bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: []byte("1234567890123456")}}}))(t)
	return NewSession(r, id, first), r
}

func TestWrite(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s, r := session(t, 100)
	cmd := Command{DB: "d", Body: bsongen.FromJSON(t, `{"insert": "c"}`), Sequence: "documents", Docs: []bson.Raw{bsongen.FromJSON(t, `{}`)}}
	if _, err := s.Again(ctx, cmd); err == nil {
		t.Error("repeated what was not written")
	}
	must.Get(s.Write(ctx, cmd))(t)
	must.Get(s.Write(ctx, cmd))(t)
	must.Get(s.Again(ctx, cmd))(t)
	r.check(
		`d {"insert":"c","txnNumber":100} documents1`,
		`d {"insert":"c","txnNumber":101} documents1`,
		`d {"insert":"c","txnNumber":101} documents1`,
	)
	if got := string(must.Get(bson.MarshalExtJSON(cmd.Body, false, false))(t)); got != `{"insert":"c"}` {
		t.Errorf("the command of the caller is %s now", got)
	}
	lost := &LostError{Err: errors.New("x")}
	r.replies = []any{lost}
	if _, err := s.Write(ctx, cmd); !errors.Is(err, lost) {
		t.Errorf("error %v", err)
	}
	must.Get(s.Again(ctx, cmd))(t)
	s.Begin()
	if _, err := s.Again(ctx, cmd); err == nil {
		t.Error("repeated a write under the number of a transaction")
	}
	r.check(`d {"insert":"c","txnNumber":102} documents1`, `d {"insert":"c","txnNumber":102} documents1`)
	if _, err := s.Write(ctx, Command{Body: []byte{1}}); err == nil {
		t.Error("a body of one byte")
	}
}

func TestTxn(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s, r := session(t, 5)
	cmd := Command{DB: "d", Body: bsongen.FromJSON(t, `{"insert": "c"}`)}
	txn := s.Begin()
	if reply, err := txn.Commit(ctx, true); reply != nil || err != nil {
		t.Errorf("commit of nothing: %v, %v", reply, err)
	}
	s.Begin().Abort(ctx)
	txn = s.Begin()
	must.Get(txn.Call(ctx, cmd))(t)
	must.Get(txn.Call(ctx, cmd))(t)
	must.Get(txn.Commit(ctx, false))(t)
	r.check(
		`d {"insert":"c","txnNumber":7,"autocommit":false,"startTransaction":true,"readConcern":{"level":"local"}} 0`,
		`d {"insert":"c","txnNumber":7,"autocommit":false} 0`,
		`admin {"commitTransaction":1,"writeConcern":{"w":1},"txnNumber":7,"autocommit":false} 0`,
	)
	// A read concern of its own is kept.
	own := s.Begin()
	must.Get(own.Call(ctx, Command{DB: "d", Body: bsongen.FromJSON(t, `{"find": "c", "readConcern": {"level": "snapshot"}}`)}))(t)
	own.Abort(ctx)
	r.check(
		`d {"find":"c","readConcern":{"level":"snapshot"},"txnNumber":8,"autocommit":false,"startTransaction":true} 0`,
		`admin {"abortTransaction":1,"txnNumber":8,"autocommit":false} 0`,
	)
	for what, err := range map[string]error{
		"call":   second(txn.Call(ctx, cmd)),
		"commit": second(txn.Commit(ctx, true)),
	} {
		if !errors.Is(err, ErrTxnEnded) {
			t.Errorf("%s after the commit: %v", what, err)
		}
	}

	// After an error, only Abort.
	txn = s.Begin()
	refused := servererr.New(servererr.WriteConflict, "x")
	r.replies = []any{refused}
	if _, err := txn.Call(ctx, cmd); !errors.Is(err, refused) {
		t.Errorf("error %v", err)
	}
	if _, err := txn.Commit(ctx, true); !errors.Is(err, ErrTxnEnded) {
		t.Errorf("commit after an error: %v", err)
	}
	r.replies = []any{refused}
	txn.Abort(ctx)
	txn.Abort(ctx)
	r.check(
		`d {"insert":"c","txnNumber":9,"autocommit":false,"startTransaction":true,"readConcern":{"level":"local"}} 0`,
		`admin {"abortTransaction":1,"txnNumber":9,"autocommit":false} 0`,
	)
}

// TestTxnOutcomes: transactions that another one follows, and commits with an unknown
// outcome.
func TestTxnOutcomes(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s, r := session(t, 5)
	cmd := Command{DB: "d", Body: bsongen.FromJSON(t, `{"insert": "c"}`)}
	// The session has started another one: nothing is sent for the older transaction.
	txn := s.Begin()
	must.Get(txn.Call(ctx, cmd))(t)
	later := s.Begin()
	r.sent = nil
	txn.Abort(ctx)
	if _, err := txn.Call(ctx, cmd); !errors.Is(err, ErrTxnEnded) {
		t.Errorf("call after another Begin: %v", err)
	}
	if _, err := txn.Commit(ctx, true); !errors.Is(err, ErrTxnEnded) {
		t.Errorf("commit after another Begin: %v", err)
	}
	r.check()

	// Commits with an unknown outcome.
	must.Get(later.Call(ctx, cmd))(t)
	r.replies = []any{bsongen.FromJSON(t, `{"ok": 1, "writeConcernError": {"code": 64, "errmsg": "waiting"}}`)}
	_, err := later.Commit(ctx, true)
	e, ok := errors.AsType[*UnconfirmedError](err)
	if !ok || e.Err.Code != servererr.WriteConcernTimeout || !strings.Contains(err.Error(), "outcome is unknown") {
		t.Errorf("a commit that was not confirmed: %v", err)
	}
	txn = s.Begin()
	must.Get(txn.Call(ctx, cmd))(t)
	lost := &LostError{Host: "h", Err: errors.New("x")}
	r.replies = []any{lost}
	if _, err := txn.Commit(ctx, true); !errors.Is(err, lost) {
		t.Errorf("a lost commit: %v", err)
	}
}

func second[V any](_ V, err error) error { return err }

func TestNumbers(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	cmd := Command{DB: "d", Body: bsongen.FromJSON(t, `{"insert": "c"}`)}
	s, r := session(t, 3<<NumberBits|(1<<NumberBits-2))
	must.Get(s.Write(ctx, cmd))(t)
	must.Get(s.Write(ctx, cmd))(t)
	r.sent = nil
	if _, err := s.Write(ctx, cmd); !errors.Is(err, errNumbers) {
		t.Errorf("the number of the next prefix: %v", err)
	}
	txn := s.Begin()
	if _, err := txn.Call(ctx, cmd); !errors.Is(err, errNumbers) {
		t.Errorf("the number of the next prefix: %v", err)
	}
	if _, err := txn.Commit(ctx, true); !errors.Is(err, errNumbers) {
		t.Errorf("commit without a number: %v", err)
	}
	txn.Abort(ctx)
	r.check()
	for _, prefix := range []int64{-1, MaxPrefix + 1} {
		if _, err := FirstNumber(prefix); err == nil {
			t.Errorf("prefix %d has numbers", prefix)
		}
	}
	if n := must.Get(FirstNumber(MaxPrefix))(t); n <= 0 || n|(1<<NumberBits-1) <= 0 {
		t.Errorf("the last prefix begins at %d", n)
	}
}

func TestSessionID(t *testing.T) {
	t.Parallel()
	id := SessionID("a", "b")
	subtype, data := id.Lookup("id").Binary()
	if subtype != 4 || len(data) != 16 || data[6]>>4 != 8 || data[8]>>6 != 2 {
		t.Errorf("not a UUID: %d %x", subtype, data)
	}
	// A restarted, or upgraded, program has the same sessions.
	if got := hex.EncodeToString(data); got != "3c9d591045bc8876b9d0399bbfb05c6a" {
		t.Errorf("id %s", got)
	}
	for _, other := range []bson.Raw{SessionID("ab"), SessionID("a", "b", ""), SessionID("", "ab"), SessionID("b", "a")} {
		if string(other) == string(id) {
			t.Errorf("two sessions have the id %s", id)
		}
	}
}
