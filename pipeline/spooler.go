package pipeline

import (
	"context"
	"os"
	"path/filepath"

	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/resync"
)

// startLog spools the oplog from the position that the state needs.
func (p *Pipeline) startLog(ctx, soft context.Context, src checkpoint.Source, st checkpoint.State) error {
	return p.log.Start(ctx, soft, initialsync.LogStart{
		Dir: p.spoolDir, Copy: st.Copy, From: p.readFrom(st),
		Fetch: func(from oplog.OpTime) (initialsync.Fetcher, error) {
			var pin fetcher.Member
			if st.Copy.Phase != checkpoint.Copied {
				pin = p.pinned(st.Copy)
			}
			return p.newFetcher(src, from, oplog.OpTime{}, pin)
		},
	})
}

// hasSpooled reports whether there are unapplied entries on disk.
func (p *Pipeline) hasSpooled() bool {
	s := p.log.Spool()
	if s == nil {
		return false
	}
	_, last, ok := s.Bounds()
	return p.isCopying() || ok && last.After(p.progress().Applied)
}

// sweepSpools removes the spools of resyncs that have ended; those of the present
// attempt are kept. A spool that cannot be removed does no harm, and is tried again
// with the next attempt.
func (p *Pipeline) sweepSpools(keep map[string]bool) {
	if p.cfg.Copy.SpoolDir == "" {
		return
	}
	found, _ := os.ReadDir(p.spoolDir) // the folder may not exist
	for _, f := range found {
		if resync.IsPart(f.Name()) && !keep[f.Name()] {
			_ = spool.Clear(filepath.Join(p.spoolDir, f.Name()))
		}
	}
}
