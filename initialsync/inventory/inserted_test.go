package inventory_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/initialsync/inventory"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// insertLog is the whole oplog of a set, with its documents.
type insertLog struct{ setLog }

// Inserts implements inventory.InsertLog.
func (l *insertLog) Inserts(ctx context.Context, after oplog.OpTime, until bson.Timestamp, yield func(*oplog.Entry) error) error {
	return l.read(ctx, after, until, func(e *oplog.Entry) error {
		if e.Kind != oplog.KindInsert && e.Kind != oplog.KindCommand {
			return nil
		}
		return yield(e)
	})
}

// TestInserted: of a collection, the documents count that the oplog inserts after the beginning, also within
// transactions. It begins earlier where a transaction is open: the documents inserted before are copied, and not
// inserted by the oplog again.
func TestInserted(t *testing.T) {
	t.Parallel()
	s := start(t, mongosim.Options{Seed: 1, Moods: mongosim.NoMoods("its writes are in the oplog once")})
	log := &insertLog{setLog{server: s}}
	uuidOf := func(name string) (id oplog.UUID) {
		reply := s.must(t, "db", fmt.Sprintf(`{"listCollections": 1, "filter": {"name": %q}}`, name))
		_, data := reply.Lookup("cursor", "firstBatch", "0", "info", "uuid").Binary()
		copy(id[:], data)
		return id
	}
	s.must(t, "db", `{"create": "c", "capped": true, "size": 4096}`)
	s.must(t, "db", `{"create": "other"}`)
	c := uuidOf("c")
	s.must(t, "db", `{"insert": "c", "documents": [{"_id": 1}]}`)
	begin := s.now(t)
	s.must(t, "db", `{"insert": "c", "documents": [{"_id": 2}]}`)
	s.must(t, "db", `{"insert": "other", "documents": [{"_id": 3}]}`)
	s.must(t, "db", `{"applyOps": [{"op": "i", "ns": "db.c", "o": {"_id": 4}, "ui": {"$binary": {"base64": "`+base64.StdEncoding.EncodeToString(c[:])+`", "subType": "04"}}}]}`)
	inserted := must.Get(inventory.Inserted(t.Context(), s, log, begin, []oplog.UUID{c}))(t)
	for id, want := range map[int32]bool{1: false, 2: true, 3: false, 4: true} {
		value := must.Marshal(t, bson.D{{Key: "_id", Value: id}}).Lookup("_id")
		if has := inserted[c].Has(value); has != want {
			t.Errorf("_id %d: %t", id, has)
		}
	}
}
