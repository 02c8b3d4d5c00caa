package status

import (
	"testing"
	"time"

	"github.com/oplogrep/replicator/control"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/request"
)

// TestPauseWithoutPace: how long a pause may last is not said of an oplog whose oldest entry does not move. A new set has
// an oplog of a minute, and keeps all of it.
func TestPauseWithoutPace(t *testing.T) {
	t.Parallel()
	s, _, _ := play(t, in(controlled(func(c *control.Status, s *monitor.Snapshot) {
		c.Paused = &request.Paused{Since: time.Now().Add(-12 * time.Minute), By: "ann@ops1"}
		s.Window.Left, s.Window.Oldest.T = -1, s.Window.Position.T-90
	})))
	const want = "Paused for 12 min by ann@ops1. How long it may last is not known; the source's oplog reaches back 90 s before the checkpoint."
	if s.Verdict.Name != "paused-short" || s.Verdict.Sentence != want {
		t.Errorf("%s: %s", s.Verdict.Name, s.Verdict.Sentence)
	}
}
