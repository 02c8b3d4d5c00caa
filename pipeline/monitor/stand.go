package monitor

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/oplogrep/replicator/buffer"
)

const (
	// standsAfter is how long nothing is applied, although there is something to apply, before
	// that is announced.
	standsAfter = 10 * time.Second
	// standsEvery is how often that is looked for.
	standsEvery = time.Second
)

// StandsLoop announces, until ctx is done, that nothing has been applied for long although
// entries have been read. Stages announce their own long waits; this also finds one that
// stands still for a reason that none of them knows. Entries that a delay withholds count only after it.
// A source that has become silent is noticed here too: nothing else happens then.
func (m *Monitor) StandsLoop(ctx context.Context) {
	tick := time.NewTicker(standsEvery)
	defer tick.Stop()
	at, since, announced := m.position(), time.Now(), false
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		m.notice()
		now, why := m.position(), m.unapplied()
		if now != at || why == "" {
			if announced {
				m.setStands(time.Time{})
				m.cfg.Observer.Log(slog.LevelInfo, "operations are applied again", slog.Duration(keyFor, time.Since(since).Round(time.Millisecond)))
			}
			at, since, announced = now, time.Now(), false
			continue
		}
		if !announced && time.Since(since) >= standsAfter+m.withheld() {
			announced = true
			m.setStands(since)
			m.cfg.Observer.Log(slog.LevelWarn, "nothing is applied", slog.String(keyReason, stands(since, why)))
		}
	}
}

// withheld is how long a delay withholds an entry that has just been read: it compares the entry's time with the clock of this process, of
// which that of the source may be ahead.
func (m *Monitor) withheld() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cfg.Delay == 0 || m.source.HeardAt.IsZero() {
		return m.cfg.Delay
	}
	return m.cfg.Delay + max(0, m.source.Metadata.CommittedWall.Time().Sub(m.source.HeardAt))
}

func stands(since time.Time, why string) string {
	return "nothing has been applied since " + since.UTC().Format(time.TimeOnly) + " UTC: " + why
}

// position changes as long as something is applied.
type position struct {
	standing Standing
	attempts int
	// released are bytes of fetched entries.
	released int64
	commands int64
}

func (m *Monitor) position() position {
	p := position{standing: m.Standing()}
	m.mu.Lock()
	a, before := m.attempt, m.counted
	p.attempts = m.attempts
	m.mu.Unlock()
	p.released, p.commands = a.buffer().Released, a.counts(before).Commands
	return p
}

// buffer returns the state of the entries that were fetched and are not applied, the zero value while a copy
// is made.
func (a *Attempt) buffer() buffer.Stats {
	switch {
	case a.Queue != nil:
		return a.Queue.Stats()
	case a.Sync == nil && a.Spool != nil:
		return a.Spool.Stats()
	}
	return buffer.Stats{}
}

// unapplied describes the entries to be applied, and where they are. It is empty if there are none.
func (m *Monitor) unapplied() string {
	m.mu.Lock()
	a, resting := m.attempt, m.resting
	m.mu.Unlock()
	if resting || a.Sync != nil || m.cfg.Paused != nil && m.cfg.Paused() {
		return ""
	}
	b := a.buffer()
	unread := a.Queue == nil && a.Spool != nil && !a.Spool.AllRead()
	if b.Buffered == 0 && !unread {
		return ""
	}
	text := fmt.Sprintf("%d replies wait in the buffer, and %d bytes are after it", b.Replies, b.Buffered-b.Queued)
	if a.Counts != nil {
		s := a.Counts()
		text += fmt.Sprintf(", %d of them in the lanes", s.WindowBytes)
		if s.Throttled {
			return "" // it waits on purpose
		}
		if s.WaitsFor != "" {
			text += "; the applier waits for " + s.WaitsFor
		}
	}
	if unread {
		text += "; more is on disk"
	}
	return text
}

// setStands records since when nothing has been applied, zero if something is.
func (m *Monitor) setStands(since time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stands = since
}
