package bsonorder

import (
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/bsongen"
)

// stored is a collation as the server writes it, with changes.
func stored(locale string, changes ...bson.E) bson.D {
	spec := bson.D{
		{Key: "locale", Value: locale},
		{Key: "caseLevel", Value: false},
		{Key: "caseFirst", Value: "off"},
		{Key: "strength", Value: int32(3)},
		{Key: "numericOrdering", Value: false},
		{Key: "alternate", Value: "non-ignorable"},
		{Key: "maxVariable", Value: "punct"},
		{Key: "normalization", Value: false},
		{Key: "backwards", Value: false},
		{Key: "version", Value: "57.1"},
	}
	for _, change := range changes {
		found := false
		for i := range spec {
			if spec[i].Key == change.Key {
				spec[i].Value, found = change.Value, true
			}
		}
		if !found {
			spec = append(spec, change)
		}
	}
	return spec
}

func TestCollator(t *testing.T) {
	tests := []struct {
		name string
		spec bson.D
		a, b any
		want int
	}{
		{"no collation", nil, "a", "A", 1},
		{"simple", bson.D{{Key: "locale", Value: "simple"}}, "a", "A", 1},
		{"strength 3 tells case", stored("en"), "a", "A", -1},
		{"strength 3 puts case after letters", stored("en"), "A", "b", -1},
		{"strength 2 ignores case", stored("en", bson.E{Key: "strength", Value: int32(2)}), "a", "A", 0},
		{"strength 2 tells accents", stored("fr", bson.E{Key: "strength", Value: int32(2)}), "cote", "côte", -1},
		{"strength 1 ignores accents", stored("fr", bson.E{Key: "strength", Value: int32(1)}), "cote", "CÔTE", 0},
		{"digits as text", stored("en"), "10", "9", -1},
		{"digits as numbers", stored("en", bson.E{Key: "numericOrdering", Value: true}), "10", "9", 1},
		{"in a document", stored("en", bson.E{Key: "strength", Value: int32(2)}), bson.D{{Key: "x", Value: "a"}}, bson.D{{Key: "x", Value: "A"}}, 0},
		{"field names by bytes", stored("en", bson.E{Key: "strength", Value: int32(2)}), bson.D{{Key: "x", Value: "a"}}, bson.D{{Key: "X", Value: "a"}}, 1},
		{"in an array", stored("en", bson.E{Key: "strength", Value: int32(2)}), bson.A{"a"}, bson.A{"A"}, 0},
		{"composed and decomposed", stored("en"), "\u00e9", "e\u0301", 0},
		{"a locale with a territory", stored("fr_CH"), "a", "b", -1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			coll, err := NewCollator(document(t, tt.spec))
			if err != nil {
				t.Fatal(err)
			}
			if got := Compare(bsongen.Of(t, tt.a), bsongen.Of(t, tt.b), coll); got != tt.want {
				t.Errorf("Compare(%v, %v) = %d, want %d", tt.a, tt.b, got, tt.want)
			}
		})
	}
}

func TestCollatorRefuses(t *testing.T) {
	tests := []struct {
		field  string
		change bson.E
	}{
		{"strength", bson.E{Key: "strength", Value: int32(4)}},
		{"strength", bson.E{Key: "strength", Value: int32(5)}},
		{"strength", bson.E{Key: "strength", Value: "two"}},
		{"caseLevel", bson.E{Key: "caseLevel", Value: true}},
		{"caseFirst", bson.E{Key: "caseFirst", Value: "upper"}},
		{"alternate", bson.E{Key: "alternate", Value: "shifted"}},
		{"backwards", bson.E{Key: "backwards", Value: true}},
		{"locale", bson.E{Key: "locale", Value: "de@collation=phonebook"}},
		{"locale", bson.E{Key: "locale", Value: int32(1)}},
		{"novel", bson.E{Key: "novel", Value: true}},
	}
	for _, tt := range tests {
		t.Run(tt.change.Key, func(t *testing.T) {
			_, err := NewCollator(document(t, stored("en", tt.change)))
			if !errors.Is(err, errCollation) {
				t.Fatalf("got %v, want an ErrCollation", err)
			}
			if c, ok := errors.AsType[*CollationError](err); !ok || c.Field != tt.field {
				t.Errorf("got %v, want the field %s", err, tt.field)
			}
		})
	}
	if _, err := NewCollator(bson.Raw{9, 0, 0, 0, 1}); !errors.Is(err, errCollation) {
		t.Errorf("a corrupt spec: got %v, want an ErrCollation", err)
	}
}
