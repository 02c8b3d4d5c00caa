package repair

import (
	"context"
	"time"

	"github.com/oplogrep/replicator/applier"
)

// held is the reason why a link intentionally applies nothing, however long that lasts.
func (m *Manager) held() bool { return m.cfg.Held != nil && m.cfg.Held() }

// patience is the time for which something is tried. That in which the link applies nothing on
// purpose does not count: seen has to be called while it lasts.
type patience struct {
	held func() bool
	left time.Duration
	last time.Time
	// was is whether it was held when seen was called last.
	was bool
}

// patience returns a new one.
func (j *job) patience() *patience {
	p := &patience{held: j.m.held, left: j.m.cfg.Patience}
	p.skip()
	return p
}

// seen counts the time since it was called last, unless the link was held at its beginning or is
// at its end.
func (p *patience) seen() {
	now, is := time.Now(), p.held()
	if !is && !p.was {
		p.left -= now.Sub(p.last)
	}
	p.last, p.was = now, is
}

// add gives more time.
func (p *patience) add(d time.Duration) { p.left += d }

// over reports whether it is spent.
func (p *patience) over() bool {
	p.seen()
	return p.left <= 0
}

// skip does not count the time since seen was called last.
func (p *patience) skip() { p.last, p.was = time.Now(), p.held() }

// await waits for a result, and counts the time.
func (p *patience) await(ctx context.Context, result <-chan applier.Repaired) (applier.Repaired, error) {
	tick := time.NewTicker(heldPoll)
	defer tick.Stop()
	for {
		select {
		case out := <-result:
			p.seen()
			return out, nil
		case <-tick.C:
			p.seen()
		case <-ctx.Done():
			return applier.Repaired{}, context.Cause(ctx)
		}
	}
}

// tooOld counts the groups in turn as of whose time the source could not be read any more.
type tooOld int

// mostTooOld is how many there may be of a delayed link, which has each group as of so long ago: the
// first one may be after a pause.
const mostTooOld = 2

// add counts a group, and reports whether another try makes no sense.
func (n *tooOld) add(old bool, delay time.Duration) bool {
	if !old || delay == 0 {
		*n = 0
		return false
	}
	*n++
	return *n >= mostTooOld
}
