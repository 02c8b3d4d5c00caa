package pipeline

import (
	"testing"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/resync"
)

// TestConsistentOfUnknownOutcome: the attempt whose commit records a copy as done may
// end before the reply. The next attempt finds it recorded and announces it, once.
func TestConsistentOfUnknownOutcome(t *testing.T) {
	told := 0
	p := &Pipeline{resyncs: &resync.Manager{}}
	p.cfg.Observer = func(e event.Event) {
		if _, ok := e.(Consistent); ok {
			told++
		}
	}
	for i, phase := range []checkpoint.CopyPhase{checkpoint.Replaying, checkpoint.Copied, checkpoint.Copied} {
		st := checkpoint.State{Copy: &checkpoint.Copy{Phase: phase}}
		p.showGaps(checkpoint.Gaps{Copying: phase != checkpoint.Copied}) // as leaveOut does, before
		p.begin(&attempt{}, st, checkpoint.Progress{})
		if want := min(i, 1); told != want {
			t.Errorf("attempt %d: consistent was announced %d times, want %d", i+1, told, want)
		}
	}
}
