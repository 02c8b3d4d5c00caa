package status

import (
	"testing"
	"time"

	"github.com/oplogrep/replicator/oplog"
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

// TestNoPrimaryYet: the first reply of a member that knows no primary does not say as of when the target is exact, nor how far it lags:
// the others may have written long before.
func TestNoPrimaryYet(t *testing.T) {
	t.Parallel()
	for _, none := range []bool{false, true} {
		now := time.Now()
		p := monitor.Snapshot{HeardAt: now, NoPrimarySince: now, NoPrimaryYet: none}
		p.Progress.Applied = oplog.NewOpTime(7, 1, 1)
		p.Log.Applied = p.Progress.Applied
		s := Snapshot{Consistent: true, silentAfter: time.Minute}
		(&Tracker{}).addLag(&s, &p, now)
		if (s.ExactAt == nil) != none || (s.LagSeconds == nil) != none {
			t.Errorf("none yet %t: exact at %v, lag %v", none, s.ExactAt, s.LagSeconds)
		}
	}
}
