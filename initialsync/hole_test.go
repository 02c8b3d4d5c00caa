package initialsync

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/oplogrep/replicator/initialsync/clone"
	"github.com/oplogrep/replicator/initialsync/progress"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// holed is a cloner that finds a hole in the first capped collection that it copies.
type holed struct {
	cloner
	found atomic.Bool
}

func (h *holed) Copy(ctx context.Context, lane clone.Lane, coll *progress.Collection, to oplog.Namespace, r progress.Range) (progress.Range, error) {
	if isCapped(coll.Options) && h.found.CompareAndSwap(false, true) {
		return r, fmt.Errorf("copy: %w", clone.ErrHole)
	}
	return h.cloner.Copy(ctx, lane, coll, to, r)
}

// TestHole: a capped collection that is copied again after a hole gets its indexes, also if they were built before.
func TestHole(t *testing.T) {
	t.Parallel()
	for _, first := range []bool{false, true} {
		cfg := Config{Workers: 2, IndexWorkers: 2, NoHoles: true, IndexesFirst: first}
		want, _ := copyWhole(t, cfg, 4)
		w := everyKind(t)
		c := w.start(cfg, 4)
		h := &holed{cloner: c.cloner}
		c.cloner = h
		must.Succeed(t, c.Run(t.Context()))
		if diff := cmp.Diff(want, w.state()); diff != "" || !h.found.Load() {
			t.Errorf("indexes first %t: found %t: %s", first, h.found.Load(), diff)
		}
	}
}
