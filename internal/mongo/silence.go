package mongo

import (
	"context"
	"sync"
	"time"
)

// heardKey is the key of the value that WithSilence adds to a context.
type heardKey struct{}

// silence cancels a context when nothing has arrived for a time.
type silence struct {
	patience time.Duration

	mu    sync.Mutex
	timer *time.Timer // under mu
	over  bool        // under mu
}

// WithSilence returns a context for one command, which is cancelled with cause if the
// reply has not started after first, or has stalled for patience: it limits how long a
// server is silent, not how long a reply takes on a slow connection. If the Caller does
// not use Heard, first is the limit for the whole reply.
func WithSilence(ctx context.Context, first, patience time.Duration, cause error) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	s := &silence{patience: patience}
	s.timer = time.AfterFunc(first, func() { cancel(cause) })
	return context.WithValue(ctx, heardKey{}, s), func() {
		s.end()
		cancel(nil)
	}
}

func (s *silence) heard() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.timer.Reset(s.patience)
	}
}

func (s *silence) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	s.timer.Stop()
}

// Heard returns the function that a Caller has to call whenever a part of the reply has
// arrived, nil if there is none. The function may be called from any goroutine, and at
// any time.
func Heard(ctx context.Context) func() {
	if s, ok := ctx.Value(heardKey{}).(*silence); ok {
		return s.heard
	}
	return nil
}
