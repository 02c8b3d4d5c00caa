package mongosim

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/oplog"
)

// TestStatus: what a member reports is its own, and its oplog can be read by timestamp,
// also while it is down.
func TestStatus(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	const late = time.Hour
	s := quick(t, Options{MemberOptions: []MemberOptions{{}, {NoPriority: true}}, Seed: 5, JournalDelay: late})
	p, other := s.Primary(), s.Member(1)
	succeed(t, dial(t, p).insert(ctx, 1, w(2)))

	status, up := p.Status()
	if !up || status.State != oplog.MemberPrimary || !status.Writable || status.Term != 1 || status.SyncSource != "" || status.ConfigVersion != 1 {
		t.Errorf("the primary: %+v", status)
	}
	if !status.LastDurable.Before(status.LastApplied) || status.CommitPoint.After(status.LastApplied) {
		t.Errorf("nothing is durable yet: %+v", status)
	}
	second, up := other.Status()
	if !up || second.State != oplog.MemberSecondary || second.Writable || second.SyncSource != p.Host() || second.LastApplied.Before(status.LastApplied) {
		t.Errorf("the secondary: %+v", second)
	}

	all := other.Oplog(bson.Timestamp{})
	last := optimeOf(all[len(all)-1])
	if tail := other.Oplog(last.TS); len(all) < 2 || len(tail) != 1 || string(tail[0]) != string(all[len(all)-1]) {
		t.Errorf("%d entries, %d from %s on", len(all), len(tail), last)
	}
	succeed(t, other.Stop(ctx))
	if _, up := other.Status(); up {
		t.Error("a member that is down has a status")
	}
	if down := other.Oplog(bson.Timestamp{}); len(down) != len(all) {
		t.Errorf("%d entries, %d while it is down", len(all), len(down))
	}
}

// TestIsolate: a member that is isolated reaches no other one, and clients reach it; a
// member that rejoins is a secondary of the primary that the others have elected.
func TestIsolate(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	s := quick(t, Options{Members: 3, Seed: 6, ElectionTimeout: 5 * time.Second}) // until then it accepts a write
	old := s.Primary()
	s.Isolate(old.ID())
	succeed(t, dial(t, old).insert(ctx, 1, w(1)))
	now, err := s.AwaitNewPrimary(ctx, old)
	succeed(t, err)
	if now == nil || now == old {
		t.Fatalf("the new primary is %v", now)
	}
	succeed(t, dial(t, now).insert(ctx, 2, w(2)))
	s.Rejoin(old.ID())
	succeed(t, dial(t, now).insert(ctx, 3, w(3)))
	if status, _ := old.Status(); status.State != oplog.MemberSecondary || status.RollbackID < 2 {
		t.Errorf("the old primary: %+v", status)
	}
}
