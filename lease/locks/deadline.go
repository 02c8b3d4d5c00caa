package locks

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// deadline calls a function once when a time is over that can be extended before. Both
// clocks of the process count: the monotonic one stops while a machine is suspended, and the
// wall clock may be set back.
type deadline struct {
	over func()

	mu    sync.Mutex // guards the rest
	until time.Time  // zero: not set
	timer *time.Timer
}

// extend sets the time, unless it is over already or later: it reports whether it is not over.
func (d *deadline) extend(until time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.until.IsZero() && !until.After(d.until) {
		return !isPast(d.until)
	}
	if isPast(until) || !d.until.IsZero() && isPast(d.until) || d.timer != nil && !d.timer.Stop() {
		return false
	}
	d.until = until
	d.timer = time.AfterFunc(time.Until(until), d.over)
	return true
}

// passed reports whether the time is over, though its timer may not have fired yet.
func (d *deadline) passed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.until.IsZero() && isPast(d.until)
}

// stop makes it never call the function, unless it has.
func (d *deadline) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
	}
}

func isPast(t time.Time) bool {
	now := time.Now()
	return !now.Before(t) || !now.Round(0).Before(t.Round(0))
}

// pause blocks for d, with a random jitter of up to a half, or until ctx is done.
func pause(ctx context.Context, d time.Duration) error {
	return wait(ctx, d/2+rand.N(d)) //nolint:gosec // spreads load, keeps no secret
}

// wait blocks for d, or until ctx is done.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
