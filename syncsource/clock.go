package syncsource

import "time"

// Clocks of machines differ. An entry has the time of the clock of the primary that wrote
// it, and how long ago that was is known to this process only if it knows how far that clock
// is ahead of its own. Every reply to hello has the member's clock (localTime), and was
// written at some moment between the request and the reply: the difference is known to half
// of the round trip, and to the millisecond.

// clockKeeps is how long a measurement is kept against a worse one. Clocks drift by less
// than a tenth of a millisecond a second.
const clockKeeps = time.Minute

// clockApart is by how much the wall clock and the monotonic clock of this process may differ
// since a measurement: NTP slews the wall clock by half a millisecond a second at most.
const clockApart = 500 * time.Millisecond

// Clock is how far the clock of a member is ahead of that of this process.
type Clock struct {
	// Ahead is negative if the member's clock is behind. It is wrong by Within at most.
	Ahead, Within time.Duration
	// At is when it was measured, with a reading of the monotonic clock; zero if it was not.
	At time.Time
}

// Shows returns the time of the member's clock at a time of this process. It returns false if
// nothing was measured, or if since then the clock of this process was set or the machine was
// suspended: only the next measurement tells which.
func (c Clock) Shows(now time.Time) (time.Time, bool) {
	if c.At.IsZero() {
		return time.Time{}, false
	}
	// By the monotonic clock. The wall clock of now may be any time.
	passed := now.Sub(c.At)
	if apart := now.Round(0).Sub(c.At.Round(0)) - passed; apart.Abs() > clockApart {
		return time.Time{}, false
	}
	return c.At.Round(0).Add(c.Ahead + passed), true
}

// measureClock returns how far the clock of a member is ahead, by its time during a
// request.
func measureClock(shown, asked time.Time, took time.Duration) Clock {
	half := took / 2
	// Only the wall clock of this process may count here, as with entries.
	return Clock{Ahead: shown.Sub(asked.Add(half).Round(0)), Within: half + time.Millisecond, At: asked.Add(took)}
}

// better returns the better of two measurements of one clock: the more exact one, unless it
// is old, or the newer one excludes it because a clock was set.
func (c Clock) better(newer Clock) Clock {
	apart := (newer.Ahead - c.Ahead).Abs()
	if c.At.IsZero() || newer.Within <= c.Within || newer.At.Sub(c.At) >= clockKeeps || apart > newer.Within+c.Within {
		return newer
	}
	return c
}

// Clock returns how far the clock of the set's primary is ahead of that of this process, or
// that of the last primary while there is none; false while none has been measured.
func (w *Watcher) Clock() (Clock, bool) {
	c := w.clock.Load()
	if c == nil {
		return Clock{}, false
	}
	return *c, true
}
