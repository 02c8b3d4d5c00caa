package plan_test

import (
	"testing"

	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/internal/testkit/race"
)

func TestAllocations(t *testing.T) {
	race.Skip(t, "the race detector makes allocations of its own")
	for _, tc := range benchCases {
		ops := benchOps(t, tc.kind, tc.o, tc.keys, tc.mass)
		p := plan.NewPlanner(plan.Options{Coalesce: true})
		n := testing.AllocsPerRun(5, func() {
			if _, err := p.Build(ops); err != nil {
				t.Fatal(err)
			}
		})
		if each := n / flushSize; each > tc.allocs {
			t.Errorf("%s: %.2f allocations for each operation, at most %v", tc.name, each, tc.allocs)
		}
	}
}
