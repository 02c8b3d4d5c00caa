package monitor

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/oplog"
)

const (
	// windowEvery is how often the oldest entry is asked for.
	windowEvery = 10 * time.Second
	// windowLooks is the number of looks that the pace is computed from.
	windowLooks = 30
	// shortLeft is the time left below which a warning is logged.
	shortLeft = 15 * time.Minute
)

// Window is the part of the source's oplog that is left for the link.
type Window struct {
	// Oldest is the member's oldest entry, Position the entry from which the link would
	// read after a restart, At the time of the query.
	Oldest, Position bson.Timestamp
	At               time.Time
	// Newest is the source's newest majority-committed entry then, zero if unknown. Rolls
	// means that Oldest has been seen to move.
	Newest bson.Timestamp
	Rolls  bool
	// Left is the time until Oldest passes Position at its present pace; negative if it
	// does not move, or the pace is not known yet.
	Left time.Duration
}

// WindowLoop observes, until ctx is done, how far the oldest entry of the member that is
// read is before the next entry to read. It warns of a short window, once until it is
// longer again.
func (m *Monitor) WindowLoop(ctx context.Context) error {
	tick := time.NewTicker(windowEvery)
	defer tick.Stop()
	var w windowWatch
	warned := false
	for {
		if host, caller, position := m.reading(); caller != nil {
			if oldest, err := replset.OldestEntry(ctx, caller); err == nil {
				win := w.look(time.Now(), oldest.OpTime, position)
				m.mu.Lock()
				win.Newest = m.source.Metadata.Committed.TS
				m.window = win
				m.mu.Unlock()
				short := win.Left >= 0 && win.Left < shortLeft
				if short && !warned {
					m.warnWindow(host, win)
				}
				warned = short
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// reading returns the member that is being read, and the entry from which the link would
// read after a restart.
func (m *Monitor) reading() (host string, caller mongo.Caller, position oplog.OpTime) {
	m.mu.Lock()
	host, caller, position = m.source.Host, m.source.Caller, m.progress.FetchFrom
	spool := m.attempt.Spool
	m.mu.Unlock()
	if spool != nil {
		if _, last, ok := spool.Bounds(); ok {
			position = last
		}
	}
	return host, caller, position
}

func (m *Monitor) warnWindow(host string, win Window) {
	text := func(at bson.Timestamp) string { return fmt.Sprintf("%d:%d", at.T, at.I) }
	m.cfg.Observer.Log(slog.LevelWarn,
		"the source's oplog is about to lose what the link has not read; a larger oplog (replSetResizeOplog) gives it more time",
		slog.String(keyHost, host), slog.String(keyOldest, text(win.Oldest)),
		slog.String(keyPosition, text(win.Position)), slog.Duration(keyLeft, win.Left.Round(time.Second)))
}

// Oldest returns the oldest entry of the member that is read, false if it is not known.
func (m *Monitor) Oldest(ctx context.Context) (oplog.OpTime, bool) {
	_, caller, _ := m.reading()
	if caller == nil {
		return oplog.OpTime{}, false
	}
	oldest, err := replset.OldestEntry(ctx, caller)
	return oldest.OpTime, err == nil
}

const (
	// windowFresh is how long a Window is valid.
	windowFresh = 3 * windowEvery
	// settledWindow is the window of a source, in seconds, that is not a new one: an oplog
	// whose oldest entry was not seen to move may be one that is not full yet.
	settledWindow = 3600
)

// kept returns how long the source keeps an entry, 0 if that is not known.
func (m *Monitor) kept() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := &m.window
	if w.At.IsZero() || w.Newest.T <= w.Oldest.T {
		return 0
	}
	return time.Duration(w.Newest.T-w.Oldest.T) * time.Second
}

// RunsShort returns why the oplog should be spooled, empty if it need not be: the next entry
// to read after a restart is in the older half of what the source has, and the source
// deletes the oldest entries; or it is in the oldest tenth.
func (m *Monitor) RunsShort() string {
	m.mu.Lock()
	w, spooled := m.window, m.attempt.Spool != nil
	m.mu.Unlock()
	if spooled || w.At.IsZero() || time.Since(w.At) > windowFresh || !w.runsShort() {
		return ""
	}
	return fmt.Sprintf("the link needs entries from %d s ago, and the source has %d s", w.Newest.T-w.Position.T, w.Newest.T-w.Oldest.T)
}

func (w *Window) runsShort() bool {
	all, room := int64(w.Newest.T)-int64(w.Oldest.T), int64(w.Position.T)-int64(w.Oldest.T)
	switch {
	case all <= 0 || room > all:
		return false
	case w.Rolls:
		return room < all/2
	default:
		return all >= settledWindow && room < all/10
	}
}

// windowWatch estimates when the oldest entry passes a position.
type windowWatch struct{ looks []look }

// look is the oldest entry at one time.
type look struct {
	at     time.Time
	oldest bson.Timestamp
}

// look adds a look.
func (w *windowWatch) look(now time.Time, oldest, position oplog.OpTime) Window {
	if n := len(w.looks); n > 0 && oplog.CompareTimestamps(oldest.TS, w.looks[n-1].oldest) < 0 {
		w.looks = nil // another member, with a larger oplog
	}
	w.looks = append(w.looks, look{now, oldest.TS})
	if len(w.looks) > windowLooks {
		w.looks = w.looks[1:]
	}
	win := Window{Oldest: oldest.TS, Position: position.TS, At: now, Left: -1, Rolls: oldest.TS != w.looks[0].oldest}
	room := int64(position.TS.T) - int64(oldest.TS.T)
	switch moved, passed := w.pace(); {
	case oplog.CompareTimestamps(oldest.TS, position.TS) > 0:
		win.Left = 0
	case moved > 0 && passed > 0:
		win.Left = time.Duration(float64(room) / float64(moved) * float64(passed))
	}
	return win
}

// pace returns by how many seconds of its clock the oldest entry has moved in a time,
// without its largest step: after a period with hardly any writes, an hour of the oplog
// is deleted at once, which is not representative.
func (w *windowWatch) pace() (moved int64, passed time.Duration) {
	var most int64
	var took time.Duration
	for i := 1; i < len(w.looks); i++ {
		step, d := int64(w.looks[i].oldest.T)-int64(w.looks[i-1].oldest.T), w.looks[i].at.Sub(w.looks[i-1].at)
		moved, passed = moved+step, passed+d
		if step >= most {
			most, took = step, d
		}
	}
	return moved - most, passed - took
}
