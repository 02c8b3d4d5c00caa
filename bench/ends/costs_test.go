package ends

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/bench/result"
)

// The costs of single statements agree with that of the backlog that they are taken from.
func TestMixedCost(t *testing.T) {
	if sum := 2*costInsert + 2*costUpdate + costDelete; sum/5 < MixedCost-100 || sum/5 > MixedCost+100 {
		t.Errorf("two inserts, two updates and a delete cost %d ns each, want %d", sum/5, MixedCost)
	}
}

// A calibrated server counts each statement at what it costs a real one, in the body and
// in a sequence, answers with the number of documents, and keeps none of them.
func TestCalibratedCosts(t *testing.T) {
	n, err := StartNull(t.Context(), 7, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	if n.Is != (result.End{Kind: result.EndCalibrated}) {
		t.Errorf("it is %q", n.Is)
	}
	one := bson.D{{Key: "_id", Value: 1}}
	several := bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: bson.A{1, 2, 3}}}}}
	set := bson.D{{Key: "$set", Value: bson.D{{Key: "a", Value: 1}}}}
	update := func(q, u any) bson.D {
		return bson.D{{Key: "update", Value: "c"}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: q}, {Key: "u", Value: u}}}}}
	}
	remove := func(q any) bson.D {
		return bson.D{{Key: "delete", Value: "c"}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: q}, {Key: "limit", Value: 0}}}}}
	}
	for name, c := range map[string]struct {
		cmd  bson.D
		cost time.Duration
		n    int64
	}{
		"two inserts":     {bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{one, one}}}, 2 * costInsert, 2},
		"a $set":          {update(one, set), costUpdate, 1},
		"a $set for $in":  {update(several, set), 3 * costUpdateIn, 3},
		"a pipeline":      {update(one, bson.A{set}), costPipeline, 1},
		"a replacement":   {update(one, bson.D{{Key: "a", Value: 1}}), costReplace, 1},
		"a delete":        {remove(one), costDelete, 1},
		"a delete of $in": {remove(several), 3 * costDeleteIn, 3},
	} {
		if err := n.Arm(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		reply, err := n.run(t.Context(), "d", c.cmd)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got, _ := reply.Lookup("n").AsInt64OK(); got != c.n {
			t.Errorf("%s: %d documents, want %d", name, got, c.n)
		}
		cost, err := n.Cost(t.Context())
		if err != nil || cost != c.cost {
			t.Errorf("%s costs %v (%v), want %v", name, cost, err, c.cost)
		}
	}
	if err := n.Arm(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	reply, err := n.run(t.Context(), "d", bson.D{{Key: "count", Value: "c"}})
	if got, _ := reply.Lookup("n").AsInt64OK(); err != nil || got != 0 {
		t.Errorf("it keeps %d documents (%v)", got, err)
	}
}

// The metadata of a calibrated server are the backend's: they can be written and read.
func TestCalibratedMetadata(t *testing.T) {
	n, err := StartNull(t.Context(), 8, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	if err := n.Arm(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	doc := bson.D{{Key: "_id", Value: "x"}, {Key: "term", Value: 3}}
	if _, err := n.run(t.Context(), MetaDB, bson.D{{Key: "insert", Value: "links"}, {Key: "documents", Value: bson.A{doc}}}); err != nil {
		t.Fatal(err)
	}
	reply, err := n.run(t.Context(), MetaDB, bson.D{{Key: "find", Value: "links"}})
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := reply.Lookup("cursor", "firstBatch", "0", "term").AsInt64OK(); got != 3 {
		t.Errorf("found %v", reply)
	}
	if cost, err := n.Cost(t.Context()); err != nil || cost != 0 {
		t.Errorf("the metadata cost %v (%v), want nothing", cost, err)
	}
}
