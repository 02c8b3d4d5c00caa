package bsongen_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
)

func TestDrawsValidBSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		doc := bsongen.Document(t)
		for _, d := range []bson.Raw{
			doc, bsongen.Mutate(t, doc), bsongen.Repeat(t, doc), bsongen.Delta(t), bsongen.BinaryDelta(t),
			bsongen.Made(t, doc), bsongen.MoveID(t, doc), bsongen.IDDelta(t, doc.Lookup("_id")),
		} {
			if err := rawbson.Validate(d); err != nil {
				t.Fatalf("%v: %x", err, []byte(d))
			}
		}
	})
}

func TestMutateKeepsID(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		doc := bsongen.Document(t)
		before, _ := rawbson.Lookup(doc, "_id")
		after, ok := rawbson.Lookup(bsongen.Mutate(t, doc), "_id")
		if !ok || string(after.Value) != string(before.Value) {
			t.Fatalf("_id %x became %x", before.Value, after.Value)
		}
	})
}
