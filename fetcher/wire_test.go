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

// TestTailWire follows writes on a primary and on a secondary at once.
func TestTailWire(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: 1, ElectionTimeout: 10 * time.Second})
	ctx := within(t)
	p := set.Primary()
	must.Succeed(t, insert(ctx, p, "first", "majority"))
	must.Succeed(t, set.AwaitSynced(ctx))
	from := newest(t, p)
	var tails []*reading
	for _, m := range set.Members() {
		tails = append(tails, read(t, ReaderConfig{}, connect(t, m), from))
	}
	var want []string
	for i := range 50 {
		id := fmt.Sprint("d", i)
		want = append(want, id)
		must.Succeed(t, insert(ctx, p, id, 1))
	}
	for i, r := range tails {
		got := r.await(len(want))
		if i < 3 && !slices.Equal(got, want) {
			t.Errorf("member %d gave %s", i, got)
		}
		res, err := r.end()
		if !errors.Is(err, errOver) || res.Last != r.last || !res.Emitted {
			t.Errorf("the end: %+v, %v", res, err)
		}
	}
}

// TestLeastPrivilege reads as a user that may read local and monitor, and may not do
// anything else.
func TestLeastPrivilege(t *testing.T) {
	set := mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 2, Users: []mongosim.User{
		{Name: "mirror", Password: "secret", Roles: []mongosim.Role{{Name: "read", DB: "local"}, {Name: "clusterMonitor", DB: "admin"}}},
		{Name: "nobody", Password: "secret"},
	}})
	ctx := within(t)
	p := set.Primary()
	from := newest(t, p)
	src := connect(t, p, "mirror:secret@")
	r := read(t, ReaderConfig{}, src, from)
	must.Succeed(t, insert(ctx, p, "one", 1))
	r.await(1)
	if _, err := r.end(); !errors.Is(err, errOver) {
		t.Error(err)
	}
	if _, err := src.Call(ctx, mongo.Command{DB: "app", Body: marshal(bson.D{{Key: "find", Value: "c"}})}); err == nil {
		t.Error("the user can read more than local")
	}
	src = connect(t, p, "nobody:secret@")
	if _, err := read(t, ReaderConfig{}, src, from).wait(); err == nil || errors.Is(err, errOver) {
		t.Errorf("without a role: %v", err)
	}
}

// TestRollbackWire repeats what a real set was seen doing: a primary that is cut off
// writes what nobody else has, and is rolled back. None of that is ever handed on.
func TestRollbackWire(t *testing.T) {
	t.Parallel()
	// The writes that are lost come before the primary notices that it is cut off.
	set := mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: 3, ElectionTimeout: 5 * time.Second})
	ctx := within(t)
	old := set.Primary()
	must.Succeed(t, insert(ctx, old, "common", "majority"))
	must.Succeed(t, set.AwaitSynced(ctx))
	from := newest(t, old)
	r := read(t, ReaderConfig{restarts: 3}, connect(t, old), from)
	must.Succeed(t, insert(ctx, old, "known", "majority"))
	r.await(1)
	set.Isolate(old.ID())
	for i := range 6 {
		must.Succeed(t, insert(ctx, old, fmt.Sprint("lost-", i), 1))
	}
	now, err := set.AwaitNewPrimary(ctx, old)
	must.Succeed(t, err)
	var kept []string
	for i := range 4 {
		kept = append(kept, fmt.Sprint("kept-", i))
		must.Succeed(t, insert(ctx, now, kept[i], "majority"))
	}
	set.HealAll()
	// The member is restarted from, or left for another one, as the attempt would.
	var ids []string
	for len(ids) < 1+len(kept) {
		select {
		case <-r.done:
			var lost *mongo.LostError
			if !errors.As(r.err, &lost) && !errors.Is(r.err, ErrSourceBehind) && !errors.Is(r.err, ErrRolledBack) && !isRefusal(r.err) {
				t.Fatalf("the tail has ended: %v", r.err)
			}
			next := read(t, ReaderConfig{}, connect(t, old), r.res.Last)
			next.ids = r.ids
			r = next
		case <-time.After(20 * time.Millisecond):
		}
		r.mu.Lock()
		ids = slices.Clone(r.ids)
		r.mu.Unlock()
		must.Succeed(t, ctx.Err())
	}
	if want := append([]string{"known"}, kept...); !slices.Equal(ids, want) {
		t.Errorf("handed on were %s, want %s", ids, want)
	}
	if v, _ := old.Status(); v.RollbackID < 2 {
		t.Errorf("rbid %d: nothing was rolled back", v.RollbackID)
	}
}

func isRefusal(err error) bool { return restartable(err) }

// TestForeignHistory: an entry that was rolled back is not in any member's oplog.
func TestForeignHistory(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 4})
	ctx := within(t)
	p := set.Primary()
	must.Succeed(t, insert(ctx, p, "a", 1))
	from := newest(t, p)
	must.Succeed(t, insert(ctx, p, "b", 1))
	for what, bad := range map[string]oplog.OpTime{
		"another term":      {TS: from.TS, Term: from.Term - 1},
		"another increment": oplog.NewOpTime(from.TS.T-1, 99, from.Term),
	} {
		_, err := read(t, ReaderConfig{}, connect(t, p), bad).wait()
		missing, ok := errors.AsType[*StartMissingError](err)
		stale, isStale := errors.AsType[*TooStaleError](err)
		if !ok && !isStale {
			t.Errorf("%s: %v", what, err)
		}
		if ok && missing.Want != bad || isStale && stale.Want != bad {
			t.Errorf("%s: %v", what, err)
		}
	}
	ahead := oplog.NewOpTime(from.TS.T+1000, 1, from.Term)
	if _, err := read(t, ReaderConfig{}, connect(t, p), ahead).wait(); !errors.Is(err, ErrSourceBehind) {
		t.Errorf("ahead of the member: %v", err)
	}
}

