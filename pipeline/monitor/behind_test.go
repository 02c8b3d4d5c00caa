package monitor

import (
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/internal/mongo"
)

// TestNotSteadyBehindMember: a link that has applied everything of a member that is itself behind lags the source by as much.
func TestNotSteadyBehindMember(t *testing.T) {
	for name, tt := range map[string]struct {
		delay, behind time.Duration
		applied       uint32
		want          State
		lag           time.Duration
	}{
		"a member that is not behind":  {want: Steady, applied: 1000},
		"a delayed one":                {behind: time.Minute, applied: 1000, want: CatchingUp, lag: time.Minute},
		"and not all of it is applied": {behind: time.Minute, applied: 996, want: CatchingUp, lag: 64 * time.Second},
		"on purpose":                   {behind: time.Minute, delay: time.Hour, applied: 1000, want: Steady, lag: time.Minute},
		"more than on purpose":         {behind: time.Minute, delay: 10 * time.Second, applied: 1000, want: CatchingUp, lag: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := New(Config{Delay: tt.delay, Waits: &mongo.Waits{}})
				m.Moved(at(tt.applied, tt.applied))
				st := fetcher.Status{Host: "a:1", Replies: 1, HeardAt: time.Now()}
				st.Metadata.Host, st.Metadata.Behind = "a:1", tt.behind
				var wall int64
				st.Metadata.Committed, wall = entry(1000)
				st.Metadata.CommittedWall = bson.DateTime(wall)
				m.heard(st)
				m.wants(t, tt.want)
				if s := m.Snapshot(); s.Lag != tt.lag {
					t.Errorf("the lag is %s, want %s", s.Lag, tt.lag)
				}
			})
		})
	}
}
