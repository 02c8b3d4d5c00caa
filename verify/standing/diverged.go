package standing

import (
	"context"
	"maps"
	"slices"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// diverged reads the divergences of a link, by the names of their collections at the source.
func diverged(ctx context.Context, target mongo.Caller, db, link string) (map[oplog.Namespace]checkpoint.Diverged, error) {
	all, err := checkpoint.ReadDiverged(ctx, target, db, link)
	of := make(map[oplog.Namespace]checkpoint.Diverged, len(all))
	for _, d := range all {
		of[d.Source] = d
	}
	return of, err
}

// diverged says which divergences are open: a comparison at a cut that is not older, which has found no difference or whose differences were
// repaired, settles one.
func (s *Standing) diverged(docs map[oplog.Namespace]*document, changed *since) {
	states := states(docs, changed, slices.Collect(maps.Keys(changed.diverged)))
	for _, ns := range slices.Sorted(maps.Keys(changed.diverged)) {
		if st, compared := states[ns]; compared && st.Verified && st.Differences == 0 {
			s.Settled = append(s.Settled, changed.diverged[ns])
		} else {
			s.Diverged = append(s.Diverged, changed.diverged[ns])
		}
	}
}

// ForgetDiverged forgets the divergences that a Standing calls settled. One that was met since stays.
func (s *Store) ForgetDiverged(ctx context.Context, settled []checkpoint.Diverged) error {
	for cmd := range checkpoint.ForgetDiverged(s.DB, s.Link, settled) {
		if err := s.write(ctx, cmd); err != nil {
			return err
		}
	}
	return nil
}
