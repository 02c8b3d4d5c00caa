package control

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/oplogrep/replicator/internal/testkit/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// through hands out n groups of operations as an applier does, and returns how long that took.
func through(h *Handle, n, ops int, bytes int64) time.Duration {
	start := time.Now()
	for range n {
		for h.Delay() > 0 {
			time.Sleep(h.Delay())
		}
		h.Spend(ops, bytes)
	}
	return time.Since(start)
}

// TestLimits: operations and bytes are limited as set, whichever limit is lower, in groups; a batch
// larger than a group delays the next ones.
func TestLimits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBrake()
		b.setPaused(false)
		h := b.For(t.Context())
		defer h.Release()
		if !h.Free() || through(h, 1e6, 1, 1e6) != 0 {
			t.Error("it limits without a limit")
		}
		b.setLimits(100, 0, nil)
		if h.Free() {
			t.Error("it is free with a limit")
		}
		around := func(what string, got, want time.Duration) {
			t.Helper()
			if got < want-want/10-time.Second/2 || got > want+want/10+time.Second/2 {
				t.Errorf("%s: %s, want about %s", what, got, want)
			}
		}
		around("1000 operations", through(h, 1000, 1, 1e9), 10*time.Second)
		b.setLimits(100, 1000, nil)
		around("bytes are the limit", through(h, 100, 1, 100), 10*time.Second)
		b.setLimits(100, 0, nil)
		h.Spend(2000, 0) // one transaction
		around("after a large transaction", through(h, 1, 1, 1), 20*time.Second)
		h.Spend(2000, 0)
		b.setLimits(1000, 0, nil)
		around("the limit was raised", through(h, 1, 1, 1), 2*time.Second)
		// To set the same again must not grant another burst.
		start := time.Now()
		for range 100 {
			b.setLimits(1000, 0, nil)
			through(h, 1, 100, 0)
		}
		around("set again and again", time.Since(start), 10*time.Second)
	})
}

// TestGroups: a limit lets groups of operations through, so that lanes need not flush each.
func TestGroups(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBrake()
		b.setPaused(false)
		b.setLimits(400, 0, nil)
		h := b.For(t.Context())
		defer h.Release()
		waits := 0
		for range 4000 {
			if wait := h.Delay(); wait > 0 {
				waits++
				time.Sleep(wait)
			}
			h.Spend(1, 1)
		}
		if waits < 30 || waits > 50 {
			t.Errorf("it waited %d times for 4000 operations, 400 per second", waits)
		}
	})
}

// TestHold: a pause is complete once nothing is in flight, and ends where it is resumed, where
// the run is to end, and where it is cancelled.
func TestHold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBrake()
		if !b.Paused() || b.free.Load() {
			t.Error("it does not hold before anything is known")
		}
		b.setPaused(false)
		soft, drain := context.WithCancelCause(context.Background())
		h := b.For(soft)
		leave := must.Get(b.Enter(t.Context()))(t)
		changed := h.Changed()
		b.setPaused(true)
		select {
		case <-changed:
		default:
			t.Error("a pause is not told")
		}
		held := func(ctx context.Context) chan error {
			done := make(chan error, 1)
			go func() { done <- h.Hold(ctx) }()
			synctest.Wait()
			return done
		}
		done := held(t.Context())
		if b.settled() {
			t.Error("settled while a worker writes")
		}
		leave()
		if !b.settled() {
			t.Error("not settled")
		}
		entered := make(chan error, 1)
		go func() {
			leave, err := b.Enter(t.Context())
			if err == nil {
				leave()
			}
			entered <- err
		}()
		synctest.Wait()
		if len(done) > 0 || len(entered) > 0 {
			t.Error("it does not hold")
		}
		b.setLimits(5, 5, nil) // a change that does not resume
		synctest.Wait()
		if len(done) > 0 || len(entered) > 0 {
			t.Error("another limit resumes it")
		}
		b.setPaused(false)
		must.Succeed(t, <-done)
		must.Succeed(t, <-entered)
		b.setPaused(true)
		ctx, cancel := context.WithCancelCause(context.Background())
		done = held(ctx)
		cancel(errors.New("over"))
		if err := <-done; err == nil || err.Error() != "over" {
			t.Error(err)
		}
		done = held(t.Context())
		drain(nil)
		must.Fail(t, <-done, ErrPaused)
		if b.settled() {
			t.Error("settled, although the attempt goes on")
		}
		h.Release()
		h.Release()
		if !b.settled() {
			t.Error("an attempt that has ended counts")
		}
	})
}

// TestLoweredLimit: what a higher limit has left to be used is no burst under a lower one.
func TestLoweredLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBrake()
		b.setPaused(false)
		h := b.For(t.Context())
		defer h.Release()
		b.setLimits(100_000, 0, nil)
		time.Sleep(time.Minute)
		if h.Delay() != 0 {
			t.Error("it waits with all of its limit left")
		}
		b.setLimits(100, 0, nil)
		if took := through(h, 1000, 1, 1); took < 9*time.Second {
			t.Errorf("1000 operations at 100 a second took %s", took)
		}
	})
}
