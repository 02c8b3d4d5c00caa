package mongosim

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

// TestDiskFull: what does not fit is refused and leaves nothing, neither data nor
// entries; the member continues otherwise, and the set too.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	s := quick(t, Options{Members: 3, Seed: 2})
	p := s.Primary()
	c := dial(t, p)
	c.run(ctx, "app", bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 1}}}}, {Key: "writeConcern", Value: majority}})
	before := view(t, p).Applied
	p.DiskFull(true)
	update := bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "x", Value: 1}}}}}}
	for what, cmd := range map[string]bson.D{
		"insert": {{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 2}}, bson.D{{Key: "_id", Value: 3}}}}},
		"update": {{Key: "update", Value: "c"}, {Key: "updates", Value: bson.A{update}}},
		"findAndModify": {
			{Key: "findAndModify", Value: "c"},
			{Key: "query", Value: bson.D{{Key: "_id", Value: 1}}},
			{Key: "update", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "x", Value: 1}}}}},
		},
		"create": {{Key: "create", Value: "d"}},
		"retryable insert": {
			{Key: "insert", Value: "c"},
			{Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 4}}}},
			{Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}}}},
			{Key: "txnNumber", Value: int64(1)},
		},
	} {
		_, err := c.call(ctx, "app", cmd)
		wantCode(t, what+" on a full disk", err, servererr.OutOfDiskSpace)
	}
	if docs := c.find(ctx, "app", "c"); len(docs) != 1 || docs[0].Lookup("x").Type != 0 {
		t.Errorf("after refused writes: %s", docs)
	}
	if now := view(t, p).Applied; now != before {
		t.Errorf("the refused writes left entries up to %s, after %s", now, before)
	}
	p.DiskFull(false)
	succeed(t, c.insert(ctx, 2, majority))
	c.run(ctx, "app", bson.D{
		{Key: "insert", Value: "c"},
		{Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 4}}}},
		{Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}}}},
		{Key: "txnNumber", Value: int64(1)},
	})
	if n := len(c.find(ctx, "app", "c")); n != 3 {
		t.Errorf("%d documents, want 3: the refused retryable insert was taken for done", n)
	}
}

// TestStepDownLate: a primary that a busy machine keeps from stepping down within its limits steps down all the same.
func TestStepDownLate(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	s := quick(t, Options{Seed: 4, HeartbeatInterval: time.Millisecond, ElectionTimeout: time.Millisecond})
	for range 100 {
		before := view(t, must[*Member](t)(s.AwaitPrimary(ctx))).Term
		succeed(t, s.StepDown(ctx))
		if now := view(t, must[*Member](t)(s.AwaitPrimary(ctx))).Term; now <= before {
			t.Fatalf("term %d after a step-down in term %d", now, before)
		}
	}
}

// TestClockSkew: a new primary whose clock is behind continues after the optimes
// of the old one.
func TestClockSkew(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	// The old one must not win again when its time as a secondary is over, twice the election timeout.
	s := quick(t, Options{Members: 3, Seed: 3, ElectionTimeout: time.Minute})
	old := s.Primary()
	old.SkewClock(time.Hour)
	for _, m := range others(s, old) {
		m.SkewClock(-time.Hour)
	}
	succeed(t, dial(t, old).insert(ctx, 1, majority))
	ahead := view(t, old).Applied
	if want := time.Now().Add(59 * time.Minute).Unix(); int64(ahead.TS.T) < want {
		t.Errorf("the optime %s does not follow the clock", ahead)
	}
	succeed(t, s.StepDown(ctx))
	p := must[*Member](t)(s.AwaitPrimary(ctx))
	if p == old {
		t.Fatal("the same primary again")
	}
	succeed(t, dial(t, p).insert(ctx, 2, majority))
	var last oplog.OpTime
	for i, raw := range p.Oplog(bson.Timestamp{}) {
		at := optimeOf(raw)
		if i > 0 && !at.After(last) || at.TS.Compare(last.TS) <= 0 {
			t.Errorf("entry %d: %s after %s", i, at, last)
		}
		last = at
	}
	if !last.After(ahead) {
		t.Errorf("the newest entry %s is not after %s", last, ahead)
	}
	succeed(t, s.AwaitSynced(ctx))
}

func optimeOf(entry bson.Raw) (at oplog.OpTime) {
	at.TS.T, at.TS.I = entry.Lookup("ts").Timestamp()
	at.Term = entry.Lookup("t").Int64()
	return at
}
