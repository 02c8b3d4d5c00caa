package reading

import (
	"testing"

	"github.com/oplogrep/replicator/buffer"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/memory"
	"github.com/oplogrep/replicator/pipeline/monitor"
)

// TestReplyBytes: with little memory the source is asked for smaller replies.
func TestReplyBytes(t *testing.T) {
	t.Parallel()
	share := memory.SharesOf(memory.MinLink, 0).Buffer
	o := New(Config{Memory: func() int64 { return share }, Monitor: monitor.New(monitor.Config{})})
	want := buffer.ReplyBytes(share)
	if got := o.fetchConfig(checkpoint.Source{}, checkpoint.State{}).Reader.ReplyBytes; got != want || want == 0 {
		t.Errorf("replies of %d bytes, want %d", got, want)
	}
}
