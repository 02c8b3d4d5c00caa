package mongo

import (
	"errors"
	"testing"

	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

func TestReadBatch(t *testing.T) {
	for _, name := range []string{"firstBatch", "nextBatch"} {
		b := must.Get(ReadBatch(bsongen.FromJSON(t, `{"cursor": {"id": {"$numberLong": "7"}, "ns": "a.b.c", "`+name+`": [{"x": 1}, {}]}, "ok": 1}`)))(t)
		if b.Cursor != 7 || b.DB != "a" || b.Collection != "b.c" || len(b.Docs) != 2 || b.Docs[0].String() != `{"x": {"$numberInt":"1"}}` {
			t.Errorf("%s: %+v", name, b)
		}
	}
	for _, reply := range []string{
		`{"ok": 1}`,
		`{"cursor": 1}`,
		`{"cursor": {"id": 7, "ns": "a.b"}}`,
		`{"cursor": {"id": 7, "firstBatch": []}}`,
		`{"cursor": {"ns": "a.b", "firstBatch": []}}`,
		`{"cursor": {"id": 7, "ns": "a.b", "firstBatch": {}}}`,
		`{"cursor": {"id": 7, "ns": "a.b", "nextBatch": [{}, 1]}}`,
	} {
		if b, err := ReadBatch(bsongen.FromJSON(t, reply)); !errors.Is(err, ErrNoBatch) {
			t.Errorf("%s: %+v, %v", reply, b, err)
		}
	}
}
