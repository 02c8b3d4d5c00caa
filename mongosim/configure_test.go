package mongosim

import (
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/repl"
	"github.com/oplogrep/replicator/oplog"
)

// fill writes n documents and an index.
func fill(t *testing.T, m *Member, n int) {
	t.Helper()
	ctx := within(t)
	c := dial(t, m)
	c.run(ctx, "app", bson.D{{Key: "createIndexes", Value: "c"}, {Key: "indexes", Value: bson.A{
		bson.D{{Key: "key", Value: bson.D{{Key: "x", Value: 1}}}, {Key: "name", Value: "x_1"}},
	}}})
	docs := bson.A{}
	for i := range n {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "x", Value: i * i}})
	}
	c.run(ctx, "app", bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: docs}, {Key: "writeConcern", Value: majority}})
}

// syncID is a member's initial sync id.
func syncID(t *testing.T, m *Member) string {
	t.Helper()
	docs := dump(t, m, "local", "replset.initialSyncId")
	if len(docs) != 1 {
		t.Fatalf("initial sync ids of member %d: %s", m.ID(), docs)
	}
	return docs[0].Lookup("_id").String()
}

func indexNames(t *testing.T, m *Member) (names []string) {
	t.Helper()
	reply := must[bson.Raw](t)(m.Call(t.Context(), body("app", bson.D{{Key: "listIndexes", Value: "c"}, nearest})))
	for _, doc := range batch(t, reply, "firstBatch") {
		names = append(names, doc.Lookup("name").StringValue())
	}
	return names
}

// TestElectFirst: a member that loses the first election stands again, however long the election
// timeout is.
func TestElectFirst(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	s := quick(t, Options{Members: 3, Seed: 1, ElectionTimeout: time.Hour})
	node := must[*repl.Node](t)(s.Primary().node())
	if err := node.StepDown(ctx, 2*electEvery, 0, true); err != nil {
		t.Fatal(err)
	}
	_ = node.StepUp(ctx) // it is refused, unless that time is over
	if err := s.electFirst(ctx, node); err != nil {
		t.Fatal(err)
	}
}

func TestAddMember(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	// No member takes over by itself, however busy the machine is.
	s := quick(t, Options{Members: 1, Seed: 1, ElectionTimeout: time.Minute})
	fill(t, s.Primary(), 500)
	added := must[*Member](t)(s.AddMember(ctx, MemberOptions{Tags: map[string]string{"dc": "b"}}))
	if added.ID() != 1 || s.Member(1) != added {
		t.Errorf("the added member is number %d", added.ID())
	}
	if v := view(t, added); v.State != oplog.MemberSecondary || len(v.Members) != 2 || v.Members[1].Tags["dc"] != "b" {
		t.Errorf("the added member is %s and knows %+v", v.State, v.Members)
	}
	third := must[*Member](t)(s.AddMember(ctx, MemberOptions{NoPriority: true, NonVoting: true, Hidden: true, NoIndexes: true}))
	arbiter := must[*Member](t)(s.AddMember(ctx, MemberOptions{Arbiter: true}))
	if v := view(t, arbiter); v.State != oplog.MemberArbiter {
		t.Errorf("the added arbiter is %s", v.State)
	}
	succeed(t, dial(t, s.Primary()).insert(ctx, "all", w(3)))
	want := hash(ctx, t, s.Primary())
	for _, m := range []*Member{added, third} {
		if got := hash(ctx, t, m); got != want {
			t.Errorf("dbHash of member %d is %s, want %s", m.ID(), got, want)
		}
	}
	if got := indexNames(t, added); !slices.Equal(got, []string{"_id_", "x_1"}) {
		t.Errorf("indexes of the added member: %s", got)
	}
	if got := indexNames(t, third); !slices.Equal(got, []string{"_id_"}) {
		t.Errorf("indexes of the member that builds none: %s", got)
	}
	// The old primary is not needed any more.
	first := s.Primary()
	succeed(t, s.StepDown(ctx))
	if p := must[*Member](t)(s.AwaitPrimary(ctx)); p != added {
		t.Fatalf("member %d took over", p.ID())
	}
	if err := s.RemoveMember(ctx, added.ID()); err == nil {
		t.Error("the primary was removed")
	}
	succeed(t, s.RemoveMember(ctx, first.ID()))
	if err := s.RemoveMember(ctx, first.ID()); err == nil {
		t.Error("a member was removed twice")
	}
	eventually(ctx, t, "the removed member knows", func() bool { return view(t, first).State == oplog.MemberRemoved })
	succeed(t, dial(t, added).insert(ctx, "after", w(2)))
	if v := view(t, added); len(v.Members) != 3 {
		t.Errorf("%d members are left, want 3", len(v.Members))
	}
	succeed(t, first.Stop(ctx))
	succeed(t, s.AwaitReady(ctx))
	succeed(t, s.AwaitSynced(ctx))
	if _, err := s.AddMember(ctx, MemberOptions{Hidden: true}); err == nil || len(s.Members()) != 4 {
		t.Errorf("a member that cannot be was added: %v, %d members", err, len(s.Members()))
	}
}

