package mongosim_test

import (
	"testing"

	"github.com/oplogrep/replicator/mongosim"
)

// TestCommitQuorum: a member that builds no indexes cannot be ready, so that two of two are not a majority for index builds.
func TestCommitQuorum(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		other    mongosim.MemberOptions
		majority bool
	}{
		{mongosim.MemberOptions{NoPriority: true}, true},
		{mongosim.MemberOptions{Arbiter: true}, true},
		{mongosim.MemberOptions{NoPriority: true, NoIndexes: true}, false},
		{mongosim.MemberOptions{NoPriority: true, NoIndexes: true, NonVoting: true}, true},
	} {
		set := mongosim.StartTest(t, mongosim.Options{Seed: 46, MemberOptions: []mongosim.MemberOptions{{}, tt.other}})
		p, _ := primaryOf(t, set)
		c := dial(t, p)
		c.ok("app", insert("c", nil, idDoc(1)))
		build := func(name string, quorum any) d {
			return d{arg("createIndexes", "c"), arg("indexes", []any{d{arg("key", d{arg(name, 1)}), arg("name", name)}}), arg("commitQuorum", quorum)}
		}
		if tt.majority {
			c.ok("app", build("x", "majority"))
		} else {
			c.refused(278, "app", build("x", "majority"))
		}
		c.ok("app", build("y", 1))
		c.refused(278, "app", build("z", 3))
	}
}
