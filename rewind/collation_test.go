package rewind

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
)

// overridden counts the finds that name another collation than their collection's: no index on _id serves them.
type overridden struct {
	mongo.Caller
	finds atomic.Int64
}

// Call implements mongo.Caller.
func (o *overridden) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if _, err := cmd.Body.LookupErr("collation"); err == nil {
		o.finds.Add(1)
	}
	return o.Caller.Call(ctx, cmd)
}

// TestListCollation: in a collection with a collation, a document is read through the index on _id, and another spelling of
// an _id is not taken for it. Equal numbers of two types are one _id, as in any collection.
func TestListCollation(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	for _, side := range []struct {
		on mongo.Caller
		db string
	}{{s.source, "shop"}, {s.target, "store"}} {
		s.run(side.on, side.db, bson.D{{Key: "create", Value: "a"}, {Key: "collation", Value: bson.D{{Key: "locale", Value: "en"}, {Key: "strength", Value: 2}}}})
	}
	inner := func(text string) bson.D { return bson.D{{Key: "k", Value: text}} }
	s.insert(s.source, "shop", "again")
	s.insert(s.target, "store", "SPELT", "equal", inner("SPELT"), inner("equal"), 17.0, "AGAIN")
	after := s.newest()
	s.insert(s.source, "shop", "spelt", "equal", "new", inner("spelt"), inner("equal"), 17)
	s.run(s.source, "shop", bson.D{{Key: "delete", Value: "a"}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: "again"}}}, {Key: "limit", Value: 1}}}}})
	s.insert(s.source, "shop", "Again")
	want := []string{
		"i shop.a>store.a spelt same=false source=true target=false",
		"i shop.a>store.a equal same=true source=true target=true",
		"i shop.a>store.a new same=false source=true target=false",
		`i shop.a>store.a {k: spelt} same=false source=true target=false`,
		`i shop.a>store.a {k: equal} same=true source=true target=true`,
		"i shop.a>store.a {$numberInt:17} same=false source=true target=true",
		"d shop.a>store.a again same=true source=false target=false",
		"i shop.a>store.a Again same=false source=true target=false",
	}
	source, target := &overridden{Caller: s.source}, &overridden{Caller: s.target}
	got, _, err := s.list(after, func(c *Config) { c.Source, c.Target = source, target })
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("%v:\n%s", err, d)
	}
	if n, m := source.finds.Load(), target.finds.Load(); n+m != 0 {
		t.Errorf("%d reads of the source and %d of the target can use no index", n, m)
	}
}
