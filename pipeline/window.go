package pipeline

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

// windowLoop watches how far the source's oldest entry is before the next entry to
// read.
func (p *Pipeline) windowLoop(ctx context.Context) error {
	tick := time.NewTicker(windowEvery)
	defer tick.Stop()
	var w windowWatch
	for {
		if host, caller := p.readFromNow(); caller != nil {
			if oldest, err := replset.OldestEntry(ctx, caller); err == nil {
				p.tellWindow(host, w.look(time.Now(), oldest.OpTime, p.position()), &w)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// windowWatch estimates when the oldest entry passes a position.
type windowWatch struct {
	looks  []look
	warned bool
}

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
	win := Window{Oldest: oldest.TS, Position: position.TS, At: now, Left: -1}
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

// tellWindow publishes a window, and warns of a short one, once until it is longer
// again.
func (p *Pipeline) tellWindow(host string, win Window, w *windowWatch) {
	p.mu.Lock()
	p.live.window = win
	p.mu.Unlock()
	short := win.Left >= 0 && win.Left < shortLeft
	if short && !w.warned {
		p.cfg.Observer.Log(slog.LevelWarn,
			"the source's oplog is about to lose what the link has not read; a larger oplog (replSetResizeOplog) gives it more time",
			slog.String(keyHost, host), slog.String(keyOldest, timestampText(win.Oldest)),
			slog.String(keyPosition, timestampText(win.Position)), slog.Duration(keyLeft, win.Left.Round(time.Second)))
	}
	w.warned = short
}

// readFromNow returns the member that is being read.
func (p *Pipeline) readFromNow() (string, mongo.Caller) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.live.host, p.live.caller
}

// position returns the entry from which the link would read after a restart.
func (p *Pipeline) position() oplog.OpTime {
	if s := p.shownSpool(); s != nil {
		if _, last, ok := s.Bounds(); ok {
			return last
		}
	}
	return p.progress().FetchFrom
}

// timestampText returns the text of an optime whose term is not known.
func timestampText(at bson.Timestamp) string { return fmt.Sprintf("%d:%d", at.T, at.I) }
