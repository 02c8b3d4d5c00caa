package update_test

import (
	"testing"

	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/oplog/update"
)

func TestIsInsertOnly(t *testing.T) {
	t.Parallel()
	for doc, want := range map[string]bool{
		`{"_id": 1, "price": "$5"}`:                   false,
		`{"_id": 1, "q": {"$gt": 5}}`:                 true,
		`{"_id": 1, "a": [{"b": {"c": 1, "$d": 1}}]}`: true,
		`{"_id": 1, "r": {"$ref": "c", "$id": 1}}`:    false,
		`{"_id": 1, "r": [{"$ref": "c", "$id": {"$oid": "0123456789abcdef01234567"}, "$db": "d", "x": 1}]}`: false,
		`{"_id": 1, "r": {"$ref": "c", "$id": 1, "x": 1, "$db": "d"}}`:                                      true,
		`{"_id": 1, "r": {"$ref": "c", "$id": 1, "$db": 5}}`:                                                true,
		`{"_id": 1, "r": {"$ref": "c", "$id": {"$x": 1}}}`:                                                  true,
		`{"_id": 1, "r": {"$ref": "c"}}`:                                                                    true,
		`{"_id": 1, "r": {"$id": 1, "$ref": "c"}}`:                                                          true,
	} {
		if got := update.IsInsertOnly(bsongen.FromJSON(t, doc)); got != want {
			t.Errorf("%s: %v", doc, got)
		}
	}
}
