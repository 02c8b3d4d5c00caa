package control

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// ErrPaused ends a run that is to end in order while its link is paused.
var ErrPaused = errors.New("the link is paused")

const (
	// burst is how much may be applied at once, as a share of what may be in a second.
	burst = 4
	// unlimited is a limit that there is not.
	unlimited = 0
)

// Brake holds and slows down all that writes for one link in a process. It is safe for concurrent
// use. Make one with NewBrake.
type Brake struct {
	// free: nothing holds, limits, or is measured.
	free atomic.Bool

	mu      sync.Locker // guards the rest; an interface, so that a test can act between two of its critical sections
	changed chan struct{}
	// paused means that nothing may be applied.
	paused bool
	// busy is the number of handles that do not wait in Hold, plus that of workers between Enter and leave.
	busy       int
	ops, bytes bucket
	took       func(d time.Duration, ops int, bytes int64)
}

// newBrake returns a Brake that holds everything: whether the link is paused has not been read yet.
func newBrake() *Brake {
	return &Brake{mu: new(sync.Mutex), changed: make(chan struct{}), paused: true}
}

// bucket is a token bucket that may go into debt.
type bucket struct {
	perSecond float64 // 0 for no limit
	tokens    float64
	at        time.Time
}

// fill adds the tokens earned since the last call.
func (b *bucket) fill(now time.Time) {
	b.tokens = min(b.most(), b.tokens+b.perSecond*now.Sub(b.at).Seconds())
	b.at = now
}

func (b *bucket) most() float64 { return max(1, b.perSecond/burst) }

// limit changes the limit. A debt stays.
func (b *bucket) limit(perSecond float64, now time.Time) {
	if b.perSecond == unlimited {
		b.tokens = 0
	} else {
		b.fill(now)
	}
	b.perSecond, b.at = perSecond, now
	b.tokens = min(b.tokens, b.most())
}

// delay returns how long to wait: until the bucket is full, once it is empty, so that lanes get
// groups of operations and not one at a time.
func (b *bucket) delay(now time.Time) time.Duration {
	if b.perSecond == unlimited {
		return 0
	}
	b.fill(now)
	if b.tokens > 0 {
		return 0
	}
	return max(time.Millisecond, time.Duration((b.most()-b.tokens)/b.perSecond*float64(time.Second)))
}

func (b *bucket) spend(n float64) {
	if b.perSecond != unlimited {
		b.tokens -= n
	}
}

// change changes the settings, and wakes all waiters.
func (b *Brake) change(do func(now time.Time)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	do(time.Now())
	b.free.Store(!b.paused && b.ops.perSecond == unlimited && b.bytes.perSecond == unlimited && b.took == nil)
	close(b.changed)
	b.changed = make(chan struct{})
}

// setPaused pauses everything, or lets it go on.
func (b *Brake) setPaused(paused bool) {
	if b.Paused() != paused {
		b.change(func(time.Time) { b.paused = paused })
	}
}

// setLimits sets the limits, 0 for none. Took, if not nil, is told of flushes.
func (b *Brake) setLimits(opsPerSecond, bytesPerSecond float64, took func(time.Duration, int, int64)) {
	b.mu.Lock()
	same := b.ops.perSecond == opsPerSecond && b.bytes.perSecond == bytesPerSecond && (b.took == nil) == (took == nil)
	b.mu.Unlock()
	if same {
		return
	}
	b.change(func(now time.Time) {
		b.ops.limit(opsPerSecond, now)
		b.bytes.limit(bytesPerSecond, now)
		b.took = took
	})
}

// Paused reports whether nothing may be applied.
func (b *Brake) Paused() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.paused
}

// Settled reports whether the link is paused and no write is in flight any more.
func (b *Brake) settled() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.paused && b.busy == 0
}

func (b *Brake) changes() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changed
}

// Enter waits while nothing may be written. Until leave is called, something is in flight: a
// pause is complete after it. It is for the workers of a copy.
func (b *Brake) Enter(ctx context.Context) (leave func(), err error) {
	for {
		changed, entered := b.tryEnter()
		if entered {
			return func() { b.count(-1) }, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// tryEnter counts one more that writes, unless the link is paused. Changed is closed with the next change.
func (b *Brake) tryEnter() (changed <-chan struct{}, entered bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.paused {
		b.busy++
	}
	return b.changed, !b.paused
}

// Handle is a Brake for one attempt: an applier.Brake. It has to be released.
type Handle struct {
	b       *Brake
	soft    context.Context //nolint:containedctx // It says when the run is to end, for calls of the attempt.
	release func()
}

// For returns a Handle for an attempt of a run that is to end in order once soft is done: it does
// not wait for the link to be resumed then.
func (b *Brake) For(soft context.Context) *Handle {
	b.count(1)
	return &Handle{b: b, soft: soft, release: sync.OnceFunc(func() { b.count(-1) })}
}

func (b *Brake) count(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.busy += n
}

// Release is called when the attempt has ended.
func (h *Handle) Release() { h.release() }

// Free implements applier.Brake.
func (h *Handle) Free() bool { return h.b.free.Load() }

// Changed implements applier.Brake.
func (h *Handle) Changed() <-chan struct{} { return h.b.changes() }

// Paused implements applier.Brake.
func (h *Handle) Paused() bool { return h.b.Paused() }

// Hold implements applier.Brake.
func (h *Handle) Hold(ctx context.Context) (err error) {
	h.b.count(-1)
	defer func() {
		if err != nil {
			h.b.count(1)
		}
	}()
	for {
		changed, entered := h.b.tryEnter()
		if entered {
			return nil
		}
		select {
		case <-changed:
		case <-h.soft.Done():
			return ErrPaused
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Delay implements applier.Brake.
func (h *Handle) Delay() time.Duration {
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	now := time.Now()
	return max(h.b.ops.delay(now), h.b.bytes.delay(now))
}

// Spend implements applier.Brake.
func (h *Handle) Spend(ops int, bytes int64) {
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	h.b.ops.spend(float64(ops))
	h.b.bytes.spend(float64(bytes))
}

// Took implements applier.Brake.
func (h *Handle) Took(d time.Duration, ops int, bytes func() int64) {
	h.b.mu.Lock()
	took := h.b.took
	h.b.mu.Unlock()
	if took != nil {
		took(d, ops, bytes())
	}
}
