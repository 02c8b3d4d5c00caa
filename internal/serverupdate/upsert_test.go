package serverupdate

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

func TestUpsert(t *testing.T) {
	for _, tt := range []struct{ name, equalities, u, want string }{
		{"nothing known", `{}`, `{"$set": {"a": 1}}`, `{"_id": "@oid:1", "a": 1}`},
		{"paths in order", `{"b": 1, "a.x": 2, "_id": 3}`, `{"$set": {"c": 4}}`, `{"_id": 3, "a": {"x": 2}, "b": 1, "c": 4}`},
		{"part of an object", `{"a.x": 1, "a.y": 2}`, `{"$set": {"a.z": 3}}`, `{"_id": "@oid:1", "a": {"x": 1, "y": 2, "z": 3}}`},
		{"only on insert", `{"_id": 1}`, `{"$set": {"a": 1}, "$setOnInsert": {"b": 2, "c.d": 3}}`, `{"_id": 1, "a": 1, "b": 2, "c": {"d": 3}}`},
		{"_id by the update", `{}`, `{"$set": {"z": 1, "_id": 5}}`, `{"_id": 5, "z": 1}`},
		{"same _id twice", `{"_id": 5}`, `{"$set": {"_id": 5}}`, `{"_id": 5}`},
		{"_id by parts", `{"_id.a": 5, "_id.b": 6}`, `{"$set": {"z": 1}}`, `{"_id": {"a": 5, "b": 6}, "z": 1}`},
		{"changes what the query says", `{"_id": 1, "n": 5}`, `{"$inc": {"n": 1}}`, `{"_id": 1, "n": 6}`},
		{"replacement takes only _id", `{"_id": 1, "n": 5}`, `{"x": 1}`, `{"_id": 1, "x": 1}`},
		{"replacement with _id", `{}`, `{"x": 1, "_id": 2}`, `{"_id": 2, "x": 1}`},
		{"replacement without _id", `{"n": 1}`, `{"x": 1, "t": "@ts:0:0"}`, `{"_id": "@oid:1", "x": 1, "t": "@ts:7:1"}`},
		{"pipeline", `{"_id": 1, "n": 5}`, `[{"$set": {"m": {"$add": ["$n", 1]}}}]`, `{"_id": 1, "n": 5, "m": 6}`},
		{"no-op", `{"_id": 1, "n": 5}`, `{"$set": {}}`, `{"_id": 1, "n": 5}`},
		{"other _id", `{"_id": 99}`, `{"_id": 98}`, "After applying the update, the (immutable) field '_id' was found to have been altered to _id: 98"},
		{"other _id by modifiers", `{"_id": 99}`, `{"$set": {"_id": 98}}`, "Performing an update on the path '_id' would modify the immutable field '_id'"},
		{"array as _id", `{}`, `{"$set": {"_id": [1]}}`, "The '_id' value cannot be of type array"},
		{"part of _id for a replacement", `{"_id.a": 5}`, `{"x": 1}`, "field at '_id' must be exactly specified, field at sub-path '_id.a'found"},
		{"through a scalar", `{"a": 5, "a.b": 6}`, `{"$set": {"x": 1}}`, "Cannot create field 'b' in element {a: 5}"},
		{"twice", `{"a": 5, "a": 6}`, `{"$set": {"x": 1}}`, "cannot infer query fields to set, path 'a' is matched twice"},
		{"twice by an object", `{"a": {"b": 1}, "a.b": 6}`, `{"$set": {"x": 1}}`, "cannot infer query fields to set, path 'a.b' is matched twice"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var list []Equality
			for _, e := range elems(parseDoc(t, tt.equalities)) {
				list = append(list, Equality{e.Name(), e.Raw()})
			}
			s, err := Compile(parse(t, tt.u), testOptions())
			if err != nil {
				t.Fatal(err)
			}
			got, err := s.Upsert(list)
			wantDocument(t, tt.want, got, err)
		})
	}
	s, err := Compile(parse(t, `{"$set": {"a": 1}}`), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.Upsert([]Equality{{"a", bson.RawValue{Type: bson.TypeString, Value: []byte{9}}}}); err == nil {
		t.Errorf("a corrupt value passed: %s", got)
	}
	big := bson.RawValue{Type: bson.TypeString, Value: parse(t, `"`+strings.Repeat("x", MaxDocumentSize)+`"`).Value}
	if _, err := s.Upsert([]Equality{{"b", big}}); !errors.Is(err, refuse(codeUpsertTooLarge, "")) {
		t.Errorf("too large: %v", err)
	}
}

