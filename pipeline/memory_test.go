package pipeline

import (
	"testing"

	"github.com/oplogrep/replicator/buffer"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/resync"
)

// TestShares: whatever the memory is, the shares and what they may exceed it by leave some
// of it to the collector, with as many parts as may run.
func TestShares(t *testing.T) {
	t.Parallel()
	for _, total := range []int64{MinMemory, 256 << 20, 320 << 20, 512 << 20, 1 << 30, 16 << 30} {
		c := Config{Memory: total}
		for parts := range c.parts() + 1 {
			left := total - programMemory - int64(parts)*partMemory
			s := c.memory(parts)
			applying, copying := s.buffer+2*s.window+s.window/2+s.txn, s.copied+fetchedMemory
			if most := left - left/4; applying > most || copying > most && parts == 0 {
				t.Errorf("%d MiB, %d parts: %d MiB applying, %d MiB copying, at most %d MiB", total>>20, parts, applying>>20, copying>>20, most>>20)
			}
		}
	}
	part := Config{Memory: MinMemory, part: &part{}}
	if s := part.memory(0); s.buffer+2*s.window+s.window/2+s.txn > partMemory-partMemory/4 {
		t.Errorf("a part takes %+v", s)
	}
	for total, want := range map[int64]int{MinMemory: 1, 320<<20 - 1: 1, 320 << 20: 2, 16 << 30: 2} {
		c := Config{Memory: total}
		if got := c.parts(); got != want {
			t.Errorf("with %d MiB, %d parts run at a time, want %d", total>>20, got, want)
		}
	}
	if s := (&Config{Memory: MinMemory, WindowBytes: 1000}).memory(0); s.window != 1000 {
		t.Errorf("a window of %d", s.window)
	}
}

// TestReplyBytes: with little memory the source is asked for smaller replies.
func TestReplyBytes(t *testing.T) {
	t.Parallel()
	p := &Pipeline{cfg: Config{Memory: MinMemory}, resyncs: resync.New(resync.Config{}), monitor: monitor.New(monitor.Config{})}
	want := buffer.ReplyBytes(p.memory().buffer)
	if got := p.fetchConfig(checkpoint.Source{}, checkpoint.State{}).Reader.ReplyBytes; got != want || want == 0 {
		t.Errorf("replies of %d bytes, want %d", got, want)
	}
}
