package mongosim_test

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
)

// TestExpire sees expired documents go, on every member, by entries of the log.
func TestExpire(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: 21, TTLInterval: 20 * time.Millisecond})
	ctx := t.Context()
	db := connect(t, set.URI()).Database("app")
	coll := db.Collection("c")
	must.Get(coll.Indexes().CreateOne(ctx, mongo.IndexModel{
		Keys: bson.D{{Key: "at", Value: 1}}, Options: options.Index().SetExpireAfterSeconds(60),
	}))(t)
	tail := must.Get(db.Client().Database("local").Collection("oplog.rs").Find(ctx, bson.D{},
		options.Find().SetCursorType(options.TailableAwait)))(t)
	defer tail.Close(ctx) //nolint:errcheck // the test is over
	must.Get(coll.InsertMany(ctx, []any{
		bson.D{{Key: "_id", Value: 1}, {Key: "at", Value: time.Now().Add(-time.Hour)}},
		bson.D{{Key: "_id", Value: 2}, {Key: "at", Value: time.Now()}},
	}))(t)
	for tail.Next(ctx) && tail.Current.Lookup("op").StringValue()+" "+tail.Current.Lookup("ns").StringValue() != "d app.c" {
	}
	must.Succeed(t, tail.Err())
	if id := tail.Current.Lookup("o", "_id").AsInt64(); id != 1 {
		t.Errorf("entry %s, want the delete of _id 1", tail.Current)
	}
	if n := must.Get(coll.CountDocuments(ctx, bson.D{}))(t); n != 1 {
		t.Errorf("%d documents left, want 1", n)
	}
}
