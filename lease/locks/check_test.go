package locks

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestCheckOfOuter: the time of an outer lock was over during a suspension, of which no timer
// has told yet.
func TestCheckOfOuter(t *testing.T) {
	t.Parallel()
	began := func(ctx context.Context, until time.Time) context.Context {
		ctx, end := context.WithCancelCause(ctx)
		inner := &term{ctx: ctx, end: end, limit: &deadline{until: until}, lost: make(chan struct{})}
		return context.WithValue(ctx, scopeKey{}, &scope{term: inner, outer: scopeOf(ctx)})
	}
	outer := began(t.Context(), time.Now().Add(-time.Second))
	ctx := began(outer, time.Now().Add(time.Hour))
	if err := Check(ctx); !errors.Is(err, ErrExpired) {
		t.Errorf("the inner function is told: %v", err)
	}
	if err := context.Cause(ctx); !errors.Is(err, ErrExpired) {
		t.Errorf("its context: %v", err)
	}
}
