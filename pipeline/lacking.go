package pipeline

import (
	"context"
	"time"

	"github.com/oplogrep/replicator/applier/ddl"
)

// lackingEvery is how often it is looked what the target does not have.
const lackingEvery = time.Second

// lackingLoop shows what of the source the target does not have: views and indexes
// that could not be made. It is in the metadata, so that any process of the link says
// it, whichever found it out, and until it is made.
func (p *Pipeline) lackingLoop(ctx context.Context) error {
	tick := time.NewTicker(lackingEvery)
	defer tick.Stop()
	for {
		// What keeps it from being read keeps the link from getting on, and is said there.
		if l, err := ddl.ReadLacking(ctx, p.target, p.cfg.MetaDB, p.cfg.whole().link); err == nil {
			p.mu.Lock()
			p.live.lacking = l
			p.mu.Unlock()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
