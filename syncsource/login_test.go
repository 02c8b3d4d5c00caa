package syncsource

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// TestLoginRefused: the source refuses the login if a member does and no other one could be read from.
func TestLoginRefused(t *testing.T) {
	t.Parallel()
	refused := faultOf(&mongo.LostError{Host: "a:1", Err: errors.New("log in to a:1: no such user"), Refused: true})
	up := func(host string, state oplog.MemberState) Member {
		return Member{Host: host, Asked: true, State: state}
	}
	down := func(host, fault string) Member {
		return Member{Host: host, Asked: true, State: oplog.MemberDown, Fault: fault}
	}
	denied := func(host string, err error) map[string]string { return map[string]string{host: DeniedBy(err)} }
	const want = "a:1 refuses the login: log in to a:1: no such user"
	for _, tt := range []struct {
		name    string
		members []Member
		denied  map[string]string
		want    string
	}{
		{"none is known", nil, nil, ""},
		{"the only one", []Member{down("a:1", refused)}, nil, want},
		{"the other one is down", []Member{down("b:1", "cannot be reached: gone"), down("a:1", refused)}, nil, want},
		{"the other one has no documents", []Member{down("a:1", refused), up("b:1", oplog.MemberArbiter)}, nil, want},
		{"the other one can be read from", []Member{down("a:1", refused), up("b:1", oplog.MemberSecondary)}, nil, ""},
		{"one that was not asked yet", []Member{down("a:1", refused), {Host: "b:1"}}, nil, want},
		{"an arbiter, and the other one is down", []Member{{Host: "a:1", Asked: true, Arbiter: true, State: oplog.MemberDown, Fault: refused}, down("b:1", "cannot be reached: gone")}, nil, ""},
		{"a host that is no member", []Member{{Host: "a:1", Asked: true, Stranger: true, State: oplog.MemberDown, Fault: refused}, down("b:1", "cannot be reached: gone")}, nil, ""},
		{"they are down", []Member{down("a:1", "cannot be reached: gone")}, nil, ""},
		{
			"only its newer connections are refused",
			[]Member{up("a:1", oplog.MemberPrimary)},
			denied("a:1", &mongo.LostError{Host: "a:1", Err: errors.New("log in to a:1: no such user"), Refused: true}), want,
		},
		{
			"it is denied for something else",
			[]Member{up("a:1", oplog.MemberPrimary)},
			denied("a:1", &mongo.LostError{Host: "a:1", Err: errors.New("gone")}), "",
		},
	} {
		v := View{Members: tt.members}
		if got := v.LoginRefused(tt.denied); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// refusing refuses the login of whoever does not have a connection yet, until that ends.
type refusing struct {
	*scenario
	refuses bool
}

// Member implements Dialer.
func (r *refusing) Member(host string) mongo.Caller { return refusal{r, host} }

type refusal struct {
	*refusing
	host string
}

// Call implements mongo.Caller.
func (r refusal) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if r.refuses {
		return nil, &mongo.LostError{Host: r.host, Err: errors.New("log in to a:1: no such user"), Refused: true}
	}
	return r.scenario.Member(r.host).Call(ctx, cmd)
}

// TestLoginRefusedStays: that a member refuses the login is said until it is read from: also once its denial has ended, and after
// it was asked again.
func TestLoginRefusedStays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		set := &refusing{&scenario{hosts: map[string]*fakeOplog{"a:1": {words: []string{"oldest=1:1@1"}}}}, true}
		views := &fixedViews{view: View{Answers: 2, Members: []Member{parseMember(t, "a:1 secondary 10:1@1")}}}
		r, err := NewResolver(ResolverConfig{}, views, set)
		if err != nil {
			t.Fatal(err)
		}
		says := func(want string) {
			t.Helper()
			v := views.View()
			if got := v.LoginRefused(r.Status().Failed); got != want {
				t.Errorf("%q, want %q", got, want)
			}
		}
		const refused = "a:1 refuses the login: log in to a:1: no such user"
		says("")
		r.Deny("a:1", DenyNetwork, DeniedBy(&mongo.LostError{Host: "a:1", Err: errors.New("log in to a:1: no such user"), Refused: true}))
		says(refused)
		for range 3 {
			pass(DenyNetwork + time.Second)
			says(refused)
			if _, err := r.Resolve(t.Context(), oplog.NewOpTime(5, 1, 1)); !errors.Is(err, ErrNoSource) {
				t.Errorf("%v", err)
			}
			says(refused)
		}
		set.refuses = false
		pass(DenyNetwork + time.Second)
		if _, err := r.Resolve(t.Context(), oplog.NewOpTime(5, 1, 1)); err != nil {
			t.Error(err)
		}
		says("")
		r.Deny("a:1", DenyNetwork, "did not answer")
		says("")
	})
}
