package syncsource

import (
	"slices"
	"testing"
)

// TestWithoutVotes: a member that hello lists with priority 0, and the same configuration with another one, has no vote.
func TestWithoutVotes(t *testing.T) {
	t.Parallel()
	configured := func() []Member {
		return []Member{{Host: "a", Priority: 1}, {Host: "B", Priority: 1}, {Host: "c"}, {Host: "d", NonVoting: true}}
	}
	for name, tc := range map[string]struct {
		told *hello
		want []string
	}{
		"the same configuration":          {&hello{configTerm: 3, configVersion: 7, passives: []string{"b", "c"}}, []string{"B", "d"}},
		"the same, without terms":         {&hello{configTerm: -1, configVersion: 7, passives: []string{"b", "c"}}, []string{"B", "d"}},
		"its first sync is done":          {&hello{configTerm: 3, configVersion: 7, passives: []string{"c"}}, []string{"d"}},
		"an older configuration":          {&hello{configTerm: 3, configVersion: 6, passives: []string{"b", "c"}}, []string{"d"}},
		"one of an earlier term":          {&hello{configTerm: 2, configVersion: 7, passives: []string{"b", "c"}}, []string{"d"}},
		"a newer one, which was not read": {&hello{configTerm: 3, configVersion: 8, passives: []string{"b", "c"}}, []string{"d"}},
		"no member has answered":          {nil, []string{"d"}},
	} {
		s := &watch{told: tc.told, config: &setConfig{term: 3, version: 7}}
		members := configured()
		s.withoutVotes(members)
		var got []string
		for i := range members {
			if members[i].NonVoting {
				got = append(got, members[i].Host)
			}
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: without a vote are %s, want %s", name, got, tc.want)
		}
	}
}
