package mongo

import (
	"context"
	"errors"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// pipe is a recorder that does not wait for replies.
type pipe struct{ *recorder }

func (p pipe) CallAll(ctx context.Context, cmds []Command, each func(int, bson.Raw) error) error {
	var first error
	for i := range cmds {
		reply, err := p.Call(ctx, cmds[i])
		if err == nil && first == nil {
			err = each(i, reply)
		}
		if first == nil {
			first = err
		}
	}
	return first
}

func TestCallAll(t *testing.T) {
	t.Parallel()
	refused := servererr.New(servererr.WriteConflict, "conflict")
	unhappy := errors.New("unhappy")
	const (
		one   = `a {"insert":"c","txnNumber":100,"autocommit":false,"startTransaction":true,"readConcern":{"level":"local"}} documents1`
		two   = `b {"update":"d","txnNumber":100,"autocommit":false} updates2`
		three = `a {"delete":"c","txnNumber":100,"autocommit":false} deletes0`
	)
	for _, tc := range []struct {
		name    string
		replies []any
		unhappy int // number, from 1, of the reply for which each returns an error
		want    error
		asked   []int
		serial  []string // the commands sent if each waits for the previous one
	}{
		{"all", nil, 0, nil, []int{0, 1, 2}, []string{one, two, three}},
		{"the second is refused", []any{bsongen.FromJSON(t, `{"ok": 1}`), refused}, 0, refused, []int{0}, []string{one, two}},
		{"the first is refused", []any{refused}, 0, refused, nil, []string{one}},
		{"a reply is not what it should be", nil, 2, unhappy, []int{0, 1}, []string{one, two}},
	} {
		for _, serial := range []bool{true, false} {
			s, r := session(t, 100)
			r.replies = slices.Clone(tc.replies)
			want := tc.serial
			if !serial {
				s.caller, want = pipe{r}, []string{one, two, three}
			}
			doc := bsongen.FromJSON(t, `{}`)
			cmds := []Command{
				{DB: "a", Body: bsongen.FromJSON(t, `{"insert": "c"}`), Sequence: "documents", Docs: []bson.Raw{doc}},
				{DB: "b", Body: bsongen.FromJSON(t, `{"update": "d"}`), Sequence: "updates", Docs: []bson.Raw{doc, doc}},
				{DB: "a", Body: bsongen.FromJSON(t, `{"delete": "c"}`), Sequence: "deletes"},
			}
			var asked []int
			txn := s.Begin()
			err := txn.CallAll(t.Context(), cmds, func(i int, _ bson.Raw) error {
				asked = append(asked, i)
				if i+1 == tc.unhappy {
					return unhappy
				}
				return nil
			})
			if !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) || !slices.Equal(asked, tc.asked) {
				t.Errorf("%s, serial %v: error %v, replies to %v", tc.name, serial, err, asked)
			}
			r.check(want...)
			_, err = txn.Commit(t.Context(), false)
			if over := errors.Is(err, ErrTxnEnded); over != (tc.want != nil) {
				t.Errorf("%s, serial %v: commit after it: %v", tc.name, serial, err)
			}
			if tc.want == nil {
				r.check(`admin {"commitTransaction":1,"writeConcern":{"w":1},"txnNumber":100,"autocommit":false} 0`)
			}
		}
	}
}

// TestCallAllGoesOn: CallAll can follow a Call, and be followed by one, and returns an error
// once the session has started another transaction.
func TestCallAllGoesOn(t *testing.T) {
	t.Parallel()
	s, r := session(t, 7)
	ctx := t.Context()
	txn := s.Begin()
	must.Get(txn.Call(ctx, Command{DB: "a", Body: bsongen.FromJSON(t, `{"find": "c"}`)}))(t)
	none := func(int, bson.Raw) error { return nil }
	for range 2 {
		if err := txn.CallAll(ctx, []Command{{DB: "a", Body: bsongen.FromJSON(t, `{"insert": "c"}`)}}, none); err != nil {
			t.Fatal(err)
		}
	}
	if err := txn.CallAll(ctx, nil, none); err != nil {
		t.Fatal(err)
	}
	r.check(
		`a {"find":"c","txnNumber":7,"autocommit":false,"startTransaction":true,"readConcern":{"level":"local"}} 0`,
		`a {"insert":"c","txnNumber":7,"autocommit":false} 0`,
		`a {"insert":"c","txnNumber":7,"autocommit":false} 0`,
	)
	s.Begin()
	if err := txn.CallAll(ctx, []Command{{DB: "a", Body: bsongen.FromJSON(t, `{"insert": "c"}`)}}, none); !errors.Is(err, ErrTxnEnded) {
		t.Errorf("after the session went on: %v", err)
	}
	r.check()
}

func TestWritten(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		reply string
		n     int64
		code  servererr.Code
		fails bool
	}{
		{`{"n": 3, "nModified": 2, "ok": 1}`, 3, 0, false},
		{`{"n": {"$numberLong": "4"}, "writeErrors": [], "ok": 1}`, 4, 0, false},
		{`{"ok": 1}`, 0, 0, true},
		{`{"n": "x", "ok": 1}`, 0, 0, true},
		{`{"n": 1, "writeErrors": [{"index": 1, "code": 11000, "errmsg": "dup", "keyValue": {"a": 1}}], "ok": 1}`, 0, servererr.DuplicateKey, true},
		{`{"n": 1, "writeErrors": 1, "ok": 1}`, 0, 0, true},
	} {
		n, err := Written(bsongen.FromJSON(t, tc.reply))
		if (err != nil) != tc.fails || n != tc.n {
			t.Errorf("%s: %d, %v", tc.reply, n, err)
		}
		if e, ok := errors.AsType[*servererr.Error](err); ok != (tc.code != 0) || ok && (e.Code != tc.code || e.Info.Lookup("keyValue", "a").AsInt64() != 1) {
			t.Errorf("%s: %v", tc.reply, err)
		}
	}
}
