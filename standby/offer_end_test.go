package standby

import (
	"errors"
	"testing"
	"time"

	"github.com/oplogrep/replicator/syncsource"
)

// TestOfferedOnce: a process that has just got the lease by an offer, and finds that no member has the
// oplog either, does not offer it back. Two that both cannot read on would pass it to each other
// for ever, and neither would end.
func TestOfferedOnce(t *testing.T) {
	t.Parallel()
	c := &Candidate{}
	c.cfg.TTL, c.cfg.OfferFor = 10*time.Second, time.Hour
	now := time.Now()
	c.accepted.Store(&now)
	stale := &syncsource.TooStaleError{}
	if err := c.BeforeEnd(t.Context(), t.Context(), stale); !errors.Is(err, stale) {
		t.Errorf("it ends with %v", err)
	}
}
