package mongosim_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/mongosim"
)

// TestFindByType: a find by the types of _ids, in their order, has what a read of everything has of
// these types, in replies of any size.
func TestFindByType(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 31})
	p, _ := primaryOf(t, set)
	c := dial(t, p)
	var types []bson.Type
	for _, id := range bsongen.IDs() {
		c.try("app", insert("c", nil, idDoc(id))) // an equal one is refused, and so is what no _id may be
	}
	all := docs(t, c.ok("app", find("c", arg("batchSize", 1000))))
	slices.SortFunc(all, func(a, b bson.Raw) int { return bsonorder.Compare(a.Lookup("_id"), b.Lookup("_id"), nil) })
	for _, doc := range all {
		if typ := doc.Lookup("_id").Type; !slices.Contains(types, typ) {
			types = append(types, typ)
		}
	}
	if len(types) < 15 {
		t.Fatalf("_ids of %d types", len(types))
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		rnd.Shuffle(len(types), func(i, j int) { types[i], types[j] = types[j], types[i] })
		of := types[:1+rnd.IntN(len(types))]
		list := bson.A{}
		for _, typ := range of {
			list = append(list, int32(int8(typ)))
		}
		var want, got []bson.Raw
		for _, doc := range all {
			id := doc.Lookup("_id")
			if slices.Contains(of, id.Type) {
				want = append(want, doc)
			}
		}
		reply := c.ok("app", find("c", arg("filter", d{arg("_id", d{arg("$type", list)})}), arg("sort", d{arg("_id", 1)}), arg("batchSize", 1+rnd.IntN(4))))
		got = docs(t, reply)
		for {
			cursor := reply.Lookup("cursor", "id").Int64()
			if cursor == 0 {
				break
			}
			reply = c.ok("app", d{arg("getMore", cursor), arg("collection", "c"), arg("batchSize", 1+rnd.IntN(4))})
			got = append(got, docs(t, reply)...)
		}
		if !slices.EqualFunc(got, want, func(a, b bson.Raw) bool { return string(a) == string(b) }) {
			t.Fatalf("of the types %v:\n%v\nwant\n%v", of, got, want)
		}
	}
}
