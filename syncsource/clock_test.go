package syncsource

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestClock: whatever the answers take, and whenever within that the member looked at its
// clock, what is kept is within its own bound, and a clock that is set is noticed.
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