// wantDocument compares a document, or an error's message if want is not a document.
func wantDocument(t *testing.T, want string, got bson.Raw, err error) {
	t.Helper()
	if !strings.HasPrefix(want, "{") {
		if e, ok := errors.AsType[*Error](err); !ok || e.Message != want {
			t.Errorf("got %s, error %v, want %s", got, err, want)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(show(parseDoc(t, want)), show(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestCheckInsert(t *testing.T) {
	for _, tt := range []struct{ name, doc, want string }{
		{"as it is", `{"_id": 1, "a": {"$b": 1}, "$c": 1, "d.e": 1}`, `{"_id": 1, "a": {"$b": 1}, "$c": 1, "d.e": 1}`},
		{"_id moves", `{"a": 1, "_id": 1, "b": 2}`, `{"_id": 1, "a": 1, "b": 2}`},
		{"_id is made", `{"a": 1}`, `{"_id": "@oid:1", "a": 1}`},
		{"timestamps", `{"_id": "@ts:0:0", "a": "@ts:0:0", "b": {"c": "@ts:0:0"}, "d": "@ts:0:0"}`, `{"_id": "@ts:0:0", "a": "@ts:7:1", "b": {"c": "@ts:0:0"}, "d": "@ts:7:2"}`},
		{"a reference", `{"_id": {"$ref": "c", "$id": 1, "$db": "d", "x": 1}}`, `{"_id": {"$ref": "c", "$id": 1, "$db": "d", "x": 1}}`},
		{"array", `{"_id": [1]}`, "The '_id' value cannot be of type array"},
		{"regular expression", `{"_id": "@regex:x:"}`, "The '_id' value cannot be of type regex"},
		{"undefined", `{"a": 1, "_id": "@undefined"}`, "The '_id' value cannot be of type undefined"},
		{"dollar", `{"_id": {"$bad": 1}}`, "_id fields may not contain '$'-prefixed fields: $bad is not valid for storage."},
		{"dollar further down", `{"_id": {"a": [{"$bad": 1}]}}`, "_id fields may not contain '$'-prefixed fields: $bad is not valid for storage."},
		{"half a reference", `{"_id": {"$ref": "c"}}`, "_id fields may not contain '$'-prefixed fields: $ref is not valid for storage."},
		{"two", `{"_id": 1, "_id": 2}`, "can't have multiple _id fields in one document"},
		{"as deep as may be", `{"_id": 1, "a": ` + nested(179) + `}`, `{"_id": 1, "a": ` + nested(179) + `}`},
		{"too deep", `{"_id": 1, "a": ` + nested(180) + `}`, "cannot insert document because it exceeds 180 levels of nesting"},
		{"too large", `{"_id": 1, "a": "` + strings.Repeat("x", MaxDocumentSize-21) + `"}`, "object to insert too large. size in bytes: 16777217, max size: 16777216"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := testOptions().CheckInsert(parseDoc(t, tt.doc))
			wantDocument(t, tt.want, got, err)
		})
	}
	doc := parseDoc(t, `{"_id": 1, "a": 1}`)
	if got, err := testOptions().CheckInsert(doc); err != nil || &got[0] != &doc[0] {
		t.Errorf("copied what needs no change, error %v", err)
	}
	if got, err := (Options{}).CheckInsert(parseDoc(t, `{"a": "@ts:0:0"}`)); err != nil || got.Lookup("_id").Type != bson.TypeObjectID {
		t.Errorf("without surroundings: %s, error %v", got, err)
	}
	if _, err := (Options{}).CheckInsert(bson.Raw{7, 0, 0, 0, 9}); errors.As(err, new(*Error)) || !errors.As(err, new(*rawbson.CorruptError)) {
		t.Errorf("corrupt: %v", err)
	}
}
