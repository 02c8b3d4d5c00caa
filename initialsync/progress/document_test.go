package progress

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// rawOrNil draws a document, which may have any names.
func rawOrNil() *rapid.Generator[bson.Raw] {
	return rapid.Custom(func(t *rapid.T) bson.Raw {
		if rapid.Bool().Draw(t, "nil") {
			return nil
		}
		return metadata.Document(func(dst []byte) []byte {
			for _, name := range rapid.SliceOf(rapid.StringMatching(`[$.a-z]{0,3}`)).Draw(t, "names") {
				dst = bsoncore.AppendInt64Element(dst, name, rapid.Int64().Draw(t, "value"))
			}
			return dst
		})
	})
}

// collections draws collections of a copy as they may be.
func collections() *rapid.Generator[Collection] {
	return rapid.Custom(func(t *rapid.T) Collection {
		states := []State{Planned, Created, Filled, Done}
		c := Collection{
			UUID: uuid(rapid.IntRange(0, 1<<16-1).Draw(t, "uuid")), NS: oplog.Namespace(rapid.String().Draw(t, "ns")),
			Options: rawOrNil().Draw(t, "options"), IDIndex: rawOrNil().Draw(t, "id index"),
			Docs: rapid.Int64().Draw(t, "docs"), Bytes: rapid.Int64().Draw(t, "bytes"),
			State: rapid.SampledFrom(states).Draw(t, "state"), Gone: rapid.Bool().Draw(t, "gone"),
		}
		for range rapid.IntRange(0, 12).Draw(t, "indexes") {
			c.Indexes = append(c.Indexes, dollars)
			c.Failed = append(c.Failed, FailedIndex{Name: rapid.String().Draw(t, "name"), Why: rapid.String().Draw(t, "why")})
		}
		return c
	})
}

// parts draws ranges of a copy as they may be.
func parts() *rapid.Generator[Range] {
	return rapid.Custom(func(t *rapid.T) Range {
		return Range{
			UUID: uuid(rapid.IntRange(0, 1<<16-1).Draw(t, "uuid")), Index: rapid.IntRange(0, 20_000).Draw(t, "index"),
			Spec: rawOrNil().Draw(t, "spec"), At: rawOrNil().Draw(t, "at"),
			Docs: rapid.Int64().Draw(t, "docs"), Bytes: rapid.Int64().Draw(t, "bytes"),
			Steps: rapid.Int64().Draw(t, "steps"), Done: rapid.Bool().Draw(t, "done"),
		}
	})
}

// withID is a document of copies as a server has it.
func withID(id string, fields func(dst []byte) []byte) bson.Raw {
	return metadata.Document(func(dst []byte) []byte { return fields(bsoncore.AppendStringElement(dst, "_id", id)) })
}

// TestCopyDocuments: the documents of a copy are read back as they were written.
func TestCopyDocuments(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.Int64Min(1).Draw(t, "number")
		c, r := collections().Draw(t, "collection"), parts().Draw(t, "range")
		doc := withID(collectionID("a", number, c.UUID), func(dst []byte) []byte { return appendCollection(dst, number, &c) })
		got := must.Get(readCopyDoc("a", number, doc))(t)
		if diff := cmp.Diff(copyDoc{collection: &c}, got, cmp.AllowUnexported(copyDoc{})); diff != "" {
			t.Error(diff)
		}
		doc = withID(rangeID("a", number, r.UUID, r.Index), func(dst []byte) []byte { return appendRange(dst, number, &r) })
		got = must.Get(readCopyDoc("a", number, doc))(t)
		if diff := cmp.Diff(copyDoc{part: &r}, got, cmp.AllowUnexported(copyDoc{})); diff != "" {
			t.Error(diff)
		}
		if _, err := readCopyDoc("a", number-1, doc); err == nil {
			t.Error("a range of another copy was read")
		}
	})
}

// FuzzDocuments: no document makes the reader panic.
func FuzzDocuments(f *testing.F) {
	c, r := collection(1), part(1, 0)
	f.Add([]byte(withID(collectionID("a", 1, c.UUID), func(dst []byte) []byte { return appendCollection(dst, 1, &c) })))
	f.Add([]byte(withID(rangeID("a", 1, r.UUID, 0), func(dst []byte) []byte { return appendRange(dst, 1, &r) })))
	f.Fuzz(func(t *testing.T, data []byte) {
		if d, err := readCopyDoc("a", 1, data); err == nil && (d.collection == nil) == (d.part == nil) {
			t.Error("a document that is neither a collection nor a range, or both")
		}
	})
}
