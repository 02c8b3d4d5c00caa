package checkpoint

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/mongosim"
)

// TestOwedGoes: the documents of missing collections are removed with their copy, and with
// the link, even if that was removed by hand; those of other links stay.
func TestOwedGoes(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, s, h := copying(t, mongosim.Options{Members: 1, Seed: 1}, 1)
	owe := func() {
		t.Helper()
		for _, id := range []string{"a/d.c", "a0/d.c", "ab/d.c"} {
			must[bson.Raw](t)(g.Call(ctx, metadata.Majority(metadata.Update("replicator", metadata.Missing, metadata.Statement{
				Filter: metadata.ByID(id), Change: metadata.ByID(id), Upsert: true,
			}))))
		}
	}
	check := func(when string) {
		t.Helper()
		reply := must[bson.Raw](t)(g.Call(ctx, metadata.Find("replicator", metadata.Missing, 100, func(dst []byte) []byte { return dst })))
		docs := must[[]bson.Raw](t)(metadata.Found(reply))
		if len(docs) != 2 || docs[0].Lookup("_id").StringValue() == "a/d.c" {
			t.Errorf("%s there is %v", when, docs)
		}
	}
	owe()
	next := *h.State().Copy
	next.Number++
	succeed(t, h.BeginCopy(ctx, next, 1))
	check("with another copy")
	owe()
	must[bson.Raw](t)(g.Call(ctx, metadata.Delete("replicator", metadata.Links, metadata.ByID("a"))))
	succeed(t, s.Create(ctx, copyState(1)))
	check("with another link of the name")
	owe()
	succeed(t, s.Remove(ctx))
	check("without the link")
}
