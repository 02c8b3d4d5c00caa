package mongosim

import (
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

// TestKillLosesWrites: writes that were not durable when a member was killed are
// gone from it, unless a majority had it.
func TestKillLosesWrites(t *testing.T) {
	t.Parallel()
	// On a slow machine the journal may overtake the kill: then it lags more.
	for delay := 300 * time.Millisecond; !killLosesWrites(t, delay); delay *= 2 {
		t.Logf("the write was durable before the kill, %s after it", delay)
	}
}

// killLosesWrites reports false if the write may have become durable before the kill.
func killLosesWrites(t *testing.T, delay time.Duration) bool {
	t.Helper()
	ctx := within(t)
	s := quick(t, Options{Members: 3, Seed: 1, JournalDelay: delay, ElectionTimeout: 5 * time.Second})
	p := s.Primary()
	c := dial(t, p)
	succeed(t, c.insert(ctx, "kept", majority))
	s.Isolate(p.ID())
	start := time.Now()
	succeed(t, c.insert(ctx, "lost", w(1)))
	before := view(t, p)
	succeed(t, p.Kill())
	if time.Since(start) >= delay {
		return false
	}
	entries := p.Oplog(bson.Timestamp{})
	if last := optimeOf(entries[len(entries)-1]); !last.Before(before.Applied) {
		t.Errorf("the oplog still ends at %s", last)
	}
	s.HealAll()
	now := must[*Member](t)(s.AwaitPrimary(ctx))
	succeed(t, dial(t, now).insert(ctx, "new", majority))
	succeed(t, p.Start())
	succeed(t, s.AwaitReady(ctx))
	succeed(t, s.AwaitSynced(ctx))
	for _, m := range s.Members() {
		if got := ids(dump(t, m, "app", "c")); !slices.Equal(got, []string{"kept", "new"}) {
			t.Errorf("member %d has %s", m.ID(), got)
		}
	}
	if v := view(t, p); v.RBID != before.RBID+1 {
		t.Errorf("rbid %d after a kill, before %d: an unclean shutdown raises it by one", v.RBID, before.RBID)
	}
	return true
}

// TestKillAll: an acknowledged majority write survives the death of all members,
// although the journals lag.
func TestKillAll(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	s := quick(t, Options{Members: 3, Seed: 2, JournalDelay: 20 * time.Millisecond})
	c := dial(t, s.Primary())
	var acknowledged []string
	for i := range 10 {
		id := string(rune('a' + i))
		succeed(t, c.insert(ctx, id, majority))
		acknowledged = append(acknowledged, id)
	}
	for _, m := range s.Members() {
		succeed(t, m.Kill())
	}
	for _, m := range s.Members() {
		succeed(t, m.Start())
	}
	must[*Member](t)(s.AwaitPrimary(ctx))
	succeed(t, s.AwaitReady(ctx))
	succeed(t, s.AwaitSynced(ctx))
	for _, m := range s.Members() {
		if got := ids(dump(t, m, "app", "c")); !slices.Equal(got, acknowledged) {
			t.Errorf("member %d has %s, want %s", m.ID(), got, acknowledged)
		}
	}
}

// tail is a tailable cursor on a member's oplog.
type tail struct {
	*client
	id  int64
	got []bson.Raw
}

func tailFrom(t *testing.T, m *Member, from bson.Timestamp, level string) *tail {
	t.Helper()
	c := dial(t, m)
	reply := c.run(within(t), "local", bson.D{
		{Key: "find", Value: "oplog.rs"},
		{Key: "filter", Value: bson.D{{Key: "ts", Value: bson.D{{Key: "$gte", Value: from}}}}},
		{Key: "tailable", Value: true},
		{Key: "awaitData", Value: true},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: level}}},
		nearest,
	})
	return &tail{c, reply.Lookup("cursor", "id").Int64(), batch(t, reply, "firstBatch")}
}

// more reads what there is; the cursor's error, if it has ended.
func (c *tail) more(t *testing.T) error {
	t.Helper()
	reply, err := c.call(within(t), "local", bson.D{
		{Key: "getMore", Value: c.id}, {Key: "collection", Value: "oplog.rs"}, {Key: "maxTimeMS", Value: 50},
	})
	if err == nil {
		c.got = append(c.got, batch(t, reply, "nextBatch")...)
	}
	return err
}

// inserted are the _ids that entries insert.
func inserted(entries []bson.Raw) []string {
	return ids(slices.DeleteFunc(slices.Clone(entries), func(e bson.Raw) bool { return e.Lookup("op").StringValue() != "i" }), "o")
}

