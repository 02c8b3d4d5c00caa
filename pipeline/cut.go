package pipeline

import "github.com/oplogrep/replicator/checkpoint"

// Cut asks for a consistent cut, which is made as soon as the link follows its source and
// the target can be consistent. It does not block, and may be called concurrently with Run.
// A request is forgotten when an attempt ends.
func (p *Pipeline) Cut() {
	select {
	case p.cutNow <- struct{}{}:
	default: // one is asked for already
	}
}

// NewestCut returns the newest consistent cut that the target has confirmed, the zero Cut if
// none is known, and the obstacle to the next one, as far as that is known. It may be
// called concurrently with Run.
func (p *Pipeline) NewestCut() (newest checkpoint.Cut, why string) {
	s := p.monitor.Snapshot()
	return s.NewestCut()
}

// toldCut is called with each cut that the target has confirmed.
func (p *Pipeline) toldCut(c checkpoint.Cut) {
	p.monitor.Cut(c)
	if p.cfg.OnCut != nil {
		p.cfg.OnCut(c)
	}
}
