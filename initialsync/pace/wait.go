package pace

import (
	"context"
	"time"

	"golang.org/x/time/rate"

	"github.com/oplogrep/replicator/initialsync/clone"
)

const (
	// mostAtOnce limits the amount that is divided into parts, so that the products in
	// part do not overflow.
	mostAtOnce = 1 << 30
	// perSecond is the number of grants per second.
	perSecond = 4
	// longestPause is the maximum pause of one worker; the others pause for the rest. A
	// cursor that is not used for ten minutes times out.
	longestPause = time.Minute
	// Bounds of a side's account: work to be paid for with pauses, and work that is
	// paid for in advance.
	mostDebt, mostCredit = time.Minute, 10 * time.Second
)

// limits are the maximum rates.
type limits struct {
	bytesPerSecond, opsPerSecond int64
	bytes, docs                  *rate.Limiter
}

func newLimits(bytesPerSecond, opsPerSecond int64) *limits {
	limiter := func(n int64) *rate.Limiter {
		if n == 0 {
			return rate.NewLimiter(rate.Inf, 0)
		}
		return rate.NewLimiter(rate.Limit(n), int(max(1, n/perSecond)))
	}
	return &limits{
		bytesPerSecond: bytesPerSecond, opsPerSecond: opsPerSecond,
		bytes: limiter(bytesPerSecond), docs: limiter(opsPerSecond),
	}
}

// parts returns the number of parts to grant, so that each is within both bursts.
func (l *limits) parts(docs, bytes int) int {
	return max(1, parts(l.docs, docs), parts(l.bytes, bytes))
}

func parts(l *rate.Limiter, n int) int {
	if l.Limit() == rate.Inf {
		return 1
	}
	return (n + l.Burst() - 1) / l.Burst()
}

// part returns the size of the part with index i of n: they are as even as possible.
func part(all, i, n int) int { return all*(i+1)/n - all*i/n }

// reserve takes a part, and returns the delay after which it may be used, and how to
// return it.
func (l *limits) reserve(docs, bytes int) (delay time.Duration, giveBack func()) {
	now := time.Now()
	d, b := l.docs.ReserveN(now, docs), l.bytes.ReserveN(now, bytes)
	return max(d.DelayFrom(now), b.DelayFrom(now)), func() { d.Cancel(); b.Cancel() }
}

// Wait implements clone.Pacer.
func (p *Pacer) Wait(ctx context.Context, docs, bytes int) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	began := time.Now()
	work := p.takeWork()
	err := p.waitLimits(ctx, max(0, docs), max(0, bytes))
	limited := time.Since(began)
	if limited > 0 {
		p.metrics.limitWait.Add(limited.Seconds())
	}
	if err != nil {
		return err
	}
	// The wait for the limits counts as a pause.
	err = p.pause(ctx, began, work)
	if paused := time.Since(began) - limited; paused > 0 {
		p.metrics.pressureWait.Add(paused.Seconds())
	}
	return err
}

// waitLimits waits until this much may be written.
func (p *Pacer) waitLimits(ctx context.Context, docs, bytes int) error {
	for docs > 0 || bytes > 0 {
		p.mu.Lock()
		l, changed := p.limits, p.limited
		p.mu.Unlock()
		if l.bytesPerSecond == 0 && l.opsPerSecond == 0 {
			return nil
		}
		d, b, err := l.wait(ctx, changed, min(docs, mostAtOnce), min(bytes, mostAtOnce))
		if err != nil {
			return err
		}
		docs, bytes = docs-d, bytes-b
	}
	return nil
}

// wait waits until this much may be written, or changed is closed, and returns how much
// is granted.
func (l *limits) wait(ctx context.Context, changed <-chan struct{}, docs, bytes int) (grantedDocs, grantedBytes int, err error) {
	n := l.parts(docs, bytes)
	for i := range n {
		d, b := part(docs, i, n), part(bytes, i, n)
		delay, giveBack := l.reserve(d, b)
		granted, err := sleep(ctx, delay, changed)
		if !granted || err != nil {
			giveBack()
			return grantedDocs, grantedBytes, err
		}
		grantedDocs, grantedBytes = grantedDocs+d, grantedBytes+b
	}
	return grantedDocs, grantedBytes, nil
}

// pause pauses for the work done, counted from began. It ends early when the pressure
// ends.
func (p *Pacer) pause(ctx context.Context, began time.Time, work time.Duration) error {
	for work > 0 {
		p.mu.Lock()
		factor, changed := p.factor, p.paced
		p.mu.Unlock()
		left := min(longestPause, pauseFor(work, factor)) - time.Since(began)
		if left <= 0 {
			return nil
		}
		done, err := sleep(ctx, left, changed)
		if done || err != nil {
			return err
		}
	}
	return nil
}

// pauseFor returns how long to pause after some work.
func pauseFor(work time.Duration, factor float64) time.Duration {
	return time.Duration(float64(work) * (1/factor - 1))
}

// sleep waits; it returns false if changed was closed before that.
func sleep(ctx context.Context, d time.Duration, changed <-chan struct{}) (done bool, err error) {
	if d <= 0 {
		return true, nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true, nil
	case <-changed:
		return false, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// takeWork takes the work to be paused for out of the account: all of it, up to the
// longest pause.
func (p *Pacer) takeWork() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	source, target := p.sides[clone.Source], p.sides[clone.Target]
	if p.factor >= 1 {
		source.busy, target.busy = 0, 0
		return 0
	}
	most := time.Duration(float64(longestPause) / (1/p.factor - 1))
	work := max(0, min(most, max(source.busy, target.busy)))
	// Reads and writes overlap, but are reported one after the other: a pause for one
	// of them must not be repeated for the other.
	source.busy, target.busy = max(-mostCredit, source.busy-work), max(-mostCredit, target.busy-work)
	return work
}

// Took implements clone.Pacer.
func (p *Pacer) Took(side clone.Side, d time.Duration, docs, bytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.sides[side]
	if s == nil || d < 0 {
		return
	}
	s.latency.took(d, docs, bytes)
	if p.factor < 1 {
		s.busy = min(mostDebt, s.busy+d)
	}
}