// TestRollback repeats what a real set was recorded doing: the old primary alone
// has six entries, the others continue, and it rolls back. The logs are those of
// the recording, in shape.
func TestRollback(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	s := StartTest(t, Options{Members: 3, Seed: 3, ElectionTimeout: 5 * time.Second}) // until then it writes entries that will be rolled back
	old := s.Primary()
	write := retryable(dial(t, old), 1)
	for i := range 5 {
		write(int32(i), majority)
	}
	succeed(t, s.AwaitSynced(ctx))
	common := view(t, old).Applied
	local, major := tailFrom(t, old, common.TS, "local"), tailFrom(t, old, common.TS, "majority")
	rbid, term := view(t, old).RBID, view(t, old).Term

	s.Isolate(old.ID())
	write = retryable(local.client, 2)
	lost := []string{"lost-0", "lost-1", "lost-2", "lost-3", "lost-4"}
	for _, id := range lost {
		write(id, w(1))
	}
	local.run(ctx, "rb", bson.D{
		{Key: "update", Value: "c"},
		{Key: "lsid", Value: session(2)},
		{Key: "txnNumber", Value: int64(99)},
		{Key: "writeConcern", Value: w(1)},
		{Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 0}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "lost", Value: true}}}}}}}},
	})
	before := old.Oplog(common.TS)
	now, err := s.AwaitNewPrimary(ctx, old)
	succeed(t, err)
	readsOfLevels(ctx, t, old, common.TS, lost)
	succeed(t, local.more(t))
	succeed(t, major.more(t))
	if got := inserted(local.got); !slices.Equal(got[1:], lost) {
		t.Errorf("the local tail got %s", got)
	}
	if got := inserted(major.got); len(got) != 1 {
		t.Errorf("the majority tail got %s", got)
	}
	write = retryable(dial(t, now), 3)
	kept := []string{"kept-0", "kept-1", "kept-2", "kept-3"}
	for _, id := range kept {
		write(id, majority)
	}
	s.HealAll()
	eventually(ctx, t, "the old primary has rolled back", func() bool { return view(t, old).RBID > rbid })
	succeed(t, s.AwaitReady(ctx))
	succeed(t, s.AwaitSynced(ctx))

	rolledBack(ctx, t, old, rbid, term, kept)
	// Neither connections nor cursors outlive the rollback.
	if err := local.more(t); !broken(err) {
		t.Errorf("a connection of before the rollback: %v, want it broken", err)
	}
	local.client = dial(t, old)
	wantCode(t, "the tail of before the rollback", local.more(t), servererr.QueryPlanKilled)
	if got := inserted(major.got); slices.ContainsFunc(got, func(id string) bool { return strings.HasPrefix(id, "lost") }) {
		t.Errorf("the majority tail got %s", got)
	}

	sameLogs(t, before, old.Oplog(common.TS), now.Oplog(common.TS))
}

func readsOfLevels(ctx context.Context, t *testing.T, old *Member, since bson.Timestamp, lost []string) {
	t.Helper()
	// Plain or tailable, local reads show uncommitted data, majority reads never do.
	c := dial(t, old)
	for level, want := range map[string][]string{"local": lost, "majority": nil} {
		got := inserted(c.find(ctx, "local", "oplog.rs", bson.E{Key: "readConcern", Value: bson.D{{Key: "level", Value: level}}},
			bson.E{Key: "filter", Value: bson.D{{Key: "ts", Value: bson.D{{Key: "$gt", Value: since}}}}}))
		if !slices.Equal(got, want) {
			t.Errorf("read concern %s on the isolated member shows %s, want %s", level, got, want)
		}
	}
}

// rolledBack checks the data of a former primary.
func rolledBack(ctx context.Context, t *testing.T, old *Member, rbid int, term int64, kept []string) {
	t.Helper()
	if v := view(t, old); v.Term <= term || v.State != oplog.MemberSecondary {
		t.Errorf("the old primary is %s in term %d", v.State, v.Term)
	}
	reply := dial(t, old).run(ctx, "admin", bson.D{{Key: "replSetGetRBID", Value: 1}})
	if n := reply.Lookup("rbid").Int32(); int(n) != rbid+1 {
		t.Errorf("rbid %d, before %d", n, rbid)
	}
	docs := dump(t, old, "rb", "c")
	if want := append([]string{`{"$numberInt":"0"}`, `{"$numberInt":"1"}`, `{"$numberInt":"2"}`, `{"$numberInt":"3"}`, `{"$numberInt":"4"}`}, kept...); !slices.Equal(ids(docs), want) {
		t.Errorf("after the rollback: %s", docs)
	}
	for _, doc := range docs {
		if doc.Lookup("lost").Type != 0 {
			t.Errorf("the update was not rolled back: %s", doc)
		}
	}
}

// sameLogs compares the log of the former primary, before and after, with the new one's
// and with recordings.
func sameLogs(t *testing.T, before, after, newer []bson.Raw) {
	t.Helper()
	if diff := cmp.Diff(newer, after); diff != "" {
		t.Errorf("the logs of the old and the new primary differ: %s", diff)
	}
	for name, entries := range map[string][]bson.Raw{"old-primary-before": before, "new-primary": newer, "old-primary-after": after} {
		want := recording(t, name)
		// More may follow than was recorded.
		if diff := cmp.Diff(want, shapes(entries[:min(len(want), len(entries))])); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func session(n byte) bson.D {
	return bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: append(make([]byte, 15), n)}}}
}

// retryable inserts one document after the other into rb.c, in one session.
func retryable(c *client, n byte) func(id any, concern bson.D) {
	txn := int64(0)
	return func(id any, concern bson.D) {
		c.t.Helper()
		txn++
		c.run(within(c.t), "rb", bson.D{
			{Key: "insert", Value: "c"},
			{Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: id}}}},
			{Key: "lsid", Value: session(n)},
			{Key: "txnNumber", Value: txn},
			{Key: "writeConcern", Value: concern},
		})
	}
}

// shapes are the operations of entries, with the names and types of their fields.
func shapes(entries []bson.Raw) []string {
	var list []string
	for _, e := range entries {
		elems, _ := e.Elements()
		shape := []string{e.Lookup("op").StringValue() + " of " + e.Lookup("ns").StringValue()}
		for _, el := range elems {
			shape = append(shape, el.Key()+" "+el.Value().Type.String())
		}
		list = append(list, strings.Join(shape, ", "))
	}
	return list
}

func recording(t *testing.T, name string) []string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", "rollback", name+".bson"))
	succeed(t, err)
	var entries []bson.Raw
	for len(raw) > 0 {
		n := binary.LittleEndian.Uint32(raw)
		entries = append(entries, raw[:n])
		raw = raw[n:]
	}
	return shapes(entries)
}
