package corpus

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

func TestModifiers(t *testing.T) {
	set := func(path string) bson.D { return bson.D{{Key: "$set", Value: bson.D{{Key: path, Value: 1}}}} }
	tests := []struct {
		o                 bson.D
		older, byPosition bool
	}{
		{bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: bson.D{{Key: "0", Value: 1}}}}, false, false},
		{bson.D{{Key: "$v", Value: 2}, {Key: "diff", Value: bson.D{{Key: "u", Value: bson.D{{Key: "0", Value: 1}}}}}}, false, false},
		{set("a.b"), true, false},
		{set("a.0x"), true, false},
		{set("a.0.b"), true, true},
		{append(bson.D{{Key: "$v", Value: 1}}, set("3")...), true, true},
		{bson.D{{Key: "$v", Value: 9}}, false, false},
	}
	for _, tt := range tests {
		raw, err := bson.Marshal(tt.o)
		if err != nil {
			t.Fatal(err)
		}
		if older, byPosition := modifiers(raw); older != tt.older || byPosition != tt.byPosition {
			t.Errorf("%s: got %v, %v", bson.Raw(raw), older, byPosition)
		}
	}
}
