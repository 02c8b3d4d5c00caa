package share_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease/share"
)

// chance is a fleet to which things happen at random.
type chance struct {
	*fleet
	rand    *rand.Rand
	names   int
	drained map[string]bool
	log     []string
}

func (c *chance) note(format string, args ...any) {
	c.log = append(c.log, time.Now().Format("15:04:05 ")+fmt.Sprintf(format, args...))
}

// any returns a process, nil if there is none.
func (c *chance) any() *process {
	names := make([]string, 0, len(c.all))
	for name := range c.all {
		names = append(names, name)
	}
	if slices.Sort(names); len(names) == 0 {
		return nil
	}
	return c.all[names[c.rand.IntN(len(names))]]
}

// join starts a member, under a new name or that of one before it.
func (c *chance) join(name string) {
	if name == "" {
		c.names++
		name = fmt.Sprintf("m%d", 1000+c.names)
	}
	c.note("%s starts", name)
	c.start(name, 0)
}

// step is what happens next.
func (c *chance) step() {
	p := c.any()
	switch n := c.rand.IntN(20); {
	case n < 3 || len(c.all) < 2:
		if len(c.all) < 6 {
			c.join("")
		}
	case n < 5:
		c.note("%s is killed", p.name)
		p.kill()
		delete(c.all, p.name)
		if c.rand.IntN(2) == 0 {
			c.join(p.name)
		}
	case n < 6:
		c.note("%s shuts down", p.name)
		p.net.set(up)
		p.shutdown()
		delete(c.all, p.name)
	case n < 13:
		state := c.rand.IntN(4)
		c.note("the network of %s: %s", p.name, []string{"up", "cut", "frozen", "deaf"}[state])
		p.net.set(state)
	case n < 14:
		c.drain(p.name, !c.drained[p.name])
	case n < 16:
		c.mu.Lock()
		if i := c.rand.IntN(len(c.partitions) + 1); i < len(c.partitions) && len(c.partitions) > 10 {
			c.note("without %s", c.partitions[i])
			c.partitions = slices.Delete(slices.Clone(c.partitions), i, i+1)
		} else {
			c.names++
			c.partitions = append(slices.Clone(c.partitions), fmt.Sprintf("q%04d", c.names))
		}
		c.mu.Unlock()
	case n < 17:
		slow := time.Duration(c.rand.IntN(1500)) * time.Millisecond // less than the margin before another one has the lease
		c.note("works end within %s", slow)
		c.mu.Lock()
		c.slows = func(string, string) time.Duration { return slow }
		c.mu.Unlock()
	case n < 18:
		c.note("the store elects another primary, which does not know yet that a majority has the last plan")
		c.store.Elect(0)
		c.board.Lag(true)
	default:
		share := c.rand.IntN(4)
		c.note("%d of 10 calls are lost, and as many replies", share)
		c.away(func(context.Context, string) (bool, error) {
			switch n := rand.IntN(10); {
			case n < share:
				return true, errLost
			case n < 2*share:
				return false, errCut
			}
			return true, nil
		})
	}
}

func (c *chance) drain(name string, drained bool) {
	do := share.Undrain
	if drained {
		do = share.Drain
	}
	err := do(context.Background(), c.board, "g", name)
	c.note("%s drains: %t: %v", name, drained, err)
	if c.drained[name] = drained; err != nil {
		c.drained[name] = true // it may
	}
}

// settle ends all faults. Then all is even, and stays where it is.
func (c *chance) settle() {
	c.away(nil)
	c.board.Lag(false)
	c.mu.Lock()
	c.slows = nil
	c.mu.Unlock()
	for _, p := range c.all {
		p.net.set(up)
	}
	for name := range c.drained {
		must.Succeed(c.t, share.Undrain(context.Background(), c.board, "g", name))
	}
	if len(c.all) == 0 {
		c.join("")
	}
	time.Sleep(2 * time.Minute)
	before := c.even(len(c.all))
	c.state()
	time.Sleep(time.Minute)
	if n, _ := moved(before, c.even(len(c.all))); n != 0 {
		c.t.Errorf("%d moved", n)
	}
}

// TestFleetsAtRandom: no two members work on one partition, whichever of them start, end, die, are suspended or cut off, whatever is lost, and
// when that ends each partition has a member, and keeps it. SHARE_RANDOM is how many times.
func TestFleetsAtRandom(t *testing.T) {
	times, _ := strconv.Atoi(os.Getenv("SHARE_RANDOM"))
	first, _ := strconv.Atoi(os.Getenv("SHARE_FIRST"))
	for seed := first; seed < first+cmp.Or(times, 20); seed++ {
		synctest.Test(t, func(t *testing.T) {
			c := &chance{fleet: newFleet(t, 12), rand: rand.New(rand.NewPCG(7, uint64(seed))), drained: map[string]bool{}} //nolint:gosec // a test
			for range 3 {
				c.join("")
			}
			for range 40 {
				time.Sleep(time.Duration(c.rand.IntN(12000)) * time.Millisecond)
				c.step()
			}
			c.settle()
			if t.Failed() {
				t.Fatalf("seed %d\n%s", seed, strings.Join(c.log, "\n"))
			}
		})
	}
}
