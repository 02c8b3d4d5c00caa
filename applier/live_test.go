package applier

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/batch"
)

// live is a running applier that receives the log in parts.
type live struct {
	*attempt
	t    *testing.T
	r    *rig
	in   chan batch.Batch
	done chan error
	stop context.CancelCauseFunc

	mu      sync.Mutex
	moved   chan struct{}
	applied oplog.OpTime
}

func (r *rig) live(t *testing.T, set func(*Config)) *live {
	t.Helper()
	ctx, stop := context.WithCancelCause(t.Context())
	l := &live{t: t, r: r, in: make(chan batch.Batch), done: make(chan error, 1), stop: stop, moved: make(chan struct{})}
	l.attempt = must.Get(r.begin(ctx, func(c *Config) {
		r.commanded(t, c, func(event.Event) {})
		if set != nil {
			set(c)
		}
	}))(t)
	out := make(chan checkpoint.Applied)
	go func() {
		for a := range out {
			l.mu.Lock()
			l.applied = a.Applied
			close(l.moved)
			l.moved = make(chan struct{})
			l.mu.Unlock()
		}
	}()
	go func() { l.done <- l.Run(ctx, l.in, out) }()
	t.Cleanup(func() { stop(nil) })
	return l
}

// send sends the entries after an optime.
func (l *live) send(log *sourceLog, after oplog.OpTime) {
	l.t.Helper()
	for _, b := range log.after(after) {
		select {
		case l.in <- b:
		case err := <-l.done:
			l.t.Fatalf("the applier has ended: %v", err)
		case <-time.After(time.Minute):
			l.t.Fatal("the applier takes no batch")
		}
	}
}

// reaches waits until the watermark is at an optime.
func (l *live) reaches(at oplog.OpTime) {
	l.t.Helper()
	timeout := time.After(time.Minute)
	for {
		l.mu.Lock()
		applied, moved := l.applied, l.moved
		l.mu.Unlock()
		if !applied.Before(at) {
			return
		}
		select {
		case <-moved:
		case err := <-l.done:
			l.t.Fatalf("the applier has ended before %s: %v", at, err)
		case <-timeout:
			l.t.Fatalf("applied up to %s only, not to %s", applied, at)
		}
	}
}

// drain ends the applier in order, crash at once.
func (l *live) drain() {
	l.t.Helper()
	close(l.in)
	must.Succeed(l.t, l.ended())
}

func (l *live) crash() {
	l.t.Helper()
	crash := errors.New("crash")
	l.stop(crash)
	if err := l.ended(); !errors.Is(err, crash) {
		l.t.Fatal(err)
	}
}
