package dispatch

import (
	"math/rand/v2"
	"sync"
)

// chooser makes random choices that depend on a seed, and on how many were made
// before.
type chooser struct {
	mu  sync.Mutex
	rng *rand.Rand
}

func newChooser(seed int64) *chooser {
	const stream = 0x5a
	return &chooser{rng: rand.New(rand.NewPCG(uint64(seed), stream))} //nolint:gosec // a sample keeps no secret
}

// Below returns a number below n.
func (c *chooser) Below(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rng.IntN(n)
}
