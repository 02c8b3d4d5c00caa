package share_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease/locks/lockstest"
	"github.com/oplogrep/replicator/lease/share"
	"github.com/oplogrep/replicator/lease/share/sharetest"
)

// TestAliveByAnyClock: a member that has died is not said to be alive, also after the store's clock was set.
func TestAliveByAnyClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		board, store := sharetest.NewMemory(), lockstest.NewMemory()
		must.Get(board.Beat(t.Context(), "g", share.Member{Name: "m", Process: "p"}, time.Second))(t)
		for skew, want := range map[time.Duration]bool{0: true, -5 * time.Second: true, -6 * time.Hour: false, 6 * time.Hour: false} {
			board.Skew(skew)
			s := must.Get(share.State(t.Context(), board, store, "g"))(t)
			if len(s.Members) != 1 || s.Members[0].Alive != want {
				t.Errorf("the store's clock is %s off: %+v, want alive %t", skew, s.Members, want)
			}
		}
	})
}
