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

// passingKey is the key of the value that WithPassing adds to a context.
type passingKey struct{}

// WithPassing returns a context for commands with a function to call whenever bytes of them, or of their replies, pass. A
// function of an outer context is called, too.
func WithPassing(ctx context.Context, passed func()) context.Context {
	if outer := Passing(ctx); outer != nil {
		inner := passed
		passed = func() {
			outer()
			inner()
		}
	}
	return context.WithValue(ctx, passingKey{}, passed)
}

// Passing returns the function that a Caller has to call whenever bytes of a command have been sent, or some of its
// reply have arrived, nil if there is none. The function may be called from any goroutine, and at any time.
func Passing(ctx context.Context) func() {
	passed, _ := ctx.Value(passingKey{}).(func())
	return passed
}
