package pipeline

import (
	"context"
	"time"

	"github.com/oplogrep/replicator/applier/ddl"
)

// lackingEvery is how often the metadata are read for what the target lacks.
const lackingEvery = time.Second

// lackingLoop publishes what the target lacks of the source: views and indexes that
// could not be created. It is recorded in the metadata, so every process of the link
// reports it, whichever found it, until it is created.
func (p *Pipeline) lackingLoop(ctx context.Context) error {
	tick := time.NewTicker(lackingEvery)
	defer tick.Stop()
	for {
		// An error that prevents this read also stops the link, and is reported there.
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
