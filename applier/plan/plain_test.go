package plan

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestIsPlain: a document is only called plain if the server stores it unchanged, and usual ones are.
func TestIsPlain(t *testing.T) {
	t.Parallel()
	zero := bson.Timestamp{}
	for name, tc := range map[string]struct {
		doc  bson.D
		want bool
	}{
		"usual":             {bson.D{{Key: "_id", Value: int64(7)}, {Key: "name", Value: "a"}, {Key: "at", Value: bson.DateTime(1)}}, true},
		"nothing else":      {bson.D{{Key: "_id", Value: ""}}, true},
		"zero timestamp":    {bson.D{{Key: "_id", Value: 1.5}, {Key: "ts", Value: zero}}, false},
		"it is the _id":     {bson.D{{Key: "_id", Value: zero}}, false},
		"nested timestamp":  {bson.D{{Key: "_id", Value: 1.5}, {Key: "a", Value: bson.D{{Key: "ts", Value: zero}}}}, false},
		"_id twice":         {bson.D{{Key: "_id", Value: 1.5}, {Key: "_id", Value: 2.5}}, false},
		"_id not the first": {bson.D{{Key: "a", Value: 1.5}, {Key: "_id", Value: 2.5}}, false},
		"no _id":            {bson.D{{Key: "a", Value: 1.5}}, false},
		"empty":             {bson.D{}, false},
	} {
		if got := isPlain(must.Get(bson.Marshal(tc.doc))(t)); got != tc.want {
			t.Errorf("%s: %t, want %t", name, got, tc.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.SampledFrom([]any{zero, bson.Timestamp{T: 1}, int32(17), "_id", "\x11", bson.D{{Key: "_id", Value: zero}}, bson.A{zero}, 1.5})
		doc := bson.D{} // nil is no document
		for range rapid.IntRange(0, 4).Draw(t, "fields") {
			doc = append(doc, bson.E{Key: rapid.SampledFrom([]string{"_id", "a", "my_id", "", "\x11", "$_id"}).Draw(t, "name"), Value: value.Draw(t, "value")})
		}
		raw, err := bson.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		how, err := inspect(raw)
		if err != nil {
			t.Fatal(err)
		}
		if isPlain(raw) && !how.insert {
			t.Errorf("%s is called plain", bson.Raw(raw))
		}
	})
}
