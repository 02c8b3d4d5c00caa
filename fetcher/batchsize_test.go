package fetcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

func TestBatchSize(t *testing.T) {
	const most = maxEntries
	var b batchSize
	step := func(what string, d time.Duration, n, bytes int, want int32) {
		t.Helper()
		b.took(d, n, bytes)
		if got := b.size(); got != want {
			t.Errorf("%s: got %d, want %d", what, got, want)
		}
	}
	step("a quick reply", 100*time.Millisecond, 20_000, 16<<20, most)
	step("one that waited for entries", 5*time.Second, 3, 900, most)
	step("one that took 160 s", 160*time.Second, 16_000, 16<<20, 100)
	step("one of the size that was asked for, in time", 1100*time.Millisecond, 100, 100<<10, 100)
	step("a quick one", 400*time.Millisecond, 100, 100<<10, 200)
	step("a quick one with less than was asked for", 400*time.Millisecond, 7, 7<<10, 200)
	step("the line is slower", 4*time.Second, 200, 1<<20, 50)
	step("one entry that takes long", 100*time.Second, 1, 16<<20, 1)
	for range 30 {
		b.took(10*time.Millisecond, int(b.size()), 1000)
	}
	if got := b.size(); got != most {
		t.Errorf("the line is quick again: %d", got)
	}
}

// TestReplyBytes: a reply has as many entries as fit into its memory, by the size of
// those before.
func TestReplyBytes(t *testing.T) {
	const limit = 8 << 20
	b := batchSize{limit: limit, entry: firstEntry}
	if got := b.size(); got != limit/firstEntry {
		t.Errorf("the first: %d", got)
	}
	took := func(n, bytes int) int32 {
		b.took(time.Millisecond, n, bytes)
		return b.size()
	}
	if got := took(4, 4<<20); got != limit/(1<<20+int32(entrySize)) {
		t.Errorf("after entries of 1 MiB: %d", got)
	}
	if got := took(100, 100_000); got != limit/((1<<20+int32(entrySize))/2) {
		t.Errorf("after small ones, too: %d", got)
	}
	for range 20 {
		took(100, 100_000)
	}
	if got := b.size(); got != limit/(1000+int32(entrySize)) {
		t.Errorf("after small ones only: %d", got)
	}
	if got := took(0, 100); got != limit/(1000+int32(entrySize)) {
		t.Errorf("after an empty one: %d", got)
	}
	if got := took(1, 16<<20); got != 1 {
		t.Errorf("after one that is larger than the limit: %d", got)
	}
	b = batchSize{limit: 24 << 20, entry: firstEntry}
	for range 100 {
		took(100, 30_000)
	}
	if got := b.size(); got != maxEntries {
		t.Errorf("with much memory: %d", got)
	}
	b.took(4*time.Second, 400, 1<<20)
	if got := b.size(); got != 100 {
		t.Errorf("on a slow line: %d", got)
	}
}

// TestReplyBytesOfMember: the requests have that many.
func TestReplyBytesOfMember(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 5})
	ctx := within(t)
	p := set.Primary()
	must.Succeed(t, insert(ctx, p, "first", "majority"))
	from := newest(t, p)
	for i := range 200 {
		must.Succeed(t, insert(ctx, p, fmt.Sprint("d", i), 1))
	}
	must.Succeed(t, set.AwaitSynced(ctx))
	sizes := &replySizes{Caller: connect(t, p)}
	r := must.Get(NewReader(ReaderConfig{ReplyBytes: 50 * firstEntry}))(t)
	entries := 0
	_, err := r.Tail(ctx, "a", sizes, from, false, func(_ context.Context, r oplog.Reply) error {
		if entries += len(r.Entries); entries >= 200 {
			return errOver
		}
		return nil
	})
	if !errors.Is(err, errOver) {
		t.Error(err)
	}
	if sizes.asked[0] != 50 || slices.Max(sizes.asked) < 100 {
		t.Errorf("asked for %v entries, want 50 and then more", sizes.asked)
	}
}

// replySizes records the batch sizes that are asked for.
type replySizes struct {
	mongo.Caller
	asked []int32
}

func (s *replySizes) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if n, ok := cmd.Body.Lookup("batchSize").Int32OK(); ok {
		s.asked = append(s.asked, n)
	}
	return s.Caller.Call(ctx, cmd)
}
