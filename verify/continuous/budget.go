package continuous

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/oplogrep/replicator/initialsync/clone"
	"github.com/oplogrep/replicator/internal/mongo"
)

const (
	// longestPause limits one pause of a share of time.
	longestPause = 5 * time.Minute
	// steadyPoll is how often it is looked whether the link is steady again.
	steadyPoll = 250 * time.Millisecond
)

// Budget limits verification: to a share of the time, or bytes per second of each side.
type Budget struct {
	// Share is more than 0 and at most 1; 0 if BytesPerSecond is given.
	Share          float64
	BytesPerSecond int64
}

// ParseBudget parses a share of time, as 5%, or bytes per second: a size, as 10MiB/s. Size parses
// that.
func ParseBudget(text string, size func(string) (int64, error)) (Budget, error) {
	if number, is := strings.CutSuffix(text, "%"); is {
		f, err := strconv.ParseFloat(number, 64)
		if err != nil || !(f >= 0.1) || f > 100 { // NaN is not
			return Budget{}, fmt.Errorf("%q: want a share of the time from 0.1%% to 100%%", text)
		}
		return Budget{Share: f / 100}, nil
	}
	n, err := size(strings.TrimSuffix(text, "/s"))
	if err != nil {
		return Budget{}, fmt.Errorf("%q: want a share of the time, as 5%%, or bytes per second, as 10MiB/s: %w", text, err)
	}
	return Budget{BytesPerSecond: n}, nil
}

// pacer is the pace of a verification: that of the servers' pressure, and the budget. It holds while
// the link is not steady. One goroutine waits at a time.
type pacer struct {
	inner  clone.Pacer
	share  float64
	steady func() bool

	mu   sync.Mutex // guards busy
	busy map[clone.Side]time.Duration
}

var _ clone.Pacer = (*pacer)(nil)

func newPacer(inner clone.Pacer, share float64, steady func() bool) *pacer {
	return &pacer{inner: inner, share: share, steady: steady, busy: map[clone.Side]time.Duration{}}
}

// Took implements clone.Pacer.
func (p *pacer) Took(side clone.Side, d time.Duration, docs, bytes int) {
	p.mu.Lock()
	p.busy[side] += d
	p.mu.Unlock()
	p.inner.Took(side, d, docs, bytes)
}

// Wait implements clone.Pacer.
func (p *pacer) Wait(ctx context.Context, docs, bytes int) error {
	if err := p.inner.Wait(ctx, docs, bytes); err != nil {
		return err
	}
	if pause := p.due(); pause > 0 {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	for !p.steady() {
		if err := mongo.Pause(ctx, steadyPoll); err != nil {
			return err
		}
	}
	return nil
}

// due returns how long to pause for the reads since the last pause, so that reading takes its share of
// the time. Both sides are read at the same time.
func (p *pacer) due() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	read := max(p.busy[clone.Source], p.busy[clone.Target])
	clear(p.busy)
	if p.share == 0 {
		return 0
	}
	return min(longestPause, time.Duration(float64(read)*(1-p.share)/p.share))
}
