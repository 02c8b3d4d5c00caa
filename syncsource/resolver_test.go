package syncsource

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

// TestResolveCancelled: cancelling the context ends Resolve at any point, and
// denies no member.
func TestResolveCancelled(t *testing.T) {
	t.Parallel()
	over := errors.New("enough")
	for _, silent := range []string{"> h1 oldest=silent", ""} {
		synctest.Test(t, func(t *testing.T) {
			s := &scenario{hosts: map[string]*fakeOplog{}}
			if words := strings.Fields(silent); len(words) > 0 {
				s.hosts["h1"] = &fakeOplog{words: words[2:]}
			}
			views := &fixedViews{view: View{Answers: 2, Members: []Member{parseMember(t, "h1 secondary 10:1@1")}}}
			r, err := NewResolver(ResolverConfig{}, views, s)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			if silent == "" {
				cancel(over)
			}
			defer time.AfterFunc(time.Second, func() { cancel(over) }).Stop()
			_, err = r.Resolve(ctx, oplog.NewOpTime(5, 1, 1))
			if !errors.Is(err, over) {
				t.Errorf("%q: %v", silent, err)
			}
			if denied := r.Status().Denied; len(denied) != 0 {
				t.Errorf("%q: denied %v", silent, denied)
			}
			cancel(nil)
		})
	}
}

// TestResolverRemembers: denials and history persist from one Resolve to the next.
func TestResolverRemembers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &scenario{hosts: map[string]*fakeOplog{"h1": {words: []string{"oldest=1:1@1"}}, "h2": {words: []string{"oldest=1:1@1"}}}}
		views := &fixedViews{view: View{Answers: 10, Members: []Member{
			parseMember(t, "h1 secondary 10:1@1 ping=30ms"), parseMember(t, "h2 secondary 10:1@1 ping=1ms"),
		}}}
		r, err := NewResolver(ResolverConfig{}, views, s)
		if err != nil {
			t.Fatal(err)
		}
		last := oplog.NewOpTime(5, 1, 1)
		resolve := func(want string) {
			t.Helper()
			source, err := r.Resolve(t.Context(), last)
			if err != nil || source.Host != want || r.Status().Current != want {
				t.Fatalf("%s, %v, not %s", source.Host, err, want)
			}
		}
		said := SourceState{Applied: last, HasSource: true}
		stay := func(want bool) {
			t.Helper()
			if v := r.OnReply(last, said); v.Change == want {
				t.Fatalf("%+v", v)
			}
		}
		resolve("h2")
		r.Deny("h2", DenyFetched, "has no oplog")
		stay(false)
		resolve("h1")
		stay(true)
		pass(time.Minute)
		// The denial has ended, and the source was changed twice: h2 is nearer.
		stay(false)
		resolve("h2")
		r.Deny("h2", DenyNetwork, "did not answer")
		resolve("h1")
		pass(time.Minute)
		stay(true) // three changes within the hour
		r.DenyStale("h1", oplog.NewOpTime(9, 1, 1))
		r.Deny("h2", DenyNetwork, "did not answer")
		_, err = r.Resolve(t.Context(), last)
		if stale, ok := errors.AsType[*TooStaleError](err); !ok || stale.Earliest != oplog.NewOpTime(9, 1, 1) {
			t.Fatal(err)
		}
		// The entries fetched since then reach the member's oldest entry.
		last = oplog.NewOpTime(9, 1, 1)
		resolve("h1")
	})
}

func TestFaultOf(t *testing.T) {
	inner := errors.New("inner")
	for want, err := range map[string]error{
		"refuses to answer: inner (Unauthorized, code 13)": servererr.New(servererr.Unauthorized, "inner"),
		"cannot be reached: inner":                         &mongo.LostError{Host: "a:1", Err: inner},
		"refuses the login: inner":                         &mongo.LostError{Host: "a:1", Err: inner, Refused: true},
		"fails its heartbeat: inner":                       inner,
	} {
		same(t, "fault", faultOf(err), want)
	}
}
