package mongod

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/oplog"
)

// TestBetween: a secondary is timed from the first entry that it is promptly seen to
// have applied. A call that hangs while it starts is not a part of its rate.
func TestBetween(t *testing.T) {
	at := func(n uint32) oplog.OpTime { return oplog.NewOpTime(100, n, 1) }
	// A server applies 1,000 entries a second from a moment on, up to 4,000.
	run := func(t *testing.T, hang, begin time.Duration, stale bool) (*way, error) {
		start, looks := time.Now(), 0
		return between(t.Context(), func(context.Context) (status, error) {
			looks++
			asked := time.Since(start)
			if looks == 2 {
				time.Sleep(hang)
			}
			if !stale || looks != 2 {
				asked = time.Since(start)
			}
			n := min(4000, max(0, asked-begin).Milliseconds())
			return status{State: secondaryState, Applied: at(1 + uint32(n))}, nil
		}, start.Add(-time.Second), at(1), at(4001))
	}
	for name, tt := range map[string]struct {
		hang, begin time.Duration
		least, most time.Duration
		// stale is true if the hanging call answers with the state when it was sent.
		stale bool
	}{
		"at once":                 {0, 0, 3900 * time.Millisecond, 4 * time.Second, false},
		"a long start":            {0, 3 * time.Second, 3900 * time.Millisecond, 4 * time.Second, false},
		"a call hangs":            {3 * time.Second, 3 * time.Second, 3900 * time.Millisecond, 4 * time.Second, false},
		"it applies meanwhile":    {3 * time.Second, time.Second, 1900 * time.Millisecond, 2 * time.Second, false},
		"and what it says is old": {2 * time.Second, 0, 1900 * time.Millisecond, 2 * time.Second, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			w, err := run(t, tt.hang, tt.begin, tt.stale)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			rate := float64(4001-w.first.TS.I) / w.took.Seconds()
			if w.took < tt.least || w.took > tt.most || rate < 990 || rate > 1010 {
				t.Errorf("%s: %s from %s on, %.0f a second", name, w.took, w.first, rate)
			}
			// It was started a second before the first look.
			if until := w.start + w.took; until < 4900*time.Millisecond || until > tt.begin+5100*time.Millisecond {
				t.Errorf("%s: it began %s before it was seen, and ended %s after that", name, w.start, w.took)
			}
			if w.pause > 2*lookEvery {
				t.Errorf("%s: a pause of %s", name, w.pause)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		if _, err := run(t, 10*time.Second, time.Second, false); !errors.Is(err, errAtOnce) {
			t.Errorf("all applied when first seen: %v", err)
		}
	})
}

// TestBetweenPause: a secondary that stands still for a while is seen to; the time counts,
// as it is its own.
func TestBetweenPause(t *testing.T) {
	at := func(n uint32) oplog.OpTime { return oplog.NewOpTime(100, n, 1) }
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		w, err := between(t.Context(), func(context.Context) (status, error) {
			n := time.Since(start)
			if n > time.Second { // it stands still from the first second to the third
				n = max(time.Second, n-2*time.Second)
			}
			return status{State: secondaryState, Applied: at(1 + uint32(min(4000, n.Milliseconds())))}, nil
		}, start, at(1), at(4001))
		if err != nil {
			t.Fatal(err)
		}
		if w.pause < 1900*time.Millisecond || w.pause > 2100*time.Millisecond {
			t.Errorf("a pause of %s, want 2s", w.pause)
		}
		if w.took < 5900*time.Millisecond || w.took > 6*time.Second {
			t.Errorf("it took %s, want 6s", w.took)
		}
	})
}
