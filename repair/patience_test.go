package repair

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestPatienceHeld: the time in which the link applies nothing on purpose does not count, nor that in which this ended or began.
func TestPatienceHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		held := false
		p := &patience{held: func() bool { return held }, left: time.Minute}
		p.skip()
		pass := func(d time.Duration, is bool) {
			time.Sleep(d)
			held = is
			p.seen()
		}
		pass(20*time.Second, false)
		pass(time.Hour, true)  // begins
		pass(time.Hour, true)  // lasts
		pass(time.Hour, false) // ends
		if p.left != 40*time.Second {
			t.Errorf("%s are left, want 40s", p.left)
		}
		pass(39*time.Second, false)
		if p.over() {
			t.Error("it is over too early")
		}
		pass(time.Second, false)
		if !p.over() {
			t.Error("it is not over")
		}
	})
}
