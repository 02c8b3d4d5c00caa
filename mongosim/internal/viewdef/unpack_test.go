package viewdef

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
)

func document(t *testing.T, text string) bson.Raw {
	t.Helper()
	var doc bson.Raw
	if err := bson.UnmarshalExtJSON([]byte(text), false, &doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

// TestBucketWithGaps unpacks measurements that lack a field, or the metadata.
func TestBucketWithGaps(t *testing.T) {
	u := &Unpacker{TimeField: "t", MetaField: "m"}
	bucket := document(t, `{"_id": 1, "control": {"version": 1}, "data": {
		"v": {"1": "b"}, "t": {"0": 10, "1": 11, "2": 12}, "w": {"0": "a", "2": "c"}}}`)
	var got []string
	for doc, err := range u.measurements(bucket) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, doc.String())
	}
	want := []string{
		`{"t": {"$numberInt":"10"},"w": "a"}`, `{"t": {"$numberInt":"11"},"v": "b"}`, `{"t": {"$numberInt":"12"},"w": "c"}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	compressed := document(t, `{"control": {"version": 2}}`)
	for _, err := range u.measurements(compressed) {
		if err == nil {
			t.Error("unpacked a bucket of version 2")
		}
	}
}
