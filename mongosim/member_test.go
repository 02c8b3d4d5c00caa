package mongosim

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

func texts(t *testing.T, v bson.RawValue) []string {
	t.Helper()
	var list []string
	if v.Type != 0 {
		succeed(t, v.Unmarshal(&list))
	}
	return list
}

// TestKindsOfMembers has one set with one member of each kind.
func TestKindsOfMembers(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	const hidden, arbiter, bare, mute = 2, 3, 4, 5
	s := quick(t, Options{Seed: 1, MemberOptions: []MemberOptions{
		{}, {}, {Hidden: true, NoPriority: true}, {Arbiter: true}, {NoIndexes: true, NoPriority: true}, {NonVoting: true, NoPriority: true},
	}})
	host := func(i int) string { return s.Member(i).Host() }
	p := s.Primary()
	c := dial(t, p)
	c.run(ctx, "app", bson.D{{Key: "createIndexes", Value: "c"}, {Key: "indexes", Value: bson.A{
		bson.D{{Key: "key", Value: bson.D{{Key: "x", Value: 1}}}, {Key: "name", Value: "x_1"}},
	}}})
	// All members with data: the two that may be primary, and three others.
	succeed(t, c.insert(ctx, 1, w(5)))
	wantCode(t, "w: 6 with five data-bearing members", c.insert(ctx, 2, w(6)), servererr.UnsatisfiableWriteConcern)

	succeed(t, s.AwaitSynced(ctx)) // writes that failed their write concern are there too

	hello := c.run(ctx, "admin", bson.D{{Key: "hello", Value: 1}})
	if got, want := texts(t, hello.Lookup("hosts")), []string{host(0), host(1)}; !slices.Equal(got, want) {
		t.Errorf("hosts %s, want %s", got, want)
	}
	if got, want := texts(t, hello.Lookup("passives")), []string{host(bare), host(mute)}; !slices.Equal(got, want) {
		t.Errorf("passives %s, want %s", got, want)
	}
	if got, want := texts(t, hello.Lookup("arbiters")), []string{host(arbiter)}; !slices.Equal(got, want) {
		t.Errorf("arbiters %s, want %s", got, want)
	}
	if strings.Contains(s.URI(), host(hidden)) || strings.Contains(s.URI(), host(arbiter)) || !strings.Contains(s.URI(), host(mute)) {
		t.Errorf("URI %s", s.URI())
	}

	// The hidden member says so and can be read from.
	h := dial(t, s.Member(hidden))
	hello = h.run(ctx, "admin", bson.D{{Key: "hello", Value: 1}})
	if !hello.Lookup("hidden").Boolean() || !hello.Lookup("secondary").Boolean() {
		t.Errorf("hello of a hidden member: %s", hello)
	}
	if n := len(h.find(ctx, "app", "c")); n != 2 {
		t.Errorf("%d documents on the hidden member, want 2", n)
	}

	// The arbiter has a vote and no data.
	a := dial(t, s.Member(arbiter))
	if v := view(t, s.Member(arbiter)); v.State != oplog.MemberArbiter || !v.Applied.IsNull() || v.Source != "" {
		t.Errorf("the arbiter is %s at %s, source %q", v.State, v.Applied, v.Source)
	}
	_, err := a.call(ctx, "app", bson.D{{Key: "find", Value: "c"}, nearest})
	wantCode(t, "find on an arbiter", err, servererr.NotPrimaryOrSecondary)
	if n := len(s.Member(arbiter).Oplog(bson.Timestamp{})); n != 0 {
		t.Errorf("the arbiter has %d entries", n)
	}

	// buildIndexes: false has the collection, and the index on _id only.
	listed := batch(t, dial(t, s.Member(bare)).run(ctx, "app", bson.D{{Key: "listIndexes", Value: "c"}, nearest}), "firstBatch")
	if len(listed) != 1 || listed[0].Lookup("name").StringValue() != "_id_" {
		t.Errorf("indexes of the member that builds none: %s", listed)
	}
	if n := len(dump(t, s.Member(mute), "app", "c")); n != 2 {
		t.Errorf("%d documents on the member without a vote, want 2", n)
	}
	electWithArbiter(ctx, t, s)
}

