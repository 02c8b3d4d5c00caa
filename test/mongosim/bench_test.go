package mongosim_test

import (
	"context"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/oplogrep/replicator/mongosim"
)

// One client, over TCP, against a set of one: the embedded set must never be what
// limits an end-to-end test. The figures wanted are at least 30,000 inserts and
// 15,000 updates a second.

func benchCollection(b *testing.B) *mongo.Collection {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	set, err := mongosim.Start(ctx, mongosim.Options{Seed: 1})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(set.Close)
	client, err := mongo.Connect(options.Client().ApplyURI(set.URI()))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = client.Disconnect(context.Background()) })
	return client.Database("bench").Collection("c")
}

const benchBatch = 1000

func benchDocuments(first int) []any {
	docs := make([]any, benchBatch)
	for i := range docs {
		docs[i] = bson.D{
			{Key: "_id", Value: first + i},
			{Key: "n", Value: i},
			{Key: "s", Value: "some text of a usual length, not more"},
			{Key: "when", Value: time.UnixMilli(1700000000000 + int64(i))},
			{Key: "flag", Value: true},
			{Key: "sub", Value: bson.D{{Key: "a", Value: 1}, {Key: "b", Value: "two"}}},
		}
	}
	return docs
}

func BenchmarkInsertMany(b *testing.B) {
	coll := benchCollection(b)
	n := 0
	for b.Loop() {
		if _, err := coll.InsertMany(b.Context(), benchDocuments(n)); err != nil {
			b.Fatal(err)
		}
		n += benchBatch
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "inserts/s")
}

func BenchmarkUpdateBulk(b *testing.B) {
	coll := benchCollection(b)
	const documents = 20 * benchBatch
	for n := 0; n < documents; n += benchBatch {
		if _, err := coll.InsertMany(b.Context(), benchDocuments(n)); err != nil {
			b.Fatal(err)
		}
	}
	b.ResetTimer()
	n := 0
	for b.Loop() {
		models := make([]mongo.WriteModel, benchBatch)
		for i := range models {
			models[i] = mongo.NewUpdateOneModel().
				SetFilter(bson.D{{Key: "_id", Value: (n + i) % documents}}).
				SetUpdate(bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: n + i + 1}, {Key: "s", Value: "changed"}}}})
		}
		if _, err := coll.BulkWrite(b.Context(), models); err != nil {
			b.Fatal(err)
		}
		n += benchBatch
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "updates/s")
}
