package pipeline

import (
	"testing"

	"github.com/oplogrep/replicator/internal/memory"
	"github.com/oplogrep/replicator/resync"
)

// TestWindowBytes: the window is that of the configuration, if that has one.
func TestWindowBytes(t *testing.T) {
	t.Parallel()
	p := &Pipeline{cfg: Config{Memory: memory.MinLink, WindowBytes: 1000}, resyncs: resync.New(resync.Config{})}
	if s := p.memory(); s.Window != 1000 {
		t.Errorf("a window of %d", s.Window)
	}
}
