package status

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/monitor"
)

// freezes are what may freeze while a link is steady, and what the pipeline knows of it some
// time later. TestStatusCannotLie of the pipeline has the same with a real one.
var freezes = map[string]struct {
	// knows changes what the pipeline knows, so long after something froze at that time.
	knows func(s *monitor.Snapshot, at time.Time, after time.Duration)
	// verdict and level are shown after 10 s, later after a minute and 10 s, when /healthz
	// returns 503.
	verdict string
	level   Level
	later   string
	// lag and unapplied report whether these are known.
	lag, unapplied bool
}{
	"the source": {
		knows:   func(s *monitor.Snapshot, at time.Time, _ time.Duration) { s.HeardAt = at },
		verdict: "source-silent", level: Unknown, later: "source-gone",
	},
	"the source, with entries that are not applied": {
		knows: func(s *monitor.Snapshot, at time.Time, _ time.Duration) {
			s.HeardAt, s.Lag, s.Source.Committed = at, time.Second, newest(1001)
		},
		verdict: "source-silent", level: Unknown, later: "source-gone", unapplied: true,
	},
	"the source's primary": {
		knows:   func(s *monitor.Snapshot, at time.Time, _ time.Duration) { s.HeardAt, s.NoPrimarySince = time.Now(), at },
		verdict: "source-no-primary", level: Unknown, later: "source-no-primary",
	},
	"the target": {
		knows: func(s *monitor.Snapshot, at time.Time, after time.Duration) {
			s.HeardAt, s.TargetSilent = time.Now(), at.Add(time.Second)
			s.Lag, s.Source.Committed = after, newest(1000+uint32(after/time.Second))
		},
		verdict: "target-silent", level: Attention, later: "target-gone", lag: true, unapplied: true,
	},
	"one command of the target": {
		knows: func(s *monitor.Snapshot, at time.Time, after time.Duration) {
			s.HeardAt = time.Now()
			if after > 5*time.Second {
				s.Waits = []mongo.Wait{{Side: "target", Command: "insert", Namespace: "shop.a", Since: at}}
			}
		},
		verdict: "target-waits", level: Attention, later: "target-waits", lag: true, unapplied: true,
	},
	"the disk of the spool": {
		knows: func(s *monitor.Snapshot, at time.Time, _ time.Duration) {
			s.State, s.HeardAt, s.Blocked, s.Spool = monitor.CatchingUp, at, at, &spool.DiskStats{}
			s.Lag, s.Source.Committed = time.Second, newest(1001)
		},
		verdict: "spool-waits", level: Attention, later: "spool-waits", unapplied: true,
	},
}

// newest is an entry of a second.
func newest(second uint32) oplog.OpTime { return at(second) }

// TestKnownWithinTenSeconds: ten seconds after something froze, the verdict and the figures say
// so, and go on to say so; nothing that was true before is shown as if it still were.
func TestKnownWithinTenSeconds(t *testing.T) {
	for name, c := range freezes {
		synctest.Test(t, func(t *testing.T) {
			tr := newTracker(t, Config{Link: "l"})
			var p fakePipeline
			tr.Follow(p.Snapshot)
			during(tr, &p, 30, func(s *monitor.Snapshot, _ int) { steadily(s); s.HeardAt = time.Now() })
			at := time.Now()
			exact := *tr.Snapshot().ExactAt
			for after := time.Duration(0); after < 90*time.Second; after += time.Second {
				during(tr, &p, 1, func(s *monitor.Snapshot, _ int) {
					steadily(s)
					s.Window.At = time.Now()
					c.knows(s, at, after)
				})
				s := tr.Snapshot()
				switch {
				case after < 10*time.Second:
					continue
				case after <= time.Minute-2*time.Second && (s.Verdict.Name != c.verdict || s.Verdict.Level != c.level || !s.Healthy()):
					t.Errorf("%s, after %s: %s (%s), healthy %t", name, after, s.Verdict.Name, s.Verdict.Level, s.Healthy())
				case after >= 70*time.Second && (s.Verdict.Name != c.later || s.Healthy() && c.later != "target-waits"):
					t.Errorf("%s, after %s: %s (%s), healthy %t", name, after, s.Verdict.Name, s.Verdict.Level, s.Healthy())
				}
				if (s.LagSeconds != nil) != c.lag || (s.AgeOfOldestUnappliedSeconds != nil) != c.unapplied {
					t.Errorf("%s, after %s: lag %v, oldest unapplied %v", name, after, s.LagSeconds, s.AgeOfOldestUnappliedSeconds)
				}
				if (c.verdict == "source-silent" || c.verdict == "source-no-primary") && s.ExactAt.After(exact.Add(time.Second)) {
					t.Errorf("%s, after %s: exact as of %s, it was of %s", name, after, s.ExactAt, exact)
				}
				if *s.Applier.OpsPerSecond != 0 {
					t.Errorf("%s, after %s: %v operations per second", name, after, *s.Applier.OpsPerSecond)
				}
			}
		})
	}
}

// TestSilenceWhileNotAsked: a source that was not asked for long is not silent when it is asked
// again.
func TestSilenceWhileNotAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTracker(t, Config{Link: "l"})
		var p fakePipeline
		tr.Follow(p.Snapshot)
		at := time.Now()
		during(tr, &p, 100, func(s *monitor.Snapshot, _ int) { steadily(s); s.HeardAt, s.Blocked = at, at })
		p.set(func(s *monitor.Snapshot) { s.Blocked = time.Time{} })
		if v := tr.Snapshot().Verdict; v.Name == "source-silent" || v.Name == "source-gone" {
			t.Errorf("asked again: %s", v.Sentence)
		}
		time.Sleep(9 * time.Second)
		if v := tr.Snapshot().Verdict; v.Name != "source-silent" {
			t.Errorf("9 s later: %s", v.Sentence)
		}
	})
}
