package initialsync

import (
	"testing"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestBuildTooLarge: an index whose build needs more memory than the target allows is left out, and does not hold the copy.
func TestBuildTooLarge(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.source = []sourceCollection{
		{name: "two", docs: 2, indexes: []string{"small", "large"}},
		{name: "one", docs: 2, indexes: []string{"large"}},
	}
	w.refused["large"] = servererr.New(servererr.ExceededMemoryLimit, "no")
	c := w.start(Config{Workers: 1, IndexWorkers: 1}, 2)
	must.Succeed(t, c.Run(t.Context()))
	if !w.held["db.one/large"] || !w.held["db.two/large"] || len(w.target["db.two"].indexes) != 1 {
		t.Errorf("held %v, built %v", w.held, w.target["db.two"].indexes)
	}
	if failed := c.Progress().Failed; len(failed) != 2 {
		t.Errorf("failed: %v", failed)
	}
}
