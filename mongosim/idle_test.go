//go:build unix

package mongosim

import (
	"syscall"
	"testing"
	"time"
)

// TestIdle measures the cost of an idle set. It is not parallel, so that
// nothing else is counted.
func TestIdle(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes two seconds: not with -short")
	}
	StartTest(t, Options{Members: 3, Seed: 1})
	spent := func() time.Duration {
		var u syscall.Rusage
		succeed(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before, start := spent(), time.Now()
	<-time.After(2 * time.Second)
	share := float64(spent()-before) / float64(time.Since(start))
	t.Logf("three idle members use %.1f%% of a CPU", 100*share)
}
