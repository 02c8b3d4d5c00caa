package initialsync_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/syncsource"
)

// ahead is a set under load, seen from where one member is far: as it was asked later than the others, it always reports
// newer entries than they do.
func ahead(far string, conn syncsource.Dialer) syncsource.Dialer {
	newer := telling{conn, hellos, func(reply bson.D) bson.D {
		for i := range reply {
			at, _ := reply[i].Value.(bson.D)
			for j := range at {
				if last, ok := at[j].Value.(bson.D); ok && (at[j].Key == "opTime" || at[j].Key == "lastOpApplied") {
					ts := last[0].Value.(bson.Timestamp)
					last[0].Value = bson.Timestamp{T: ts.T + 1, I: ts.I}
				}
			}
		}
		return reply
	}}
	return dialFunc(func(host string) mongo.Caller {
		if host != far {
			return conn.Member(host)
		}
		return callerFunc(func(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
			reply, err := newer.Member(host).Call(ctx, cmd)
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
			return reply, err
		})
	})
}

// TestMemberUnderLoad: while clients write, a copy begins on the member that the rules choose, and continues on another one.
func TestMemberUnderLoad(t *testing.T) {
	t.Parallel()
	set, conn, _ := membersOf(t, mongosim.MemberOptions{}, mongosim.MemberOptions{}, mongosim.MemberOptions{})
	dial := ahead(set.Primary().Host(), conn)
	w := watch(t, conn.Hosts(), dial)
	for _, mode := range []syncsource.Mode{syncsource.ModeNearest, syncsource.ModeSecondary} {
		r := must.Get(syncsource.NewResolver(syncsource.ResolverConfig{Rules: syncsource.Rules{Mode: mode, AcceptEqual: true}}, w, dial))(t)
		members := initialsync.NewMembers(initialsync.MembersConfig{Watcher: w, Resolver: r.Another(), Dialer: dial})
		c, _, err := members.Begin(t.Context())
		if err != nil || c.Host == set.Primary().Host() {
			t.Errorf("%s: a copy begins on %q (%v), and the primary is %s", mode, c.Host, err, set.Primary().Host())
		}
	}
}

// TestMemberContinuesUnderLoad: the same once the member that was read from is gone.
func TestMemberContinuesUnderLoad(t *testing.T) {
	t.Parallel()
	c := newChoice(t, time.Minute, fresh, byIDSpec, byIDAt)
	var others []string
	for _, m := range c.set.Members() {
		if m.Host() != c.was {
			others = append(others, m.Host())
		}
	}
	far, near := others[0], others[1]
	dial := dialFunc(func(host string) mongo.Caller {
		if host == c.was {
			return callerFunc(func(context.Context, mongo.Command) (bson.Raw, error) { return nil, lost(host) })
		}
		return ahead(far, c.conn).Member(host)
	})
	w := watch(t, others, dial)
	for changed := w.Changed(); w.View().ConfigUnread; changed = w.Changed() {
		<-changed
	}
	r := must.Get(syncsource.NewResolver(syncsource.ResolverConfig{Rules: syncsource.Rules{AcceptEqual: true}}, w, dial))(t)
	members := initialsync.NewMembers(initialsync.MembersConfig{Watcher: w, Resolver: r.Another(), Dialer: dial, Wait: time.Minute})
	must.Get(members.Choose(t.Context(), c.link))(t)
	if host := c.link.Copy().Host; host != near {
		t.Errorf("the copy continues on %s, want %s", host, near)
	}
}

