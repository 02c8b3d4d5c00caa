package pipeline

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/oplog"
)

// record records in the link's document how operations are assigned to lanes, and what is mirrored,
// if it is not there.
func (p *Pipeline) record(ctx context.Context, link *checkpoint.Link, st checkpoint.State) error {
	if st.Routing != applier.Routing {
		if err := link.SetRouting(ctx, applier.Routing); err != nil {
			return err
		}
	}
	if p.cfg.Filters == nil {
		return nil
	}
	return link.SetFilters(ctx, *p.cfg.Filters)
}

// passOver returns what finds, in the oplog of a way back, what has come from the target: nil for
// every other link.
func (p *Pipeline) passOver(ctx context.Context, st checkpoint.State) (func(*oplog.Entry) (bool, error), error) {
	if st.Back == nil {
		return nil, nil //nolint:nilnil // There is none, and that is no error.
	}
	target, err := replset.Identify(ctx, mongo.Reads(p.target))
	if err != nil {
		return nil, fmt.Errorf("ask the target for its set: %w", err)
	}
	passing, err := guard.LoadPassing(ctx, p.source, guard.PassingConfig{
		MetaDB: p.cfg.MetaDB, Target: target.ReplicaSetID,
		Sessions: func(link, instance string) []bson.Raw {
			return checkpoint.Sessions(p.cfg.MetaDB, link, instance, checkpoint.MaxWriters)
		},
		Ended: func(link, instance string) bool { return link == st.Back.Link && instance == st.Back.Instance },
	}, p.readFrom(st))
	if err != nil {
		return nil, err
	}
	return passing.Over, nil
}
