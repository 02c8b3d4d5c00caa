package fetcher_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/batcher"
	"github.com/oplogrep/replicator/buffer"
	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/batch"
)

// playedFrom is where the log of playing begins.
var playedFrom = oplog.NewOpTime(1_700_000_000, 1, 1)

// playing starts a member with a log of n inserts of about 200 bytes, and connects to
// it.
func playing(t testing.TB, n int) mongo.Caller {
	t.Helper()
	uuid := oplog.UUID{1, 2, 3}
	set := mongosim.StartTest(t, mongosim.Options{Seed: 1, TTLInterval: -1, OplogBytes: 1 << 30, Recording: &mongosim.Recording{
		First: playedFrom, Collections: []mongosim.StoredCollection{{NS: "shop.orders", UUID: uuid, Options: bson.Raw{5, 0, 0, 0, 0}}},
	}})
	filler := strings.Repeat("x", 70)
	entries := make([]bson.Raw, n)
	for i := range entries {
		at := bson.Timestamp{T: playedFrom.TS.T + uint32(i/1000), I: uint32(i%1000) + 2}
		o := bsoncore.AppendStringElement(bsoncore.AppendInt32Element(nil, "_id", int32(i)), "name", filler)
		e := bsoncore.AppendStringElement(nil, "op", "i")
		e = bsoncore.AppendStringElement(e, "ns", "shop.orders")
		e = bsoncore.AppendBinaryElement(e, "ui", bson.TypeBinaryUUID, uuid[:])
		e = bsoncore.AppendDocumentElement(e, "o", bsoncore.BuildDocument(nil, o))
		e = bsoncore.AppendTimestampElement(e, "ts", at.T, at.I)
		e = bsoncore.AppendInt64Element(e, "t", playedFrom.Term)
		e = bsoncore.AppendInt64Element(e, "v", 2)
		e = bsoncore.AppendDateTimeElement(e, "wall", int64(at.T)*1000)
		entries[i] = bsoncore.BuildDocument(nil, e)
	}
	if err := set.Member(0).Play(entries); err != nil {
		t.Fatal(err)
	}
	source := client.Open(t, driver.Config{URI: set.URI(), AppName: mongosim.Stage})
	return source.Member(set.Member(0).Host())
}

// errAll ends a run that has seen what it was to see.
var errAll = errors.New("all has come")

// follow reads a source from playedFrom on, through buffer and batcher, until n
// operations have come, and calls each with them.
func follow(t testing.TB, src mongo.Caller, n int, each func(item *batch.Item)) {
	t.Helper()
	f, err := fetcher.NewReader(fetcher.ReaderConfig{})
	if err != nil {
		t.Fatal(err)
	}
	queue, err := buffer.New(buffer.Config{})
	if err != nil {
		t.Fatal(err)
	}
	cut, err := batcher.New(batcher.Config{Release: queue.Release})
	if err != nil {
		t.Fatal(err)
	}
	fetched, queued, batches := make(chan oplog.Reply), make(chan oplog.Reply), make(chan batch.Batch, 1)
	head, stop := context.WithCancelCause(t.Context())
	defer stop(nil)
	g, ctx := errgroup.WithContext(t.Context())
	g.Go(func() error {
		defer close(fetched)
		_, err := f.Tail(head, "db1:27017", src, playedFrom, false, func(ctx context.Context, r oplog.Reply) error {
			select {
			case fetched <- r:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
		if errors.Is(err, errAll) {
			return nil
		}
		return err
	})
	g.Go(func() error { return queue.Run(ctx, fetched, queued) })
	g.Go(func() error { return cut.Run(ctx, queued, batches) })
	got := 0
	for b := range batches {
		for i := range b.Items {
			each(&b.Items[i])
		}
		got += len(b.Items)
		queue.Release(b.Bytes)
		if got >= n {
			stop(errAll)
		}
	}
	if err := g.Wait(); err != nil || got != n {
		t.Fatalf("%d operations of %d came, %v", got, n, err)
	}
}

// TestLoopback: what comes over the network is the log, and it costs no allocation
// for each entry. The member is in this process, and what it allocates is counted.
func TestLoopback(t *testing.T) {
	const n, most = 30_000, 0.2
	src := playing(t, n)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	next := int32(0)
	follow(t, src, n, func(item *batch.Item) {
		if id := item.Entry.ID.Int32(); id != next {
			t.Errorf("_id %d, want %d", id, next)
		}
		next++
	})
	runtime.ReadMemStats(&after)
	if each := float64(after.Mallocs-before.Mallocs) / n; each > most {
		t.Errorf("%.3f allocations per entry, at most %v wanted", each, most)
	}
}
