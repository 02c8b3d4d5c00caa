package pipeline

import (
	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
)

// showGaps publishes what the target lacks at the link's position.
func (p *Pipeline) showGaps(gaps checkpoint.Gaps) {
	p.mu.Lock()
	p.live.gaps = gaps
	p.mu.Unlock()
}

// leftOut returns the collections that are left out.
func (p *Pipeline) leftOut() []checkpoint.LeftOut {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.live.gaps.LeftOut
}

// shownSpool returns the spool that is in use, nil if none is.
func (p *Pipeline) shownSpool() *spool.Spool {
	if c := p.shown.Load(); c != nil {
		return c.spool
	}
	return nil
}
