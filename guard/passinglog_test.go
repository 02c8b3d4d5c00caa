package guard_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestLoadPassing: the commands announced at an entry, and the links that announced them, are found
// although the answers and the end of a link have followed.
func TestLoadPassing(t *testing.T) {
	t.Parallel()
	set := target(t)
	tell := func(cmd bson.D) {
		t.Helper()
		must.Get(set.Call(t.Context(), mongo.Command{DB: "replicator", Body: must.Get(bson.Marshal(cmd))(t)}))(t)
	}
	put := func(coll string, docs ...bson.D) {
		t.Helper()
		tell(bson.D{{Key: "insert", Value: coll}, {Key: "documents", Value: docs}})
	}
	said := func(link, ns string, n int) bson.D {
		return announced(link, "create", ns, "", n)[2].Value.(bson.D) //nolint:forcetypeassert // it is the document
	}
	remove := func(link, ns string, n int) {
		t.Helper()
		tell(bson.D{{Key: "delete", Value: "commands"}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{said(link, ns, n)[0]}}, {Key: "limit", Value: 1}}}}})
	}
	put("links", aLink("on", "I", here, false), aLink("ends", "I", here, false), aLink("ended", "I", here, true), aLink("other", "I", elsewhere, false))
	put("commands", said("on", "shop.a", 1), said("on", "shop.b", 2), said("ends", "shop.c", 3), said("ended", "shop.d", 4), said("on", "shop.f", 6), said("other", "shop.g", 7))
	remove("on", "shop.f", 6)
	at := must.Get(replset.NewestEntry(t.Context(), set, replset.Majority))(t).OpTime
	remove("on", "shop.a", 1)
	put("commands", said("on", "shop.e", 5))
	remove("ends", "shop.c", 3)
	tell(bson.D{{Key: "update", Value: "links"}, {Key: "updates", Value: bson.A{bson.D{
		{Key: "q", Value: bson.D{{Key: "_id", Value: "ends"}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "over", Value: bson.D{{Key: "by", Value: "ann"}}}}}}},
	}}}})
	load := func(ended bool) *passed {
		raw := bson.RawValue{Type: bson.TypeObjectID, Value: here[:]}
		p := must.Get(guard.LoadPassing(t.Context(), set, guard.PassingConfig{
			MetaDB: "replicator", Target: raw, Sessions: sessions, Ended: func(string, string) bool { return ended },
		}, at))(t)
		return &passed{t: t, Passing: p, n: 1}
	}
	p, none := load(false), load(true)
	for name, want := range map[string]bool{
		"a": true,  // answered since
		"b": true,  // not answered yet
		"c": true,  // by a link that has ended since
		"d": false, // by one that had ended
		"e": false, // announced later
		"f": false, // answered before
		"g": false, // by a link from elsewhere
	} {
		create := command("shop", bson.D{{Key: "create", Value: name}})
		p.expect(want, create)
		none.expect(false, create)
	}
	// From then on they are known from the log.
	p.expect(false, answered("on", 1))
	p.expect(false, command("shop", bson.D{{Key: "create", Value: "a"}}))
	p.expect(false, announced("on", "create", "shop.e", "", 5))
	p.expect(true, command("shop", bson.D{{Key: "create", Value: "e"}}))
	p.expect(false, metaOp("u", bson.D{{Key: "$v", Value: 2}, {Key: "diff", Value: bson.D{{Key: "i", Value: bson.D{{Key: "over", Value: bson.D{}}}}}}}, "ends"))
	p.expect(false, command("shop", bson.D{{Key: "create", Value: "c"}}))
	none.expect(true, in(sessions("ended", "I")[0], crud("i", "shop.a", 1)))
}
