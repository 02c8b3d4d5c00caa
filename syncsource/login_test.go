package syncsource

import (
	"errors"
	"testing"
	"time"

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
	denied := func(host string, err error) Denylist {
		return Denylist{host: {Until: time.Now().Add(time.Minute), Reason: DeniedBy(err)}}
	}
	const want = "a:1 refuses the login: log in to a:1: no such user"
	for _, tt := range []struct {
		name    string
		members []Member
		denied  Denylist
		want    string
	}{
		{"none is known", nil, nil, ""},
		{"the only one", []Member{down("a:1", refused)}, nil, want},
		{"the other one is down", []Member{down("b:1", "cannot be reached: gone"), down("a:1", refused)}, nil, want},
		{"the other one has no documents", []Member{down("a:1", refused), up("b:1", oplog.MemberArbiter)}, nil, want},
		{"the other one can be read from", []Member{down("a:1", refused), up("b:1", oplog.MemberSecondary)}, nil, ""},
		{"one that was not asked yet", []Member{down("a:1", refused), {Host: "b:1"}}, nil, want},
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
