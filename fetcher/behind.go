package fetcher

import (
	"time"

	"github.com/oplogrep/replicator/syncsource"
)

// leastBehind is by how much a member has to be behind others to count as that: it replies, and the watcher asks the
// others, at different times.
const leastBehind = 10 * time.Second

// behind returns Metadata.Behind of a reply. After an idle time, the timestamps of two entries are far apart although the
// later one has only just been written, so it is no more than the time since the member that was read had got as far as
// all others.
func (f *Fetcher) behind(m *Metadata, now time.Time) time.Duration {
	newest := m.Committed
	view := f.cfg.Watcher.View()
	for i := range view.Members {
		if o := &view.Members[i]; o.Up() && !o.Stranger && o.Committed.After(newest) {
			newest = o.Committed
		}
	}
	if !newest.After(m.Committed) {
		f.newestAt = now
		return 0
	}
	by := time.Duration(int64(newest.TS.T)-int64(m.Committed.TS.T)) * time.Second
	if !f.newestAt.IsZero() {
		by = min(by, now.Sub(f.newestAt))
	}
	if by < leastBehind {
		return 0
	}
	return by
}

// sourceState returns what decides whether the member is left.
func (m *Metadata) sourceState() syncsource.SourceState {
	return syncsource.SourceState{Primary: m.IsPrimary, Applied: m.Applied, HasSource: m.HasSource, Behind: m.Behind}
}
