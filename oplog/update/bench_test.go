package update_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/oplog/update"
)

// benchDocuments returns a document of about 300 bytes before and after a change of
// two fields and one array element.
func benchDocuments(tb testing.TB) (pre, post bson.Raw) {
	const rest = `, "tags": ["a", "b", "c", "d"], "address": {"street": "Long Street 17", "city": "Somewhere", "zip": "12345"},
		"note": "a note that is long enough to make this a document of an ordinary size, as they go", "`
	return parse(tb, `{"_id": 1, "name": "first", "count": 1`+rest+`last": [1, 2, 3, "some more text"]}`),
		parse(tb, `{"_id": 1, "name": "second", "count": 2`+rest+`last": [1, 2, 4, "some more text"]}`)
}

func BenchmarkApplyDelta(b *testing.B) {
	pre, post := benchDocuments(b)
	diff, ok := update.Diff(pre, post, update.EnvelopePadding)
	if !ok {
		b.Fatal("no diff")
	}
	o, err := bson.Marshal(bson.D{{Key: "$v", Value: 2}, {Key: "diff", Value: diff}})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(pre)))
	buf := make([]byte, 0, 2*len(pre))
	for b.Loop() {
		if _, err := update.AppendApply(buf, pre, o); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkApplyModifiers(b *testing.B) {
	pre, _ := benchDocuments(b)
	o := parse(b, `{"$v": 1, "$set": {"count": 2, "last.2": 4, "name": "second"}}`)
	b.ReportAllocs()
	b.SetBytes(int64(len(pre)))
	buf := make([]byte, 0, 2*len(pre))
	for b.Loop() {
		if _, err := update.AppendApply(buf, pre, o); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParseDelta(b *testing.B) {
	diff := parse(b, `{"u": {"count": 2, "name": "second"}, "slast": {"a": true, "u2": 4}}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := update.ParseDelta(diff); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDiff(b *testing.B) {
	pre, post := benchDocuments(b)
	b.ReportAllocs()
	b.SetBytes(int64(len(post)))
	for b.Loop() {
		if _, ok := update.Diff(pre, post, update.EnvelopePadding); !ok {
			b.Fatal("no diff")
		}
	}
}
