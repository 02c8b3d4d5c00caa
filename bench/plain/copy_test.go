package plain

import (
	"context"
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// copyClient is a client of an embedded set of its own.
func copyClient(t *testing.T, seed int64) *Client {
	t.Helper()
	set := mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: seed, TTLInterval: -1})
	c, err := Connect(t.Context(), set.URI())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

// Every document is in one piece: an insert that came twice would be refused.
func TestCopy(t *testing.T) {
	source, target := copyClient(t, 1), copyClient(t, 2)
	const docs = 15
	from := source.client.Database("d").Collection("c")
	for i := range docs {
		if _, err := from.InsertOne(t.Context(), bson.D{{Key: "_id", Value: fmt.Sprint("id", i)}}); err != nil {
			t.Fatal(err)
		}
	}
	names := []oplog.Namespace{"d.c", "d.none"}
	for _, tt := range []struct{ n, pieces int }{{1, 2}, {2, 3}, {4, 5}, {docs, docs + 1}, {100, docs + 1}} {
		pieces, err := source.Divide(t.Context(), names, tt.n)
		if err != nil {
			t.Fatal(err)
		}
		if len(pieces) != tt.pieces {
			t.Errorf("divided by %d: %d pieces, want %d", tt.n, len(pieces), tt.pieces)
		}
		to := target.client.Database("d").Collection("c")
		if err := to.Drop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := source.Copy(t.Context(), target, pieces, 3); err != nil {
			t.Errorf("divided by %d: %v", tt.n, err)
		}
		if n, err := to.CountDocuments(t.Context(), bson.D{}); err != nil || n != docs {
			t.Errorf("divided by %d: %d documents were copied, %v", tt.n, n, err)
		}
	}

	// A bound would be compared with some of them alone.
	if _, err := from.InsertOne(t.Context(), bson.D{{Key: "_id", Value: 7}}); err != nil {
		t.Fatal(err)
	}
	if _, err := source.Divide(t.Context(), names, 2); err == nil {
		t.Error("_ids of two types were divided")
	}
}
