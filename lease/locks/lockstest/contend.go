package lockstest

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oplogrep/replicator/lease/locks"
)

// busyFor is how long a contender uses a lock.
const busyFor = 20 * time.Millisecond

// Contend has many contenders for many locks: each takes one after the other, for a time. It
// fails if two have the same lock at once, or if a token does not grow. It returns how often
// each contender had a lock.
func Contend(t *testing.T, keys, contenders int, d time.Duration, cfg locks.ElectConfig) []int64 {
	t.Helper()
	holders, tokens := make([]atomic.Int32, keys), make([]atomic.Int64, keys)
	got := make([]int64, contenders)
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	var all sync.WaitGroup
	for i := range contenders {
		cfg.Process = "p" + strconv.Itoa(i)
		e := locks.NewElect(cfg)
		all.Go(func() {
			defer e.Close()
			for k := i % keys; ctx.Err() == nil; k = (k + 7) % keys {
				_ = e.Lock(ctx, "k"+strconv.Itoa(k), "", func(ctx context.Context) {
					if n := holders[k].Add(1); n != 1 {
						t.Errorf("%d have k%d", n, k)
					}
					if was := tokens[k].Swap(locks.Token(ctx)); was >= locks.Token(ctx) {
						t.Errorf("k%d: token %d after %d", k, locks.Token(ctx), was)
					}
					got[i]++
					<-time.After(busyFor)
					holders[k].Add(-1)
				})
			}
		})
	}
	all.Wait()
	return got
}
