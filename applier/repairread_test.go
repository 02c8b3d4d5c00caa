package applier

import (
	"context"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
)

// early is a target whose replies to a find of documents end after one of them.
type early struct{ *simTarget }

func (e early) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if name := simcaller.Name(cmd); cmd.DB == "db" && (name == "find" || name == "getMore") {
		b := bsoncore.NewDocumentBuilder()
		for it := rawbson.NewIter(cmd.Body); it.Next(); {
			if !it.Is("batchSize") {
				b.AppendValue(it.Name(), bsoncore.Value{Type: bsoncore.Type(it.Type), Data: it.Value})
			}
		}
		cmd.Body = bson.Raw(b.AppendInt32("batchSize", 1).Build())
	}
	return e.send(ctx, cmd)
}

// A group whose documents come in several replies is written like any other, and one that is too much
// is not.
func TestRepairReadsOn(t *testing.T) {
	r, l, c := repairRig(t)
	var want []bson.Raw
	for id := range 5 {
		want = append(want, must.Get(bson.Marshal(bson.D{{Key: "_id", Value: 200 + id}, {Key: "v", Value: "right"}}))(t))
		r.target.run(t, "db", bson.D{{Key: "insert", Value: "a"}, {Key: "documents", Value: bson.A{
			bson.D{{Key: "_id", Value: 200 + id}, {Key: "v", Value: "wrong"}},
			bson.D{{Key: "_id", Value: 300 + id}, {Key: "pad", Value: strings.Repeat("x", 3<<20)}},
		}}})
	}
	r.target.instead = early{r.target}
	group := func(docs []bson.Raw, ids ...any) Repaired {
		done := make(chan Repaired, 1)
		c.hand(&Repair{
			NS: "db.a", IDs: idsOf(ids...), After: l.optime().TS, Done: func(out Repaired) { done <- out },
			Read: func(context.Context, bson.Timestamp) ([]bson.Raw, error) { return docs, nil },
		})
		return c.became(done)
	}
	if out := group(want, 200, 201, 202, 203, 204); out.State != RepairDone || out.Rewritten != 5 {
		t.Errorf("%+v", out)
	}
	if out := group(want[:1], 200); out.State != RepairDone || out.Equal != 1 {
		t.Errorf("one: %+v", out)
	}
	if out := group(nil, 300, 301, 302, 303, 304); out.State != RepairSmaller || out.Deleted > 0 {
		t.Errorf("too much: %+v", out)
	}
	got := texts(r.target.documents(t, "db.a"))
	for _, text := range texts(want) {
		if !slices.Contains(got, text) {
			t.Errorf("the target lacks %s", text)
		}
	}
	c.drain()
}
