package scope_test

import (
	"strings"
	"testing"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/scope"
)

// TestExcluded: elements that are included, and excluded as a whole, are known.
func TestExcluded(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		include, exclude string
		users            bool
		want             string
		all              bool
	}{
		{"shop", "shop", false, "shop.*", true},
		{"shop", "shop", true, "shop.*", false},
		{"shop.a", "shop", false, "shop.a", true},
		{"shop.a", "sh*.a", false, "shop.a", true},
		{"shop.x*", "shop.x*", false, "shop.x*", true},
		{"shop,b", "shop", false, "shop.*", false},
		{"shop", "shop.a", false, "", false},
		{"shop.x*", "shop.x", false, "", false},
		{`/shop\..*/`, `/shop\..*/`, false, `/shop\..*/`, true},
		{"", "shop", false, "", false},
	} {
		list := func(text string) []string { return strings.FieldsFunc(text, func(r rune) bool { return r == ',' }) }
		s := must.Get(scope.New(scope.Config{Include: list(tt.include), Exclude: list(tt.exclude), UsersAndRoles: tt.users}))(t)
		if texts, all := s.Excluded(); strings.Join(texts, " ") != tt.want || all != tt.all {
			t.Errorf("--include %s --exclude %s: %q, all %t", tt.include, tt.exclude, texts, all)
		}
	}
}
