package pipeline

import (
	"testing"

	"github.com/oplogrep/replicator/buffer"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/memory"
	"github.com/oplogrep/replicator/pipeline/monitor"
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

// TestReplyBytes: with little memory the source is asked for smaller replies.
func TestReplyBytes(t *testing.T) {
	t.Parallel()
	p := &Pipeline{cfg: Config{Memory: memory.MinLink}, resyncs: resync.New(resync.Config{}), monitor: monitor.New(monitor.Config{})}
	want := buffer.ReplyBytes(p.memory().Buffer)
	if got := p.fetchConfig(checkpoint.Source{}, checkpoint.State{}).Reader.ReplyBytes; got != want || want == 0 {
		t.Errorf("replies of %d bytes, want %d", got, want)
	}
}