// electWithArbiter: voters are 0 to 4. With 1, 4 and the arbiter's vote a majority is
// left that can elect, and commit with the hidden member.
func electWithArbiter(ctx context.Context, t *testing.T, s *Set) {
	t.Helper()
	const hidden, arbiter, bare, mute = 2, 3, 4, 5
	p := s.Primary()
	succeed(t, p.Kill())
	succeed(t, s.Member(mute).Kill())
	other := others(s, p)[0]
	if now := must[*Member](t)(s.AwaitPrimary(ctx)); now != other {
		t.Errorf("member %d is primary, want %d", now.ID(), other.ID())
	}
	succeed(t, dial(t, other).insert(ctx, 3, majority))
	var term int64
	for _, m := range []int{hidden, arbiter, bare} {
		term = max(term, view(t, s.Member(m)).Term)
	}
	if now := view(t, other).Term; term != now {
		t.Errorf("terms %d and %d", term, now)
	}
}

// TestDelayed: a delayed member lags by its delay, and not by much more.
func TestDelayed(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	s := quick(t, Options{Seed: 2, MemberOptions: []MemberOptions{{}, {}, {NoPriority: true, Delay: 2 * time.Second}}})
	p, late := s.Primary(), s.Member(2)
	c := dial(t, p)
	start := time.Now()
	succeed(t, c.insert(ctx, "x", majority))
	if d := time.Since(start); d > time.Second {
		t.Errorf("a majority needed %s: it waited for the delayed member", d)
	}
	at := view(t, p).Applied
	eventually(ctx, t, "the delayed member is there", func() bool { return !view(t, late).Applied.Before(at) })
	if d := time.Since(start); d < time.Second || d > 5*time.Second {
		// Entries count in whole seconds: at the least one and a bit.
		t.Errorf("the delayed member was there after %s, want about 2s", d)
	}
	if n := len(dump(t, late, "app", "c")); n != 1 {
		t.Errorf("%d documents on the delayed member", n)
	}
}

// TestTags: modes of getLastErrorModes count different values of a tag.
func TestTags(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	tag := func(dc string) MemberOptions { return MemberOptions{Tags: map[string]string{"dc": dc}} }
	s := quick(t, Options{
		Seed: 3, MemberOptions: []MemberOptions{tag("a"), tag("a"), tag("b")},
		WriteConcernModes: map[string]map[string]int{"two": {"dc": 2}},
	})
	two := func(timeout int32) bson.D { return bson.D{{Key: "w", Value: "two"}, {Key: "wtimeout", Value: timeout}} }
	p := s.Primary()
	c := dial(t, p)
	succeed(t, c.insert(ctx, 1, two(10000)))
	wantCode(t, "a mode that is not there", c.insert(ctx, 2, bson.D{{Key: "w", Value: "nine"}}), servererr.UnknownReplWriteConcern)
	// Without whom there is one value left only.
	alone := s.Member(2)
	if p == alone {
		succeed(t, s.StepDown(ctx))
		p = must[*Member](t)(s.AwaitPrimary(ctx))
		c = dial(t, p)
	}
	succeed(t, alone.Stop(ctx))
	succeed(t, c.insert(ctx, 3, w(2)))
	wantCode(t, "without one data center", c.insert(ctx, 4, two(200)), servererr.WriteConcernTimeout)
	succeed(t, alone.Start())
	succeed(t, c.insert(ctx, 5, two(10000)))
}

// TestPriority: the member of the highest priority takes over once it has caught up.
func TestPriority(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	s := quick(t, Options{Seed: 4, MemberOptions: []MemberOptions{{Priority: 1}, {Priority: 2}, {Priority: 10}}})
	eventually(ctx, t, "the best member is primary", func() bool { return s.Primary() == s.Member(2) })
	succeed(t, dial(t, s.Member(2)).insert(ctx, 1, majority))
	succeed(t, s.Member(2).Kill())
	eventually(ctx, t, "the second best is primary", func() bool { return s.Primary() == s.Member(1) })
	succeed(t, dial(t, s.Member(1)).insert(ctx, 2, majority))
	succeed(t, s.Member(2).Start())
	eventually(ctx, t, "the best member took over", func() bool { return s.Primary() == s.Member(2) })
	if n := len(dump(t, s.Member(2), "app", "c")); n != 2 {
		t.Errorf("%d documents, want 2", n)
	}
}