// TestMemberSince: a copy that has to begin at or after an entry begins on a member that has it, or waits for one, but not for ever.
func TestMemberSince(t *testing.T) {
	t.Parallel()
	set, conn, _ := membersOf(t, mongosim.MemberOptions{}, mongosim.MemberOptions{}, mongosim.MemberOptions{})
	dial := ahead(set.Primary().Host(), conn)
	w := watch(t, conn.Hosts(), dial)
	var since oplog.OpTime
	for _, m := range w.View().Members {
		if m.Host == set.Primary().Host() {
			since = m.Applied
		}
	}
	members := func(mode syncsource.Mode, wait time.Duration) *initialsync.Members {
		r := must.Get(syncsource.NewResolver(syncsource.ResolverConfig{Rules: syncsource.Rules{Mode: mode, AcceptEqual: true}}, w, dial))(t)
		return initialsync.NewMembers(initialsync.MembersConfig{Watcher: w, Resolver: r.Another(), Dialer: dial, Since: since, Wait: wait})
	}
	if c, _, err := members(syncsource.ModeNearest, time.Hour).Begin(t.Context()); err != nil || c.Host != set.Primary().Host() {
		t.Errorf("a copy begins on %q (%v), and only %s has %s", c.Host, err, set.Primary().Host(), since)
	}
	waits := members(syncsource.ModeSecondary, time.Hour)
	for range 2 {
		if _, _, err := waits.Begin(t.Context()); !errors.Is(err, syncsource.ErrNoSource) {
			t.Errorf("no member that may be read has %s: %v", since, err)
		}
	}
	briefly := members(syncsource.ModeSecondary, 400*time.Millisecond)
	if _, _, err := briefly.Begin(t.Context()); !errors.Is(err, syncsource.ErrNoSource) {
		t.Errorf("no member that may be read has %s: %v", since, err)
	}
	<-time.After(50 * time.Millisecond)
	if c, _, err := briefly.Begin(t.Context()); err != nil || c.Host == set.Primary().Host() {
		t.Errorf("it has waited, and begins on %q: %v", c.Host, err)
	}
	if c, _, err := briefly.Begin(t.Context()); !errors.Is(err, syncsource.ErrNoSource) {
		t.Errorf("another copy has not waited, and begins on %q: %v", c.Host, err)
	}
}

// TestMemberSinceFails: nor does a copy begin on a member that lacks the entry because the one that has it cannot be copied.
func TestMemberSinceFails(t *testing.T) {
	t.Parallel()
	set, conn, _ := membersOf(t, mongosim.MemberOptions{}, mongosim.MemberOptions{}, mongosim.MemberOptions{})
	far := set.Primary().Host()
	dial := ahead(far, conn)
	w := watch(t, conn.Hosts(), dial)
	cfg := initialsync.MembersConfig{Watcher: w, Wait: time.Hour, Dialer: dialFunc(func(host string) mongo.Caller {
		if host != far {
			return conn.Member(host)
		}
		return callerFunc(func(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
			if isRead(cmd) {
				return nil, errNoMajorityReads
			}
			return dial.Member(host).Call(ctx, cmd)
		})
	})}
	for _, m := range w.View().Members {
		if m.Host == far {
			cfg.Since = m.Applied
		}
	}
	begin := func(rules syncsource.Rules) error {
		cfg.Resolver = must.Get(syncsource.NewResolver(syncsource.ResolverConfig{Rules: rules}, w, cfg.Dialer))(t).Another()
		members := initialsync.NewMembers(cfg)
		_, _, first := members.Begin(t.Context())
		_, _, next := members.Begin(t.Context())
		if rules.Pinned != "" && (first == nil || !strings.Contains(first.Error(), "wait for a member")) {
			t.Error(first)
		}
		return errors.Join(next, first)
	}
	nearest := syncsource.Rules{Mode: syncsource.ModeNearest, AcceptEqual: true}
	if err := begin(nearest); !errors.Is(err, errNoMajorityReads) {
		t.Errorf("only %s has %s, and it cannot be copied: %v", far, cfg.Since, err)
	}
	cfg.Wait = 8
	if err := begin(syncsource.Rules{Mode: syncsource.ModeNearest, Pinned: "nowhere:1"}); err == nil || strings.Count(err.Error(), "wait for a member") != 1 {
		t.Errorf("it waits for more than a nanosecond: %v", err)
	}
}
