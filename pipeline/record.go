package pipeline

import (
	"context"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/checkpoint"
)

// record records in the link's document how operations are assigned to lanes, and the filters,
// if they are not there.
func (p *Pipeline) record(ctx context.Context, link *checkpoint.Link, st checkpoint.State) error {
	if !applier.KnowsRouting(st.Routing) {
		if err := link.SetRouting(ctx, applier.Routing); err != nil {
			return err
		}
	}
	if p.cfg.Filters == nil {
		return nil
	}
	return link.SetFilters(ctx, *p.cfg.Filters)
}
