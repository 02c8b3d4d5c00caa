package lockstest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oplogrep/replicator/lease/locks"
)

// usedFor is how long a contender uses a lock at most.
const usedFor = 40 * time.Millisecond

// Contention has many contenders for many locks.
type Contention struct {
	// Keys is the number of locks. All are taken at least once, in order, and a few again and again.
	Keys int
	// Contenders is the number of processes, Workers how many locks each wants at once.
	Contenders, Workers int
	// For is how long it lasts at least.
	For time.Duration
	// Elect is the configuration of all contenders. Process is set by Run.
	Elect locks.ElectConfig
	// Halfway, if not nil, is called when half of the locks have been taken. Meanwhile the
	// contenders go on.
	Halfway func()
}

// contest is a Contention that runs.
type contest struct {
	*testing.T
	Contention
	// holders counts those that have a lock, by key; tokens has the newest token.
	holders []atomic.Int32
	tokens  []atomic.Int64
	// next counts the locks that were begun in order, walked those of them that were taken; half is
	// closed when half were.
	next, walked, taken atomic.Int64
	half                chan struct{}

	mu    sync.Mutex // guards holds
	holds []hold
}

// hold is a time, by the store's clock, at which a contender had a lock from the first
// moment to the last.
type hold struct {
	key         int
	token       int64
	first, last locks.Moment
}

// Run returns how often a lock was taken. It fails if two have the same lock at once, by this
// process or by the store's clock, or if a token does not grow.
func (c Contention) Run(t *testing.T) int64 {
	t.Helper()
	r := &contest{T: t, Contention: c, holders: make([]atomic.Int32, c.Keys), tokens: make([]atomic.Int64, c.Keys), half: make(chan struct{})}
	ctx, stop := context.WithCancelCause(t.Context())
	defer stop(nil)
	begin := time.Now()
	over := func() {
		if r.walked.Load() >= int64(c.Keys) && time.Since(begin) >= c.For {
			stop(nil)
		}
	}
	var all sync.WaitGroup
	for i := range c.Contenders {
		cfg := c.Elect
		cfg.Process = "p" + strconv.Itoa(i)
		e := locks.NewElect(cfg)
		var workers sync.WaitGroup
		for worker := range c.Workers {
			workers.Go(func() { r.work(ctx, e, worker, over) })
		}
		all.Go(func() {
			workers.Wait()
			e.Close()
		})
	}
	<-r.half
	if c.Halfway != nil {
		c.Halfway()
	}
	all.Wait()
	for _, fault := range overlaps(r.holds) {
		t.Error(fault)
	}
	if len(r.holds) == 0 {
		t.Error("no time was recorded at which a contender had a lock")
	}
	return r.taken.Load()
}

// hot is how many locks all contenders want all the time.
const hot = 8

// work takes locks until ctx is done: at first one that all contenders want, then one after the
// other. It calls over after each.
func (r *contest) work(ctx context.Context, e *locks.Elect, worker int, over func()) {
	for key := worker; ctx.Err() == nil; key = rand.N(hot) { //nolint:gosec // keeps no secret
		r.take(ctx, e, key%r.Keys)
		for range rand.N(12) { //nolint:gosec // keeps no secret
			n := r.next.Add(1) - 1
			if r.take(ctx, e, int(n)%r.Keys) && n < int64(r.Keys) && r.walked.Add(1) == int64(r.Keys+1)/2 {
				close(r.half)
			}
		}
		over()
	}
}

// take takes a lock, unless ctx is done before.
func (r *contest) take(ctx context.Context, e *locks.Elect, key int) (had bool) {
	for !had && ctx.Err() == nil {
		_ = e.Lock(ctx, "k"+strconv.Itoa(key), "", func(ctx context.Context) {
			had = true
			r.have(ctx, key)
		})
	}
	if had {
		r.taken.Add(1)
	}
	return had
}

// have uses a lock for a short time.
func (r *contest) have(ctx context.Context, key int) {
	if n := r.holders[key].Add(1); n != 1 {
		r.Errorf("%d have k%d", n, key)
	}
	defer r.holders[key].Add(-1)
	token := locks.Token(ctx)
	if was := r.tokens[key].Swap(token); was >= token {
		r.Errorf("k%d: token %d after %d", key, token, was)
	}
	first, err := r.Elect.Store.Clock(ctx)
	if err != nil {
		return
	}
	select {
	case <-time.After(rand.N(usedFor)): //nolint:gosec // keeps no secret
	case <-ctx.Done():
	}
	last, err := r.Elect.Store.Clock(ctx)
	if err != nil || locks.Check(ctx) != nil {
		return // it may have read the clock when the lock was lost
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holds = append(r.holds, hold{key: key, token: token, first: first, last: last})
}

// overlaps says which holds of a lock were at the same time. Times of different elections
// are those of different clocks.
func overlaps(holds []hold) (faults []string) {
	slices.SortFunc(holds, func(a, b hold) int {
		if a.key != b.key {
			return a.key - b.key
		}
		return int(a.token - b.token)
	})
	for i := 1; i < len(holds); i++ {
		a, b := holds[i-1], holds[i]
		if a.key == b.key && a.last.Election == b.first.Election && b.first.Time.Before(a.last.Time) {
			faults = append(faults, fmt.Sprintf("k%d: token %d until %s, token %d from %s", a.key, a.token, a.last.Time, b.token, b.first.Time))
		}
	}
	return faults
}
