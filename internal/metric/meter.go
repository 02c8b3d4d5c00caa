package metric

import (
	"sync"
	"time"
)

// Phase is the activity of a goroutine of a stage.
type Phase int

// The phases.
const (
	// Idle: it has nothing to do, or does not run.
	Idle Phase = iota
	// Busy: it works, or a server does for it.
	Busy
	// Blocked: it has something for the stage after it, which has no room.
	Blocked
	// Waiting: it waits for work that is on its way to end, before it may hand out more.
	Waiting
	phases
)

// Spent is how long a goroutine has been in each phase.
type Spent [phases]time.Duration

// Sub returns the time spent after an earlier Spent of the same Meter.
func (s Spent) Sub(before Spent) Spent {
	for i := range s {
		s[i] = max(0, s[i]-before[i])
	}
	return s
}

// Meter measures how long a goroutine is in each phase. A stage enters a phase once for a
// reply, a batch or a flush, never for an entry. It is safe for concurrent use, and nil is
// one that measures nothing.
type Meter struct {
	mu    sync.Mutex // guards the fields below
	phase Phase
	// since is when the phase was entered, zero before the first.
	since time.Time
	spent Spent
}

// Enter sets the phase of the goroutine.
func (m *Meter) Enter(p Phase) {
	if m == nil {
		return
	}
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.since.IsZero() {
		m.spent[m.phase] += now.Sub(m.since)
	}
	m.phase, m.since = p, now
}

// Recount moves a time from one phase to another: only its end has shown which one it was.
func (m *Meter) Recount(from, to Phase, d time.Duration) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.spent[from] -= d
	m.spent[to] += d
}

// Spent returns how long the goroutine has been in each phase until now.
func (m *Meter) Spent(now time.Time) Spent {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.spent
	if !m.since.IsZero() {
		s[m.phase] += max(0, now.Sub(m.since))
	}
	return s
}

// Meters are those of goroutines that do the same work, by number. The zero Meters has none.
type Meters struct {
	mu   sync.Mutex // guards list
	list []*Meter
}

// At returns the Meter of a number; nil Meters have none.
func (m *Meters) At(i int) *Meter {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.list) <= i {
		m.list = append(m.list, &Meter{})
	}
	return m.list[i]
}

// Spent returns how long each of the goroutines has been in each phase until now.
func (m *Meters) Spent(now time.Time) []Spent {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]Spent, len(m.list))
	for i, one := range m.list {
		out[i] = one.Spent(now)
	}
	return out
}
