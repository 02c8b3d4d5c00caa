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

func TestWritesInsertOnly(t *testing.T) {
	t.Parallel()
	for o, want := range map[string]bool{
		`{"$v": 2, "diff": {"u": {"a": 1, "t": "$5"}}}`:                    false,
		`{"$v": 2, "diff": {"u": {"q": {"$gt": 5}}}}`:                      true,
		`{"$v": 2, "diff": {"sq": {"i": {"$gt": 5}}}}`:                     true,
		`{"$v": 2, "diff": {"sl": {"a": true, "u1": {"$gt": 5}}}}`:         true,
		`{"$v": 2, "diff": {"sr": {"u": {"x": {"$ref": "c", "$id": 1}}}}}`: false,
		`{"$v": 1, "$set": {"a.b": 1}, "$unset": {"c": true}}`:             false,
		`{"$v": 1, "$set": {"a.b": {"$gt": 5}}}`:                           true,
		`{"_id": 1, "a": 1}`:                                               false,
		`{"_id": 1, "q": {"$gt": 5}}`:                                      true,
	} {
		if got := update.WritesInsertOnly(bsongen.FromJSON(t, o)); got != want {
			t.Errorf("%s: %v", o, got)
		}
	}
}
