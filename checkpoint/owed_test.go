package checkpoint

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/mongosim"
)

// TestOwedGoes: what a copy owed goes with the copy, and with the link, whoever removed
// that; other links' stays.
func TestOwedGoes(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, s, h := copying(t, mongosim.Options{Members: 1, Seed: 1}, 1)
	owe := func() {
		t.Helper()
		for _, id := range []string{"a/d.c", "a0/d.c", "ab/d.c"} {
			must[bson.Raw](t)(g.Call(ctx, updateCommand("replicator", owedCollection, true, statement{
				filter: byID(id), change: byID(id), upsert: true,
			})))
		}
	}
	check := func(when string) {
		t.Helper()
		reply := must[bson.Raw](t)(g.Call(ctx, findCommand("replicator", owedCollection, 100, func(dst []byte) []byte { return dst })))
		docs := must[[]bson.Raw](t)(found(reply))
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
	must[bson.Raw](t)(g.Call(ctx, deleteCommand("replicator", linksCollection, false, byID("a"))))
	succeed(t, s.Create(ctx, copyState(1)))
	check("with another link of the name")
	owe()
	succeed(t, s.Remove(ctx))
	check("without the link")
}
