package mongosim_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
)

// readAtCut is what docs/reading-the-target.md shows.
func readAtCut(ctx context.Context, client *mongo.Client, at bson.Timestamp) (*mongo.Cursor, error) {
	// begin
	cursor, err := client.Database("shop").RunCommandCursor(ctx, bson.D{
		{Key: "find", Value: "orders"},
		{Key: "filter", Value: bson.D{{Key: "state", Value: "open"}}},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "snapshot"}, {Key: "atClusterTime", Value: at}}},
	})
	// end
	return cursor, err
}

// TestReadAtCut: the page's example in Go compiles, and reads the documents of a time, also in
// batches after the first one.
func TestReadAtCut(t *testing.T) {
	page := string(must.Get(os.ReadFile("../../docs/reading-the-target.md"))(t))
	source := strings.ReplaceAll(string(must.Get(os.ReadFile("readatcut_test.go"))(t)), "\n\t", "\n")
	_, snippet, _ := strings.Cut(source, "// begin\n")
	snippet, _, _ = strings.Cut(snippet, "// end\n")
	if snippet == "" || !strings.Contains(page, "```go\nat := bson.Timestamp{T: 1795479551, I: 935}\n"+snippet+"```\n") {
		t.Errorf("docs/reading-the-target.md does not have\n%s", snippet)
	}

	ctx := t.Context()
	set := mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1, SnapshotHistory: 5 * time.Minute, Moods: mongosim.GentleMoods("nothing here begins another attempt")})
	client := connect(t, set.URI())
	orders := client.Database("shop").Collection("orders")
	list := make([]any, 300)
	for i := range list {
		list[i] = bson.D{{Key: "_id", Value: i}, {Key: "state", Value: "open"}}
	}
	session := must.Get(client.StartSession())(t)
	defer session.EndSession(ctx)
	must.Get(orders.InsertMany(mongo.NewSessionContext(ctx, session), list))(t)
	at := *session.OperationTime()
	must.Get(orders.UpdateMany(ctx, bson.D{}, bson.D{{Key: "$set", Value: bson.D{{Key: "state", Value: "shipped"}}}}))(t)
	must.Get(orders.DeleteMany(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$gt", Value: 200}}}}))(t)
	var docs []bson.D
	must.Succeed(t, must.Get(readAtCut(ctx, client, at))(t).All(ctx, &docs))
	if len(docs) != len(list) {
		t.Errorf("%d orders were open, want %d", len(docs), len(list))
	}
	docs = nil
	must.Succeed(t, must.Get(readAtCut(ctx, client, *must.Get(afterRead(ctx, client))(t)))(t).All(ctx, &docs))
	if len(docs) != 0 {
		t.Errorf("%d orders are open", len(docs))
	}
}

// afterRead returns the operationTime of a read.
func afterRead(ctx context.Context, client *mongo.Client) (*bson.Timestamp, error) {
	session, err := client.StartSession()
	if err != nil {
		return nil, err
	}
	defer session.EndSession(ctx)
	err = client.Ping(mongo.NewSessionContext(ctx, session), nil)
	return session.OperationTime(), err
}
