package cutover_test

import (
	"sync/atomic"
	"testing"

	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestReacquiredMeanwhile: a process of the link that acquires the lease just before it is taken over, as after a failover,
// does not end the cutover.
func TestReacquiredMeanwhile(t *testing.T) {
	t.Parallel()
	target := open(t, "7.0")
	m := newMoved(t, target, "dr")
	var converts atomic.Bool
	cfg := m.config(&meanwhile{Caller: target, before: func(cmd mongo.Command) bool {
		coll, _ := cmd.Body.Index(0).Value().StringValueOK()
		return converts.Load() && cmd.Sequence == "updates" && coll == metadata.Links
	}, do: func() {
		converts.Store(false)
		must.Get(m.store.Acquire(t.Context(), 0))(t)
	}}, m.source)
	begun := 0
	cfg.Told = func(s record.Taken) {
		if s.Step == record.Convert && s.Ended.IsZero() {
			begun++
			converts.Store(begun == 1)
		}
	}
	must.Get(cutover.Run(t.Context(), cfg, byBlock))(t)
	if converts.Load() {
		t.Error("the lease was not acquired meanwhile")
	}
	m.isDone("reacquired")
}
