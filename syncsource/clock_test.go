package syncsource

import (
	"testing"
	"time"
	"unsafe"

	"pgregory.net/rapid"
)

// TestClock: however long answers take, and whenever meanwhile the member read its clock, the
// estimate is within its own bound, and a clock that is set is noticed.
func TestClock(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
		ahead := time.Duration(rapid.Int64Range(-1e15, 1e15).Draw(t, "ahead"))
		var c Clock
		for i := range rapid.IntRange(1, 20).Draw(t, "answers") {
			if i > 0 && rapid.IntRange(0, 5).Draw(t, "is set") == 0 {
				// By more than an answer takes at most: otherwise it cannot be noticed at once.
				ahead += time.Duration(rapid.SampledFrom([]int64{-1, 1}).Draw(t, "sign")) * (25*time.Second + time.Duration(rapid.Int64Range(0, 1e12).Draw(t, "by")))
			}
			took := time.Duration(rapid.Int64Range(0, 1e10).Draw(t, "took"))
			looked := time.Duration(rapid.Int64Range(0, int64(took)).Draw(t, "looked"))
			shown := now.Add(looked + ahead).Truncate(time.Millisecond)
			c = c.better(measureClock(shown, now, took))
			if off := (c.Ahead - ahead).Abs(); off > c.Within || c.Within > took/2+time.Millisecond && c.At.Equal(now.Add(took)) {
				t.Fatalf("answer %d: %s ahead, within %s; it is %s", i, c.Ahead, c.Within, ahead)
			}
			now = now.Add(took + time.Duration(rapid.Int64Range(0, 5e9).Draw(t, "pause")))
		}
	})
}

// TestClockKeeps: a better measurement is kept against worse ones, for a while.
func TestClockKeeps(t *testing.T) {
	t.Parallel()
	now := time.Now()
	exact := measureClock(now.Add(time.Second), now, 0)
	worse := measureClock(now.Add(2520*time.Millisecond), now.Add(time.Second), time.Second)
	if got := exact.better(worse); got != exact {
		t.Errorf("%+v", got)
	}
	late := worse
	late.At = exact.At.Add(clockKeeps)
	if got := exact.better(late); got != late {
		t.Errorf("later: %+v", got)
	}
}

// set returns a time at which the wall clock was set, and the monotonic clock was not: there is no other way to
// make one. Its first word has 30 bits of nanoseconds, below the seconds of the wall clock.
func set(t *testing.T, at time.Time, bySeconds int64) time.Time {
	t.Helper()
	words := (*[2]uint64)(unsafe.Pointer(&at)) //nolint:gosec // the layout is checked below
	words[0] += uint64(bySeconds) << 30
	return at
}

// TestClockShows: what the clock of the primary shows follows from the monotonic clock. If the wall clock
// of this process was set, it is not known, not wrong.
func TestClockShows(t *testing.T) {
	t.Parallel()
	if _, known := (Clock{}).Shows(time.Now()); known {
		t.Error("known before a measurement")
	}
	now := time.Now()
	ahead := set(t, now, 3600)
	if ahead.Sub(now) != 0 || ahead.Round(0).Sub(now.Round(0)) != time.Hour {
		t.Fatalf("%s and %s: times have another layout", now, ahead)
	}
	for name, tt := range map[string]struct {
		measured, now time.Time
		want          time.Duration // after now
		known         bool
	}{
		"at once":           {now, now, time.Minute, true},
		"later":             {now.Add(-time.Hour), now, time.Minute, true},
		"set forward":       {now.Add(-10 * time.Second), set(t, now, 3600), 0, false},
		"set back":          {now.Add(-10 * time.Second), set(t, now, -3600), 0, false},
		"suspended":         {set(t, now.Add(-10*time.Second), -60), now, 0, false},
		"measured after it": {set(t, now.Add(-10*time.Second), 3600), set(t, now, 3600), time.Minute + time.Hour, true},
	} {
		c := measureClock(tt.measured.Round(0).Add(time.Minute), tt.measured, 0)
		got, known := c.Shows(tt.now)
		if known != tt.known || known && got.Sub(now.Round(0)) != tt.want {
			t.Errorf("%s: %s after now, %v; want %s, %v", name, got.Sub(now.Round(0)), known, tt.want, tt.known)
		}
	}
}
