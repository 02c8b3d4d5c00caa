package checkpoint

import (
	"testing"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
)

// TestMissingGoes: the documents of missing collections are removed with their copy; those of
// other links stay.
func TestMissingGoes(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, _, h := copying(t, mongosim.Options{Members: 1, Seed: 1}, 1)
	for _, id := range []string{"a/d.c", "a0/d.c", "ab/d.c"} {
		must.Get(g.Call(ctx, metadata.Majority(metadata.Write("replicator", "insert", metadata.Missing, "documents", metadata.Document(metadata.ByID(id))))))(t)
	}
	next := *h.State().Copy
	next.Number++
	must.Succeed(t, h.BeginCopy(ctx, next, 1))
	reply := must.Get(g.Call(ctx, metadata.Find("replicator", metadata.Missing, 100, func(dst []byte) []byte { return dst })))(t)
	docs := must.Get(metadata.Found(reply))(t)
	if len(docs) != 2 || docs[0].Lookup("_id").StringValue() == "a/d.c" {
		t.Errorf("there is %v", docs)
	}
}
