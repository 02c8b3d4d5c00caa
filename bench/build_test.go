package bench

import (
	"slices"
	"strings"
	"testing"

	"github.com/oplogrep/replicator/internal/testkit/must"
)

// The other collections are applied while the target builds an index: the run would not end
// otherwise, as the build lasts until they are.
func TestDuringBuild(t *testing.T) {
	build, without, err := duringBuild(t.Context(), Config{Workload: small(), Rounds: 2, Writers: 4})
	must.Succeed(t, err)
	for i, r := range []*runFigures{{build, "index-build/small"}, {without, "no-index-build/small"}} {
		r.check(t, r.Kind, 500, 2)
		if said := slices.ContainsFunc(r.Notes, func(n string) bool { return strings.Contains(n, "all the while") }); said != (i == 0) {
			t.Error(r.Notes)
		}
	}
}
