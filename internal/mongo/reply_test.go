package mongo

import (
	"errors"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	for _, json := range []string{`{"ok": 1}`, `{"ok": {"$numberDouble": "1.0"}, "n": 3}`, `{"ok": true}`} {
		if err := Check(bsongen.FromJSON(t, json)); err != nil {
			t.Errorf("%s: %v", json, err)
		}
	}
	err := Check(bsongen.FromJSON(t, `{"ok": 0, "errmsg": "no", "code": 112, "codeName": "WriteConflict", "errorLabels": ["TransientTransactionError", "x"], "errInfo": {"a": 1}}`))
	e, ok := errors.AsType[*servererr.Error](err)
	if !ok || e.Code != servererr.WriteConflict || e.Message != "no" || strings.Join(e.Labels, " ") != "TransientTransactionError x" || len(e.Info) == 0 {
		t.Errorf("%+v", err)
	}
	err = Check(bsongen.FromJSON(t, `{"ok": 0, "errmsg": "no", "code": 91, "remainingQuiesceTimeMillis": {"$numberLong": "7"}}`))
	if e, ok := errors.AsType[*servererr.Error](err); !ok || e.Info.Lookup("remainingQuiesceTimeMillis").AsInt64() != 7 {
		t.Errorf("a member that shuts down: %+v", err)
	}
	for _, json := range []string{`{}`, `{"ok": 0}`, `{"ok": 0, "code": "x", "errmsg": 1, "errorLabels": [1]}`} {
		if Check(bsongen.FromJSON(t, json)) == nil {
			t.Errorf("%s is a success", json)
		}
	}
}

func TestWriteErrors(t *testing.T) {
	t.Parallel()
	list, err := WriteErrors(bsongen.FromJSON(t, `{"ok": 1, "n": 0, "writeErrors": [{"index": 2, "code": 11000, "errmsg": "dup"}, {"index": {"$numberLong": "5"}, "code": 121, "errmsg": "bad", "errInfo": {}}]}`))
	if err != nil || len(list) != 2 || list[0].Index != 2 || list[0].Code != servererr.DuplicateKey || list[1].Index != 5 || list[1].Message != "bad" {
		t.Errorf("%+v, %v", list, err)
	}
	if list, err := WriteErrors(bsongen.FromJSON(t, `{"ok": 1}`)); len(list) != 0 || err != nil {
		t.Errorf("%v, %v", list, err)
	}
	for _, json := range []string{`{"writeErrors": 1}`, `{"writeErrors": [1]}`, `{"writeErrors": [{"code": 1}]}`} {
		if _, err := WriteErrors(bsongen.FromJSON(t, json)); err == nil {
			t.Errorf("%s was read", json)
		}
	}
}

func TestConcernError(t *testing.T) {
	t.Parallel()
	if e := ConcernError(bsongen.FromJSON(t, `{"ok": 1}`)); e != nil {
		t.Errorf("%v", e)
	}
	e := ConcernError(bsongen.FromJSON(t, `{"ok": 1, "writeConcernError": {"code": 64, "errmsg": "waiting", "errInfo": {"wtimeout": true}}}`))
	if e == nil || e.Code != servererr.WriteConcernTimeout || e.Message != "waiting" || len(e.Info) == 0 {
		t.Errorf("%+v", e)
	}
}

func TestLostError(t *testing.T) {
	t.Parallel()
	inner := errors.New("reset")
	for want, e := range map[string]*LostError{
		"no answer from h:1: reset": {Host: "h:1", Err: inner},
		"no server to ask: reset":   {Err: inner},
		"reset":                     {Host: "h:1", Err: inner, Refused: true},
	} {
		if e.Error() != want || !errors.Is(e, inner) {
			t.Errorf("%v, want %q", e, want)
		}
	}
}

// FuzzReply: no reply, whatever its bytes, makes a reader panic.
func FuzzReply(f *testing.F) {
	f.Add([]byte(bsongen.FromJSON(f, `{"ok": 0, "errmsg": "no", "code": 112, "errorLabels": ["a"], "writeErrors": [{"index": 1}], "writeConcernError": {"code": 64}}`)))
	f.Add([]byte(bsongen.FromJSON(f, `{"writeErrors": [{"index": 1, "errInfo": {}}, 3]}`)))
	f.Fuzz(func(_ *testing.T, data []byte) {
		_ = Check(data)
		_, _ = WriteErrors(data)
		_ = ConcernError(bson.Raw(data))
	})
}
