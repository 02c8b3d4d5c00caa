package pipeline

import "github.com/oplogrep/replicator/checkpoint"

// Cut asks for a consistent cut, which is made as soon as the link follows its source and
// the target can be consistent. It does not block, and may be called concurrently with Run.
func (p *Pipeline) Cut() {
	select {
	case p.cutNow <- struct{}{}:
	default: // one is asked for already
	}
}

// toldCut is called with each cut that the target has confirmed.
func (p *Pipeline) toldCut(c checkpoint.Cut) {
	p.monitor.Cut(c)
	if p.cfg.OnCut != nil {
		p.cfg.OnCut(c)
	}
}
