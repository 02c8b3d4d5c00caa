package mongo

import (
	"context"
	"sync"
	"time"
)

// heardKey is what WithSilence keeps in a context.
type heardKey struct{}

// silence ends a context when nothing is heard for a time.
type silence struct {
	patience time.Duration

	mu    sync.Mutex
	timer *time.Timer // under mu
	over  bool        // under mu
}

// WithSilence returns a context that ends, with cause, once the answer to the command
// that it is given to has not begun after first, or has not gone on for patience: it
// bounds how long a server is silent, not how long its reply takes on a slow line. A
// Caller that does not tell what it hears (see Heard) makes first the bound of it all.
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

// Heard returns what a Caller calls whenever a part of the answer has come, nil where
// nobody wants to know. It may be called from any goroutine, and at any time.
func Heard(ctx context.Context) func() {
	if s, ok := ctx.Value(heardKey{}).(*silence); ok {
		return s.heard
	}
	return nil
}
