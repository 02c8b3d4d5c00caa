package clone

import (
	"context"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"              //nolint:depguard // It is what we compare with.
	"go.mongodb.org/mongo-driver/v2/mongo/options"      //nolint:depguard // As above.
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern" //nolint:depguard // As above.
)

// BenchmarkCopy copies documents of 1 KB through one lane, and compares that with
// a bare loop that reads and writes them with the driver, in batches of 1,000.
func BenchmarkCopy(b *testing.B) {
	const n = 50_000
	w := newWorld(b)
	insertRaw(b, w.source, "d.c", numbered(b, 0, n, 1000)...)
	ctx := context.Background()
	w.begin(ctx)
	var ours, bare time.Duration
	for b.Loop() {
		coll := w.collection("d.c")
		w.plan(ctx, coll)
		start := time.Now()
		must[bson.Timestamp](b)(w.copyAll(ctx, coll))
		ours += time.Since(start)
		b.StopTimer()
		run(b, w.target, "d", bson.D{{Key: "drop", Value: "c"}})
		run(b, w.target, "d", bson.D{{Key: "create", Value: "c"}})
		bare += bareLoop(b, w, n)
		run(b, w.target, "d", bson.D{{Key: "drop", Value: "c"}})
		// The same collection is copied by a new copy of the link.
		w.renew(ctx)
		b.StartTimer()
	}
	b.ReportMetric(float64(n*b.N)/ours.Seconds(), "docs/s")
	b.ReportMetric(float64(n*b.N)/bare.Seconds(), "bare-docs/s")
	b.ReportMetric(bare.Seconds()/ours.Seconds(), "ratio")
}

func bareLoop(b *testing.B, w *world, n int) time.Duration {
	b.Helper()
	var colls [2]*mongo.Collection
	for i, set := range w.sets {
		client := must[*mongo.Client](b)(mongo.Connect(options.Client().ApplyURI(set.URI()).SetWriteConcern(writeconcern.W1())))
		defer func() { _ = client.Disconnect(context.Background()) }()
		colls[i] = client.Database("d").Collection("c")
	}
	ctx := context.Background()
	start := time.Now()
	cursor := must[*mongo.Cursor](b)(colls[0].Find(ctx, bson.D{}, options.Find().SetBatchSize(1000)))
	defer func() { _ = cursor.Close(ctx) }()
	count := 0
	batch := make([]any, 0, 1000)
	flush := func() {
		must[*mongo.InsertManyResult](b)(colls[1].InsertMany(ctx, batch, options.InsertMany().SetOrdered(false)))
		count += len(batch)
		batch = batch[:0]
	}
	for cursor.Next(ctx) {
		batch = append(batch, append(bson.Raw(nil), cursor.Current...))
		if len(batch) == 1000 {
			flush()
		}
	}
	if len(batch) > 0 {
		flush()
	}
	succeed(b, cursor.Err())
	if count != n {
		b.Fatalf("%d documents", count)
	}
	return time.Since(start)
}
