package pipeline

import (
	"context"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
)

// resize gives the link the configured number of lanes. While its lanes are not all at
// the checkpoint, it returns the entry up to which the old lanes must continue.
func (p *Pipeline) resize(ctx context.Context, link *checkpoint.Link) (until oplog.OpTime, err error) {
	st := link.State()
	if st.Writers == p.cfg.Writers {
		return oplog.OpTime{}, nil
	}
	ahead := st.Furthest()
	if ahead.After(st.Applied) {
		return ahead, nil
	}
	if err := link.Resize(ctx, st.Progress(), p.cfg.Writers); err != nil {
		return oplog.OpTime{}, err
	}
	return oplog.OpTime{}, lease.ErrSpent
}
