package progress

import (
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
)

// TestManyCollections: 10,000 of them, and as many void ones to drop.
func TestManyCollections(t *testing.T) {
	t.Parallel()
	ctx := t.Context() // no limit of its own: so many documents take as long as the machine needs
	g, s, h := copying(t, mongosim.Options{Members: 1, Seed: 1}, 1)
	const n = 10_000
	list := make([]Collection, n)
	for i := range list {
		list[i] = collection(i)
	}
	for number := int64(2); number <= 3; number++ {
		started := time.Now()
		must.Succeed(t, h.AddCollections(ctx, list))
		added := time.Now()
		colls, ranges := copies(ctx, t, h)
		t.Logf("%v to add them, %v to read them", added.Sub(started), time.Since(added))
		if len(colls) != n || len(ranges) != 0 {
			t.Fatalf("%d collections, %d ranges", len(colls), len(ranges))
		}
		if !slices.EqualFunc(list, colls, func(a, b Collection) bool { return a.UUID == b.UUID && a.NS == b.NS }) {
			t.Error("they are other ones")
		}
		c := firstCopy()
		c.Number = number
		must.Succeed(t, h.BeginCopy(ctx, *c, 1))
		h = acquired(t)(s.Acquire(ctx, h.Term()))
	}
	// Documents of another link, or of a copy that is not void, stay.
	other := must.Get(checkpoint.New(checkpoint.Config{Target: g, Link: "a-b"}))(t)
	must.Succeed(t, other.Create(ctx, copyState(1)))
	h2 := acquired(t)(other.Acquire(ctx, 0))
	must.Succeed(t, h2.AddCollections(ctx, list[:3]))
	must.Succeed(t, h.AddCollections(ctx, list[:5]))
	started := time.Now()
	must.Succeed(t, h.DropCopies(ctx, 2))
	t.Logf("%v to drop half of them", time.Since(started))
	count := func(of func(dst []byte) []byte) int {
		t.Helper()
		reply := must.Get(g.Call(ctx, metadata.Find("replicator", metadata.Copies, 100_000, of, "number")))(t)
		return len(must.Get(metadata.Found(reply))(t))
	}
	if first, second := count(metadata.Below("a/1")), count(metadata.Below("a/2")); first != 0 || second != n {
		t.Errorf("%d of copy 1 and %d of copy 2 are left", first, second)
	}
	must.Succeed(t, h.DropCopies(ctx, 3))
	colls, _ := copies(ctx, t, h)
	others, _ := copies(ctx, t, h2)
	if left := count(nothing); len(colls) != 5 || len(others) != 3 || left != 8 {
		t.Errorf("%d and %d of %d documents are left", len(colls), len(others), left)
	}
}

// TestManyRanges: more ranges than fit into one command, or one reply.
func TestManyRanges(t *testing.T) {
	t.Parallel()
	ctx := t.Context() // no limit of its own: so many documents take as long as the machine needs
	_, _, h := copying(t, mongosim.Options{Members: 1, Seed: 1}, 1)
	want := make([]Range, 2*metadata.ChunkDocs+3)
	for i := range want {
		want[i] = part(1, i)
	}
	c := collection(1)
	must.Succeed(t, h.Lane(0).SaveCollection(ctx, &c, want))
	_, got := copies(ctx, t, h)
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestRemovedCopy: the remains of a removed link are not used by a new link of the same
// name.
func TestRemovedCopy(t *testing.T) {
	t.Parallel()
	ctx := t.Context() // no limit of its own: so many documents take as long as the machine needs
	g, s, h := copying(t, mongosim.Options{Members: 1, Seed: 1}, 1)
	must.Succeed(t, h.AddCollections(ctx, []Collection{collection(1)}))
	must.Fail(t, s.Create(ctx, copyState(1)), checkpoint.ErrExists)
	if colls, _ := copies(ctx, t, h); len(colls) != 1 {
		t.Error("a Create that failed dropped the copy")
	}
	must.Get(g.Call(ctx, metadata.Delete("replicator", metadata.Links, metadata.ByID("a"))))(t)
	must.Succeed(t, s.Create(ctx, copyState(1)))
	h = acquired(t)(s.Acquire(ctx, 0))
	if colls, ranges := copies(ctx, t, h); len(colls)+len(ranges) != 0 {
		t.Errorf("%d collections and %d ranges of a link before", len(colls), len(ranges))
	}
}
