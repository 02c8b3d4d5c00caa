package initialsync

import (
	"testing"

	"github.com/oplogrep/replicator/syncsource"
)

// TestHasLeft: a member has left if the newest configuration is known, and is without it.
func TestHasLeft(t *testing.T) {
	t.Parallel()
	other := syncsource.Member{Host: "b:1", ID: 1, Asked: true}
	stranger := syncsource.Member{Host: "a:1", ID: -1, Stranger: true}
	for name, tt := range map[string]struct {
		view syncsource.View
		want bool
	}{
		"absent":                     {view: syncsource.View{Members: []syncsource.Member{other}}, want: true},
		"a stranger":                 {view: syncsource.View{Members: []syncsource.Member{other, stranger}}, want: true},
		"a member":                   {view: syncsource.View{Members: []syncsource.Member{other, {Host: "a:1", ID: 0}}}},
		"no member is known":         {},
		"the configuration is older": {view: syncsource.View{Members: []syncsource.Member{other}, ConfigUnread: true}},
		"it cannot be read":          {view: syncsource.View{Members: []syncsource.Member{other}, ConfigFault: "not authorized"}},
	} {
		if got := hasLeft(tt.view, "a:1"); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
