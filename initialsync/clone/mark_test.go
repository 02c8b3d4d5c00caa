package clone

import (
	"testing"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
)

// TestMark: after a refusal of a name that starts with a dollar, the documents with such a name are deleted first, and none that have a
// dollar elsewhere.
func TestMark(t *testing.T) {
	t.Parallel()
	var docs []*document
	for _, text := range []string{`{"_id": 1, "q": {"$gt": 1}}`, `{"_id": 2, "q": {"$lt": 1}}`, `{"_id": 3, "price": "$5", "a$": 1}`, `{"_id": 4, "r": {"$ref": "c", "$id": 1}}`} {
		docs = append(docs, &document{raw: bsongen.FromJSON(t, text), insert: true})
	}
	(&spelledError{docs[0], servererr.New(servererr.DollarPrefixedFieldName, "no")}).mark(docs)
	for i, want := range []bool{true, true, false, false} {
		if docs[i].deleteFirst != want {
			t.Errorf("%s is deleted first: %v", docs[i].raw, docs[i].deleteFirst)
		}
	}
}
