package bench

import (
	"testing"
	"time"

	"github.com/oplogrep/replicator/bench/workload"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// cloneWorkers is how many ranges a link copies at a time by default.
const cloneWorkers = 8

// startCopying fills a source with documents of about size bytes.
func startCopying(t testing.TB, docs, size int) *copying {
	t.Helper()
	c := Config{Workload: workload.Workload{Name: "copy", Seed: 1, Documents: docs, Size: size, Namespaces: 1}}
	c.setDefaults()
	p := &copying{cfg: c}
	t.Cleanup(func() { p.close(t.Context()) })
	must.Succeed(t, p.open(t.Context()))
	return p
}

// both copies as a link does, and by bare loops.
func (p *copying) both(t testing.TB, workers int) (ours, bare time.Duration) {
	t.Helper()
	fast := must.Get(p.ours(t.Context(), workers, false))(t)
	slow := must.Get(p.bare(t.Context(), workers))(t)
	return fast.Elapsed, slow.Elapsed
}

// TestClone: all documents are copied, both ways, of several collections.
func TestClone(t *testing.T) {
	const docs = 300
	ours, bare, err := Clone(t.Context(), Config{
		Workload: workload.Workload{Name: "copy", Seed: 1, Documents: docs, Namespaces: 3},
		Rounds:   2, CloneWorkers: 4,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, run := range []*runFigures{{ours, "clone/copy/a link's copy"}, {bare, "clone/copy/bare loops"}} {
		run.check(t, "clone", docs, 2)
		if run.Source != oneEmbedded || run.Target != oneEmbedded {
			t.Errorf("%s: from %q to %q", run.name, run.Source, run.Target)
		}
		if got := run.Settings["writers"]; got != 4 {
			t.Errorf("%s: %g workers", run.name, got)
		}
	}
	if _, _, err := Clone(t.Context(), Config{Workload: workload.Workload{Name: "copy"}}); err == nil {
		t.Error("nothing was copied without an error")
	}
}
