package pipeline

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/oplog"
)

// TestTakeBackNotAtRest: a collection's own pipeline was told to end and could not
// apply everything. What it has copied is kept, and it goes on.
func TestTakeBackNotAtRest(t *testing.T) {
	t.Parallel()
	r := &resync{
		wish: checkpoint.ResyncWish{NS: "shop.a"}, drain: func(error) {}, done: make(chan struct{}),
		err: fmt.Errorf("%w: %w", ErrStopped, errors.New("no answer")),
	}
	close(r.done)
	p := &Pipeline{resyncs: resyncs{running: map[oplog.Namespace]*resync{"shop.a": r}}}
	if err := p.takeBack(t.Context(), context.Background()); err != nil {
		t.Error(err)
	}
	if len(p.resyncs.running) != 0 {
		t.Error("the next attempt would not make it again")
	}
}
