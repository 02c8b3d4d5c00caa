package pipeline_test

import (
	"fmt"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/pipeline"
)

// TestMemoryOfResync: while a collection is copied again, the link's buffer is smaller.
func TestMemoryOfResync(t *testing.T) {
	t.Parallel()
	w := play(t, `
		source insert shop.a 1..600
		source insert shop.b 1..10
		start copy flush=20 workers=1
		await running
		await caught-up
	`)
	l := w.links["a"]
	limit := func(mib int64) {
		t.Helper()
		what := fmt.Sprintf("a buffer of %d MiB and its headroom", mib)
		if err := w.untilOf(l, what, func() bool { return l.p.Snapshot().Buffer.Limit>>20 == mib }); err != nil {
			w.fail("budget", fmt.Sprintf("it has %d MiB", l.p.Snapshot().Buffer.Limit>>20), err)
		}
	}
	limit(60) // once the spool is not needed any more
	w.play(`
		limit 100
		resync shop.a
		await told copies again
		await resync copying shop.a
	`)
	limit(35)
	w.play("limit 0")
	w.awaitRequest(l, "shop.a")
	limit(60)
	w.play(`
		await caught-up
		equal
		drain
	`)
}

// TestWindow: entries that exceed the writers' window are not all in memory at once.
func TestWindow(t *testing.T) {
	t.Parallel()
	r := newRouted(t)
	l := r.run(pipeline.Config{WindowBytes: 2000})
	r.insert(1)
	lsid := bson.D{{Key: "id", Value: bson.Binary{Subtype: bson.TypeBinaryUUID, Data: []byte("0123456789abcdef")}}}
	for i := range 10 {
		cmd := bson.D{
			{Key: "insert", Value: "c"},
			{Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 100 + i}}}},
			{Key: "lsid", Value: lsid},
			{Key: "txnNumber", Value: int64(1)},
			{Key: "autocommit", Value: false},
		}
		if i == 0 {
			cmd = append(cmd, bson.E{Key: "startTransaction", Value: true})
		}
		r.onSource(cmd)
	}
	commit := bson.D{{Key: "commitTransaction", Value: 1}, {Key: "lsid", Value: lsid}, {Key: "txnNumber", Value: int64(1)}, {Key: "autocommit", Value: false}}
	if err := r.source.write(t.Context(), "admin", commit); err != nil {
		t.Fatal(err)
	}
	r.isEqual(l)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.ContainsFunc(r.events, func(e told) bool { return e.event.Message() == "a transaction is applied in several" }) {
		t.Error("it was applied as a whole")
	}
}
