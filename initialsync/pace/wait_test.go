package pace

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/initialsync/clone"
)

func TestNoLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPacer(t, Config{})
		began := time.Now()
		for range 100 {
			if err := p.Wait(t.Context(), math.MaxInt, math.MaxInt); err != nil {
				t.Fatal(err)
			}
		}
		p.Took(clone.Target, time.Hour, 1, 1)
		p.Took("neither", time.Hour, 1, 1)
		if err := p.Wait(t.Context(), 1, 1); err != nil || time.Since(began) != 0 {
			t.Errorf("it took %s, %v", time.Since(began), err)
		}
		if s := p.Status(); s != (Status{Factor: 1}) {
			t.Errorf("%+v", s)
		}
	})
}

// TestLimits: whatever the portions and the number of workers, no more than the limit
// and a quarter of a second's worth is granted, and not much less.
func TestLimits(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		bytesLimit := rapid.SampledFrom([]int64{0, 100_000, 1 << 20, 100 << 20}).Draw(r, "bytes per second")
		docsLimit := rapid.SampledFrom([]int64{0, 3, 1000, 100_000}).Draw(r, "docs per second")
		docs, bytes := rapid.IntRange(0, 5000).Draw(r, "docs"), rapid.IntRange(0, 16<<20).Draw(r, "bytes")
		workers := rapid.IntRange(1, 5).Draw(r, "workers")
		calls := rapid.IntRange(1, 5).Draw(r, "calls")
		synctest.Test(t, func(t *testing.T) {
			p := newPacer(t, Config{BytesPerSecond: bytesLimit, OpsPerSecond: docsLimit})
			began := time.Now()
			var all sync.WaitGroup
			for range workers {
				all.Go(func() {
					for range calls {
						if err := p.Wait(t.Context(), docs, bytes); err != nil {
							t.Error(err)
						}
					}
				})
			}
			all.Wait()
			took, want := time.Since(began).Seconds(), 0.0
			n := float64(workers * calls)
			if bytesLimit > 0 {
				want = n * float64(bytes) / float64(bytesLimit)
			}
			if docsLimit > 0 {
				want = max(want, n*float64(docs)/float64(docsLimit))
			}
			// Parts are whole, so that a little more may be asked for than is wanted.
			if took < want-0.5 || took > 1.1*want+0.5 {
				t.Errorf("%v s, want about %v s", took, want)
			}
		})
	})
}

// TestSetLimits: a change also applies to workers that are waiting.
func TestSetLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPacer(t, Config{BytesPerSecond: 1})
		began := time.Now()
		done := make(chan time.Duration, 3)
		wait := func(bytes int) {
			if err := p.Wait(t.Context(), 1, bytes); err != nil {
				t.Error(err)
			}
			done <- time.Since(began)
		}
		go wait(1 << 20)
		time.Sleep(10 * time.Second)
		p.SetLimits(1<<20, 0)
		if took := <-done; took < 10500*time.Millisecond || took > 11*time.Second {
			t.Errorf("granted after %s", took)
		}
		if s := p.Status(); s.BytesPerSecond != 1<<20 || s.OpsPerSecond != 0 {
			t.Errorf("%+v", s)
		}
		began = time.Now()
		go wait(100 << 20)
		time.Sleep(time.Second)
		// Setting the same limits again grants nothing.
		for range 1000 {
			p.SetLimits(1<<20, 0)
			time.Sleep(time.Millisecond)
		}
		p.SetLimits(0, 5)
		if took := <-done; took < 2*time.Second || took > 2200*time.Millisecond {
			t.Errorf("granted after %s", took)
		}
		p.SetLimits(-5, -1)
		began = time.Now()
		wait(1 << 40)
		if took := <-done; took != 0 {
			t.Errorf("without limits it took %s", took)
		}
		// A stricter limit counts at once too.
		p.SetLimits(100<<20, 0)
		began = time.Now()
		go wait(200 << 20)
		time.Sleep(time.Second)
		p.SetLimits(1<<20, 0)
		if took := <-done; took < 60*time.Second {
			t.Errorf("granted after %s", took)
		}
	})
}

func TestCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := errors.New("ended")
		for name, p := range map[string]*Pacer{
			"limits":   newPacer(t, Config{OpsPerSecond: 1}),
			"pressure": slowed(t, 0.5, time.Minute),
		} {
			ctx, end := context.WithCancelCause(t.Context())
			defer end(nil)
			done := make(chan error, 1)
			go func() { done <- p.Wait(ctx, 100, 100) }()
			time.Sleep(time.Second)
			select {
			case err := <-done:
				t.Fatalf("%s: granted, %v", name, err)
			default:
			}
			end(ended)
			if err := <-done; !errors.Is(err, ended) {
				t.Errorf("%s: %v", name, err)
			}
			if err := p.Wait(ctx, 0, 0); !errors.Is(err, ended) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// slowed returns a Pacer that is under pressure, after some work.
func slowed(t testing.TB, factor float64, work time.Duration) *Pacer {
	p := newPacer(t, Config{})
	p.setFactor(factor, sign{clone.Target, queue, "x"})
	p.Took(clone.Target, work, 1, 1)
	return p
}

// TestPause: workers work for the fraction of the time that the factor says.
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			factor        float64
			workers       int
			reads, writes time.Duration
			atOnce        bool // reading and writing overlap
			least, most   float64
		}{
			{factor: 1, workers: 4, writes: time.Second, least: 1, most: 1},
			{factor: 0.5, workers: 1, writes: 100 * time.Millisecond, least: 0.49, most: 0.51},
			{factor: 0.5, workers: 8, writes: 100 * time.Millisecond, least: 0.47, most: 0.55},
			{factor: 1. / 16, workers: 8, writes: 100 * time.Millisecond, least: 0.055, most: 0.08},
			// Pauses of minutes, of which each is one minute at most.
			{factor: 1. / 16, workers: 8, writes: 10 * time.Second, least: 0.05, most: 0.15},
			{factor: 0.5, workers: 8, reads: 100 * time.Millisecond, writes: 100 * time.Millisecond, least: 0.5, most: 0.75},
			{factor: 0.5, workers: 8, reads: 100 * time.Millisecond, writes: 100 * time.Millisecond, atOnce: true, least: 0.47, most: 0.55},
		} {
			p := slowed(t, c.factor, 0)
			began := time.Now()
			var mu sync.Mutex
			var worked, passed time.Duration
			var all sync.WaitGroup
			for range c.workers {
				all.Go(func() {
					for time.Since(began) < 20*time.Minute {
						p.Took(clone.Source, c.reads, 10, 1000)
						d := c.reads + c.writes
						if c.atOnce {
							d = max(c.reads, c.writes)
						}
						time.Sleep(d)
						p.Took(clone.Target, c.writes, 10, 1000)
						mu.Lock()
						worked += d
						mu.Unlock()
						before := time.Now()
						if err := p.Wait(t.Context(), 10, 1000); err != nil {
							t.Error(err)
						}
						if paused := time.Since(before); paused > longestPause {
							t.Errorf("%+v: paused for %s", c, paused)
						}
					}
					mu.Lock()
					passed += time.Since(began)
					mu.Unlock()
				})
			}
			all.Wait()
			if part := float64(worked) / float64(passed); part < c.least || part > c.most {
				t.Errorf("%+v: worked for %.3f of the time", c, part)
			}
		}
	})
}

// TestPauseEnds: a worker that pauses resumes when the pressure ends, and pauses no
// longer than the limits made it wait.
func TestPauseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := slowed(t, 1./16, 2*time.Second) // 30 s
		began := time.Now()
		done := make(chan time.Duration, 1)
		go func() {
			if err := p.Wait(t.Context(), 1, 1); err != nil {
				t.Error(err)
			}
			done <- time.Since(began)
		}()
		time.Sleep(time.Second)
		p.setFactor(0.25, sign{}) // 6 s
		time.Sleep(time.Second)
		p.setFactor(0.5, sign{}) // 2 s
		if took := <-done; took != 2*time.Second {
			t.Errorf("paused for %s", took)
		}
		// More pressure does not prolong a pause beyond the longest.
		p = slowed(t, 0.5, 50*time.Second)
		began = time.Now()
		go func() {
			if err := p.Wait(t.Context(), 1, 1); err != nil {
				t.Error(err)
			}
			done <- time.Since(began)
		}()
		time.Sleep(time.Second)
		p.setFactor(1./16, sign{})
		if took := <-done; took != longestPause {
			t.Errorf("paused for %s", took)
		}
		p = slowed(t, 0.5, 10*time.Second)
		p.SetLimits(0, 10)
		began = time.Now()
		if err := p.Wait(t.Context(), 80, 0); err != nil || time.Since(began) != 10*time.Second {
			t.Errorf("waited for %s, %v", time.Since(began), err)
		}
	})
}

func TestConfig(t *testing.T) {
	t.Parallel()
	_, err := New(Config{BytesPerSecond: -1, OpsPerSecond: -2, Every: -3})
	want := "pace: -1 bytes per second: want 0 or more\npace: -2 operations per second: want 0 or more\npace: ask every -3ns: want 0 or more"
	if err == nil || err.Error() != want {
		t.Errorf("%v", err)
	}
}

// TestGivenBack: a worker that gives up while it waits for the limits leaves its turn to the others.
func TestGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPacer(t, Config{OpsPerSecond: 100})
		wait := func(ctx context.Context, docs int) error { return p.Wait(ctx, docs, 0) }
		if err := wait(t.Context(), 25); err != nil { // a quarter of a second's at once
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		gave := make(chan error, 1)
		go func() { gave <- wait(ctx, 25) }()
		time.Sleep(50 * time.Millisecond)
		cancel(errors.New("gives up"))
		if err := <-gave; err == nil {
			t.Error("it was granted")
		}
		began := time.Now()
		if err := wait(t.Context(), 25); err != nil || time.Since(began) > 200*time.Millisecond {
			t.Errorf("the next one waited %s, %v", time.Since(began), err)
		}
	})
}