// TestWipe: an empty disk is filled by an initial sync, which is another one than
// before; entries only added to the log since are not enough.
func TestWipe(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	s := quick(t, Options{Members: 3, Seed: 2})
	p := s.Primary()
	fill(t, p, 100)
	m := others(s, p)[0]
	before := syncID(t, m)
	if err := m.Wipe(); err == nil {
		t.Error("a member that runs was wiped")
	}
	succeed(t, m.Stop(ctx))
	succeed(t, m.Wipe())
	if n := len(m.Oplog(bson.Timestamp{})); n != 0 {
		t.Errorf("%d entries on an empty disk", n)
	}
	succeed(t, dial(t, p).insert(ctx, "while it was down", majority))
	succeed(t, m.Start())
	eventually(ctx, t, "the member is secondary again", func() bool { return view(t, m).State == oplog.MemberSecondary })
	succeed(t, s.AwaitSynced(ctx))
	if got, want := hash(ctx, t, m), hash(ctx, t, p); got != want {
		t.Errorf("dbHash %s, want %s", got, want)
	}
	if after := syncID(t, m); after == before {
		t.Errorf("the initial sync id is %s as before", after)
	}
	// Stopped and started without that, it is the same copy.
	before = syncID(t, m)
	succeed(t, m.Kill())
	succeed(t, m.Start())
	succeed(t, s.AwaitReady(ctx))
	if after := syncID(t, m); after != before {
		t.Errorf("the initial sync id is %s after a restart, before %s", after, before)
	}
}

// TestTooStale: a member that was down for longer than the oplog reaches back
// cannot continue, reports so, and can after it was wiped.
func TestTooStale(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	s := quick(t, Options{Members: 3, Seed: 3, OplogBytes: 64 << 10})
	p := s.Primary()
	fill(t, p, 10)
	late := others(s, p)[0]
	succeed(t, late.Stop(ctx))
	first := optimeOf(p.Oplog(bson.Timestamp{})[0])
	rollOver(t, p, 200<<10)
	if now := optimeOf(p.Oplog(bson.Timestamp{})[0]); !now.After(first) {
		t.Fatalf("the oplog still begins at %s", now)
	}
	stats := dial(t, p).run(ctx, "local", bson.D{{Key: "collStats", Value: "oplog.rs"}})
	if size, _ := stats.Lookup("size").AsInt64OK(); size > 80<<10 {
		t.Errorf("the oplog has %d bytes, limited to %d", size, 64<<10)
	}
	succeed(t, late.Start())
	stale := func() bool {
		reply := must[bson.Raw](t)(late.Call(ctx, body("admin", bson.D{{Key: "replSetGetStatus", Value: 1}})))
		tooStale, _ := reply.Lookup("tooStale").BooleanOK()
		return tooStale && reply.Lookup("myState").Int32() == int32(oplog.MemberRecovering)
	}
	eventually(ctx, t, "the member is too stale", stale)
	_, err := dial(t, late).call(ctx, "app", bson.D{{Key: "find", Value: "c"}, nearest})
	wantCode(t, "find on a member that is too stale", err, servererr.NotPrimaryOrSecondary)
	before := syncID(t, late)
	succeed(t, late.Kill())
	succeed(t, late.Wipe())
	succeed(t, late.Start())
	eventually(ctx, t, "the member is secondary again", func() bool { return view(t, late).State == oplog.MemberSecondary })
	succeed(t, s.AwaitSynced(ctx))
	if got, want := hash(ctx, t, late), hash(ctx, t, p); got != want {
		t.Errorf("dbHash %s, want %s", got, want)
	}
	if syncID(t, late) == before {
		t.Error("the initial sync id is the old one")
	}
}

// rollOver writes a number of bytes in small entries.
func rollOver(t *testing.T, p *Member, size int) {
	t.Helper()
	ctx := within(t)
	c := dial(t, p)
	for n := 0; n < size; {
		docs := bson.A{}
		for range 20 {
			docs = append(docs, bson.D{{Key: "x", Value: make([]byte, 1000)}})
			n += 1000
		}
		c.run(ctx, "app", bson.D{{Key: "insert", Value: "roll"}, {Key: "documents", Value: docs}, {Key: "writeConcern", Value: majority}})
	}
}

// TestCappedPositionLost: a tail whose place in the oplog was overwritten ends with
// that error; one that keeps up does not.
func TestCappedPositionLost(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	s := StartTest(t, Options{Seed: 4, OplogBytes: 64 << 10})
	p := s.Member(0)
	open := func(batchSize int32) (*client, int64) {
		c := dial(t, p)
		reply := c.run(ctx, "local", bson.D{
			{Key: "find", Value: "oplog.rs"}, {Key: "tailable", Value: true}, {Key: "awaitData", Value: true}, {Key: "batchSize", Value: batchSize},
		})
		return c, reply.Lookup("cursor", "id").Int64()
	}
	more := func(c *client, cursor int64) error {
		_, err := c.call(ctx, "local", bson.D{{Key: "getMore", Value: cursor}, {Key: "collection", Value: "oplog.rs"}, {Key: "maxTimeMS", Value: 10}})
		return err
	}
	slow, lost := open(1)
	good, kept := open(1000)
	for range 10 {
		rollOver(t, p, 20<<10)
		succeed(t, more(good, kept))
	}
	wantCode(t, "getMore at a place that is gone", more(slow, lost), servererr.CappedPositionLost)
	wantCode(t, "getMore after that", more(slow, lost), servererr.CursorNotFound)
	// A new one begins where the oplog does now.
	first := optimeOf(p.Oplog(bson.Timestamp{})[0])
	if got := optimeOf(good.find(ctx, "local", "oplog.rs", bson.E{Key: "limit", Value: 1})[0]); got != first {
		t.Errorf("the first entry read is %s, want %s", got, first)
	}
}