// TestRollover: an oplog that is too small for a reader that pauses.
func TestRollover(t *testing.T) {
	set := mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 5, OplogBytes: 64 << 10})
	ctx := within(t)
	p := set.Primary()
	from := newest(t, p)
	for i := range 1500 {
		must.Succeed(t, insert(ctx, p, fmt.Sprint("d", i), 1))
	}
	_, err := read(t, ReaderConfig{}, connect(t, p), from).wait()
	stale, ok := errors.AsType[*TooStaleError](err)
	if !ok || stale.Want != from || !stale.Oldest.After(from) || !errors.Is(err, ErrTooStale) {
		t.Errorf("after the rollover: %v", err)
	}
}

// TestStepDown: a step-down does not end a tail, on whichever member.
func TestStepDown(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: 6, ElectionTimeout: 10 * time.Second})
	ctx := within(t)
	must.Succeed(t, set.AwaitSynced(ctx))
	from := newest(t, set.Primary())
	var tails []*reading
	for _, m := range set.Members() {
		tails = append(tails, read(t, ReaderConfig{}, connect(t, m), from))
	}
	must.Succeed(t, insert(ctx, set.Primary(), "before", "majority"))
	must.Succeed(t, set.StepDown(ctx))
	p, err := set.AwaitPrimary(ctx)
	must.Succeed(t, err)
	must.Succeed(t, insert(ctx, p, "after", "majority"))
	for _, r := range tails {
		if got := r.await(2); !slices.Equal(got, []string{"before", "after"}) {
			t.Errorf("came %s", got)
		}
	}
}

// TestKillWire: a member that dies ends its tail, and the next one goes on with
// another member from there.
func TestKillWire(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: 7, ElectionTimeout: 5 * time.Second})
	ctx := within(t)
	must.Succeed(t, set.AwaitSynced(ctx))
	p := set.Primary()
	r := read(t, ReaderConfig{}, connect(t, p), newest(t, p))
	must.Succeed(t, insert(ctx, p, "before", "majority"))
	r.await(1)
	must.Succeed(t, p.Kill())
	res, err := r.wait()
	if !isLost(err) && !isRefusal(err) && err == nil {
		t.Errorf("the tail of a dead member: %v", err)
	}
	now, err := set.AwaitNewPrimary(ctx, p)
	must.Succeed(t, err)
	must.Succeed(t, insert(ctx, now, "after", "majority"))
	next := read(t, ReaderConfig{}, connect(t, now), res.Last)
	if got := next.await(1); !slices.Equal(got, []string{"after"}) {
		t.Errorf("the next member gave %s", got)
	}
}

// TestFreeze: a member that does not answer any more.
func TestFreeze(t *testing.T) {
	set := mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 8})
	ctx := within(t)
	p := set.Primary()
	cfg := ReaderConfig{AwaitTime: 100 * time.Millisecond, networkTime: 100 * time.Millisecond, refindTime: 50 * time.Millisecond}
	r := read(t, cfg, connect(t, p), newest(t, p))
	must.Succeed(t, insert(ctx, p, "before", 1))
	r.await(1)
	p.Freeze()
	defer p.Thaw()
	if _, err := r.wait(); !isLost(err) {
		t.Errorf("the tail of a frozen member: %v", err)
	}
}

// TestLeavesNothing: a tail that ends leaves no cursor open.
func TestLeavesNothing(t *testing.T) {
	set := mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 9, Moods: mongosim.MoodsWithout("no-status", "it counts the open cursors")})
	ctx := within(t)
	p := set.Primary()
	for tries := 1; ; tries++ {
		r := read(t, ReaderConfig{}, connect(t, p), newest(t, p))
		must.Succeed(t, insert(ctx, p, fmt.Sprint("one", tries), 1))
		r.await(1)
		if open := openCursors(ctx, t, p); open != 1 {
			t.Errorf("%d cursors are open while it reads", open)
		}
		start := time.Now()
		if _, err := r.end(); !errors.Is(err, errOver) {
			t.Error(err)
		}
		took := time.Since(start)
		if open := openCursors(ctx, t, p); open != 0 {
			t.Errorf("%d cursors are open after the end", open)
		}
		// The machine may be slow, but not each time.
		if took <= leaveTime/2 {
			return
		} else if tries == 20 {
			t.Fatalf("it took %s to leave", took)
		}
	}
}

func openCursors(ctx context.Context, t *testing.T, m *mongosim.Member) int64 {
	t.Helper()
	reply, err := m.Call(ctx, marshal(bson.D{{Key: "serverStatus", Value: 1}, {Key: "$db", Value: "admin"}}))
	must.Succeed(t, err)
	n, ok := reply.Lookup("metrics", "cursor", "open", "total").AsInt64OK()
	if !ok {
		t.Fatalf("no metrics.cursor.open.total: %s", reply)
	}
	return n
}
