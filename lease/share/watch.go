package share

import "time"

// watch judges which members are alive, from what a coordinator reads.
//
// A member is dead when its beats have stopped by the store's clock, and for as long as this
// process has looked. The store's clock alone would be wrong after an election, this process's after
// it was suspended or could not read: what it has not seen does not count.
type watch struct {
	every time.Duration
	// need is how long a member is watched before it may be dead.
	need, afterBreak time.Duration
	// from is since when there was no break, last when the last reply came.
	from, last time.Time
	seen       map[string]sighting
}

// sighting is a member's beat, and when it was seen first.
type sighting struct {
	process string
	beat    time.Time
	at      time.Time
}

// newWatch returns a watch. The process has lately had no trouble with the store, or had.
func newWatch(every, ttl time.Duration, trouble bool) *watch {
	w := &watch{every: every, need: 2 * every, afterBreak: ttl, seen: map[string]sighting{}}
	if trouble {
		w.need = ttl
	}
	return w
}

// look takes the records that were read: sent and came are when, by this process's clock, now is the time
// by the store's. It returns since when the beats of those that are dead have not been seen to move.
func (w *watch) look(members []Member, now, sent, came time.Time) map[string]time.Duration {
	if !w.last.IsZero() && came.Sub(w.last) > 3*w.every/2 {
		w.from, w.need = time.Time{}, w.afterBreak // suspended, or the store was away: for the members, too
	}
	if w.last = came; w.from.IsZero() {
		w.from = came
	}
	// Two looks are a little less than Every apart, when the first reply took longer.
	slack := w.every / 4
	dead := map[string]time.Duration{}
	seen := make(map[string]sighting, len(members))
	for i := range members {
		m := &members[i]
		s, ok := w.seen[m.Name]
		if !ok || s.process != m.Process || !s.beat.Equal(m.Beat) {
			s = sighting{process: m.Process, beat: m.Beat, at: came}
		}
		seen[m.Name] = s
		unmoved, age := sent.Sub(latest(s.at, w.from))+slack, now.Sub(m.Beat)
		if unmoved >= w.need && (age >= 3*w.every || unmoved >= 3*w.every) {
			dead[m.Name] = unmoved
		}
	}
	w.seen = seen
	return dead
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
