package standby

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestMayOffer: a process that got the lease by an offer keeps it for a while.
func TestMayOffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Candidate{}
		wants := func(want bool) {
			t.Helper()
			if c.mayOffer() != want {
				t.Errorf("it may offer the lease: %t", !want)
			}
		}
		wants(true)
		now := time.Now()
		c.accepted.Store(&now)
		wants(false)
		time.Sleep(offerAgain - time.Second)
		wants(false)
		time.Sleep(time.Second)
		wants(true)
	})
}
