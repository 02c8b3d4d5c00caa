package status

import (
	"testing"
	"time"

	"github.com/oplogrep/replicator/pipeline/monitor"
)

// TestNoPrimaryWhileBlocked: a source that is not asked, as the entries that it has sent wait for room, cannot say that it has a primary again: its
// last reply may have come during an election of seconds, an hour ago.
func TestNoPrimaryWhileBlocked(t *testing.T) {
	t.Parallel()
	for _, blocked := range []bool{false, true} {
		s := Snapshot{State: string(monitor.CatchingUp), At: time.Now(), noPrimary: time.Hour, silentAfter: time.Second}
		if blocked {
			s.blocked = s.At.Add(-time.Hour)
		}
		if sentence, _ := noPrimary(&s); (sentence == "") != blocked {
			t.Errorf("blocked %t: %q", blocked, sentence)
		}
	}
}
