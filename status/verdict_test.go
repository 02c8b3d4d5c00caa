package status

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/control"
	"github.com/oplogrep/replicator/feedback"
	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/request"
	"github.com/oplogrep/replicator/syncsource"
	"github.com/oplogrep/replicator/verify/standing"
)

// steadily is a link that has caught up.
func steadily(s *monitor.Snapshot) {
	busy(s)
	now := time.Now()
	s.State, s.LastError, s.LastErrorAt, s.Lag, s.Buffer.Waiting = monitor.Steady, "", time.Time{}, 0, false
	s.Source.Committed, s.Fetched, s.HeardAt = at(1000), at(1000), now.Add(-800*time.Millisecond)
	s.Window = monitor.Window{Oldest: at(300).TS, Position: at(900).TS, At: now, Left: 26 * time.Hour}
}

// scenario makes a condition hold, some time after the start of the process.
type scenario func(t *testing.T, tr *Tracker, p *fakePipeline)

// in is a scenario of a steady link that is changed.
func in(change func(s *monitor.Snapshot, now time.Time)) scenario {
	return func(_ *testing.T, _ *Tracker, p *fakePipeline) {
		p.set(func(s *monitor.Snapshot) { steadily(s); change(s, time.Now()) })
	}
}

// controlled is a link for which operators have set something.
func controlled(set func(c *control.Status, s *monitor.Snapshot)) func(*monitor.Snapshot, time.Time) {
	return func(s *monitor.Snapshot, _ time.Time) {
		s.Control = &control.Status{Known: true, Factor: 1, CopyBytesPerSecond: -1, CopyOpsPerSecond: -1}
		set(s.Control, s)
	}
}

// waiting is a command that waits.
func waiting(side string, noted bool) func(*monitor.Snapshot, time.Time) {
	return func(s *monitor.Snapshot, now time.Time) {
		s.Waits = []mongo.Wait{{Side: side, Host: "x:1", Command: "update", Namespace: "shop.orders", Since: now.Add(-14 * time.Second), Noted: noted}}
	}
}

// during samples for some seconds, like Run; change is applied before each sample.
func during(tr *Tracker, p *fakePipeline, seconds int, change func(s *monitor.Snapshot, second int)) {
	for i := range seconds {
		p.set(func(s *monitor.Snapshot) { change(s, i) })
		tr.sample()
		time.Sleep(time.Second)
	}
}

// scenarios has one for each condition.
var scenarios = map[string]scenario{
	"failed": in(func(s *monitor.Snapshot, _ time.Time) {
		s.State, s.LastError = monitor.Failed, "applier: shop.orders {_id: 7}: the target differs from what the link wrote: it has no such document"
	}),
	"stale": in(func(s *monitor.Snapshot, _ time.Time) {
		s.State, s.Reason = monitor.Stale, "the oplogs of all members begin after Timestamp(1000, 1)"
	}),
	"oplog-gone": in(func(s *monitor.Snapshot, _ time.Time) {
		s.Window.Oldest, s.Window.Left = s.Window.Position, 0
	}),
	"resync-failed": in(func(s *monitor.Snapshot, _ time.Time) {
		s.State, s.LeftOut = monitor.CatchingUp, []checkpoint.LeftOut{{NS: "shop.b", Since: at(3)}, {NS: "shop.a", Since: at(3), Failed: "the target does not accept its options: BSON field 'create.clusteredIndex' is an unknown field"}}
	}),
	"source-gone": func(_ *testing.T, tr *Tracker, p *fakePipeline) {
		tr.Observe(syncsource.NoSource{Reason: "none answers", Refused: []syncsource.Refusal{{Host: "b:2", Reason: "cannot be reached: connection refused"}}})
		p.set(func(s *monitor.Snapshot) { steadily(s); s.State = monitor.CatchingUp })
		time.Sleep(2 * time.Minute)
	},
	"source-silent": func(_ *testing.T, _ *Tracker, p *fakePipeline) {
		p.set(steadily)
		time.Sleep(13 * time.Second)
	},
	"source-no-primary": in(func(s *monitor.Snapshot, now time.Time) {
		s.SourceHost, s.NoPrimarySince = "b:2", now.Add(-40*time.Second)
	}),
	"standby-blind": in(func(s *monitor.Snapshot, now time.Time) {
		s.State, s.Process, s.BlindSince = monitor.Standby, "vm:b", now.Add(-20*time.Second)
		s.Reason = "the lease cannot be read since 23:59:41 UTC: no primary of the target answers"
	}),
	"standby-free": in(func(s *monitor.Snapshot, _ time.Time) {
		s.State, s.Process, s.Reason = monitor.Standby, "vm:b", "the lease is free"
	}),
	"standby": in(func(s *monitor.Snapshot, now time.Time) {
		s.State, s.Process, s.Reason = monitor.Standby, "vm:b", "vm:a leads since 23:50:00 UTC in term 4, until 00:00:09 UTC unless it renews"
		s.Leader = &monitor.Leader{Process: "vm:a", Term: 4, Since: now.Add(-10 * time.Minute), Until: now.Add(9 * time.Second), Renews: true}
	}),
	"starting-long": in(func(s *monitor.Snapshot, now time.Time) {
		s.State, s.Since, s.LastError = monitor.Starting, now.Add(-3*time.Minute), "read the lease of link l: no primary of the target answers"
	}),
	"starting": in(func(s *monitor.Snapshot, now time.Time) {
		s.State, s.Since, s.Reason = monitor.Starting, now, "checking the position at the source"
	}),
	"no-progress": failing(90),
	"retrying":    failing(5),
	"stalled": in(func(s *monitor.Snapshot, now time.Time) {
		s.State = monitor.CatchingUp
		s.Stands = &monitor.Stands{Since: now.Add(-45 * time.Second), Why: "3 replies wait in the buffer, and 5000 bytes are after it; the applier waits for room in the lanes"}
	}),
	"cutover-interrupted": cutting(true),
	"cutover":             cutting(false),
	"source-blocked": func(_ *testing.T, tr *Tracker, p *fakePipeline) {
		p.set(steadily)
		tr.mu.Lock()
		defer tr.mu.Unlock()
		tr.blocked, tr.blockAsked = true, time.Now()
	},
	"foreign-writes": in(func(s *monitor.Snapshot, now time.Time) {
		last := now.Add(-time.Minute)
		s.Guard = &guard.Status{Mode: guard.Alarm, Watching: true, State: guard.State{
			Counts: map[string]int64{"update": 3},
			Writes: []guard.Write{{Wall: last, Kind: "update", NS: "store.a", ID: "7", Session: "5f1dbd2e8f6a4c0e9a55b0f3c8d2e417", Txn: 4}},
			Touched: []guard.Touched{
				{NS: "store.a", Source: "shop.a", Count: 3, First: now.Add(-time.Hour), Last: last},
			},
		}}
	}),
	"differences": func(_ *testing.T, tr *Tracker, p *fakePipeline) {
		p.set(steadily)
		tr.Verifies(func() Verification {
			return Verification{Standing: &standing.Standing{
				Differences: 3, Kinds: map[string]int64{"missing": 2, "catalog": 1}, Differing: []standing.Differing{
					{NS: "store.a", SourceNS: "shop.a", Differences: 2, Found: []standing.Found{{Kind: "missing", ID: `{"$numberInt":"7"}`}}},
					{NS: "store.b", SourceNS: "shop.b", Differences: 1, Found: []standing.Found{{Kind: "index", Name: "x_1", What: "missing"}}},
				},
			}}
		})
	},
	"diverged": func(_ *testing.T, tr *Tracker, p *fakePipeline) {
		p.set(steadily)
		tr.Verifies(func() Verification {
			since := time.Date(1999, 12, 31, 22, 30, 0, 0, time.UTC)
			return Verification{Standing: &standing.Standing{Diverged: []checkpoint.Diverged{
				{NS: "store.a", Source: "shop.a", Ops: 100000, Since: since.Add(time.Minute), Until: since.Add(time.Hour), What: "the update found no document"},
				{NS: "store.b", Source: "shop.b", Ops: 1, Since: since, Until: since, What: "the collection does not exist"},
			}}}
		})
	},
	"oplog-short": in(func(s *monitor.Snapshot, _ time.Time) { s.Window.Left = 80 * time.Second }),
	"paused": in(controlled(func(c *control.Status, _ *monitor.Snapshot) {
		c.Paused = &request.Paused{Since: time.Now().Add(-12 * time.Minute), By: "ann@ops1", Why: "the target gets new disks"}
	})),
	"paused-short": in(controlled(func(c *control.Status, s *monitor.Snapshot) {
		c.Paused = &request.Paused{Since: time.Now().Add(-12 * time.Minute), By: "ann@ops1"}
		s.Window.Left = 40 * time.Minute
	})),
	"control-unread": in(controlled(func(c *control.Status, _ *monitor.Snapshot) {
		c.Known, c.UnreadSince, c.UnreadWhy = false, time.Now().Add(-5*time.Second), "no primary of the target answers"
	})),
	"throttled": in(controlled(func(c *control.Status, s *monitor.Snapshot) {
		s.State, s.Buffer.Waiting, s.Lag, s.Source.Committed = monitor.CatchingUp, true, 3*time.Minute, at(1180)
		c.Throttle = request.Limits{OpsPerSecond: 2000, Adaptive: true, Request: "x", At: time.Now().Add(-time.Hour), By: "ann@ops1", Why: "month's end"}
		c.Factor, c.Why = 0.5, "flow control holds its writes back, as its secondaries lag"
	})),
	"throttle-set": in(controlled(func(c *control.Status, _ *monitor.Snapshot) {
		c.Throttle = request.Limits{BytesPerSecond: 1 << 20, Request: "x", At: time.Now().Add(-time.Hour)}
	})),
	"spool-full": in(func(s *monitor.Snapshot, _ time.Time) {
		s.State, s.Spool = monitor.CatchingUp, &spool.DiskStats{Full: true, Why: "its limit of 20 GiB is reached"}
	}),
	"relay-off": in(func(s *monitor.Snapshot, _ time.Time) {
		s.RelayBytes, s.RelayOff = 64<<20, "open the spool in /var/spool/replicator: read-only file system"
	}),
	"relay-over": in(func(s *monitor.Snapshot, _ time.Time) {
		s.State, s.RelayBytes, s.Spool = monitor.CatchingUp, 64<<20, &spool.DiskStats{Bytes: 80 << 20, Limit: 64 << 30}
	}),
	"feedback-refused": func(_ *testing.T, tr *Tracker, p *fakePipeline) {
		p.set(steadily)
		tr.Observe(feedback.Failed{Mode: feedback.Member, MemberID: 3, Host: "a:1", Err: servererr.New(servererr.NodeNotFound, "the set's configuration has no member 3")})
	},
	"target-waits": in(waiting("target", false)),
	"source-waits": in(waiting("source", false)),
	"clocks": in(func(s *monitor.Snapshot, _ time.Time) {
		s.Clock = syncsource.Clock{Ahead: -time.Hour, Within: time.Millisecond, At: time.Now()}
	}),
	"target-silent": in(func(s *monitor.Snapshot, now time.Time) { s.TargetSilent = now.Add(-9 * time.Second) }),
	"target-gone": in(func(s *monitor.Snapshot, now time.Time) {
		s.State, s.Reason, s.TargetSilent = monitor.Starting, "the lease is lost: the lease was not renewed in time", now.Add(-2*time.Minute)
	}),
	"spool-waits": in(func(s *monitor.Snapshot, now time.Time) {
		s.State, s.Spool, s.Blocked = monitor.CatchingUp, &spool.DiskStats{}, now.Add(-11*time.Second)
	}),
	"index-build": in(func(s *monitor.Snapshot, now time.Time) {
		s.State = monitor.CatchingUp
		s.Applier.KeptBack = []applier.KeptBack{{NS: "shop.a", Commit: at(990), Since: now.Add(-3 * time.Minute)}}
		waiting("target", true)(s, now)
	}),
	"resync": in(func(s *monitor.Snapshot, _ time.Time) {
		s.State, s.LeftOut = monitor.CatchingUp, leftOut("shop.a", "shop.b", "shop.c", "shop.d", "shop.e", "shop.f")
	}),
	"copying": func(_ *testing.T, _ *Tracker, p *fakePipeline) {
		p.set(func(s *monitor.Snapshot) { copying(s); s.HeardAt, s.Spool.Full = time.Now(), false })
	},
	"replaying": func(_ *testing.T, _ *Tracker, p *fakePipeline) {
		p.set(func(s *monitor.Snapshot) {
			copying(s)
			s.HeardAt, s.Spool.Full, s.Copy.Phase, s.Copy.Stop = time.Now(), false, checkpoint.Replaying, at(1900)
		})
	},
	"not-consistent": in(func(s *monitor.Snapshot, _ time.Time) {
		s.State, s.CopiedUntil = monitor.InitialSync, at(1200)
	}),
	"catching-up-target": in(func(s *monitor.Snapshot, _ time.Time) {
		s.State, s.Buffer.Waiting, s.Lag, s.Source.Committed = monitor.CatchingUp, true, 3*time.Minute, at(1180)
	}),
	"catching-up": in(func(s *monitor.Snapshot, _ time.Time) {
		s.State, s.Lag, s.Source.Committed = monitor.CatchingUp, 3*time.Second, at(1003)
	}),
	"steady":  in(func(*monitor.Snapshot, time.Time) {}),
	"stopped": in(func(s *monitor.Snapshot, _ time.Time) { s.State, s.Reason = monitor.Stopped, "SIGTERM" }),
}

// failing is a scenario of attempts that fail for some seconds.
func failing(seconds int) scenario {
	return func(_ *testing.T, tr *Tracker, p *fakePipeline) {
		p.set(steadily)
		tr.sample()
		time.Sleep(time.Second)
		during(tr, p, seconds, func(s *monitor.Snapshot, i int) {
			s.State, s.HeardAt = monitor.CatchingUp, time.Now()
			s.LastError, s.LastErrorAt = "applier: insert into shop.a: the target has no room left on its disk", time.Now().Add(-time.Duration(i%3)*time.Millisecond)
		})
	}
}

// play runs a scenario and returns the status and the answer of /healthz at its end.
func play(t *testing.T, run scenario) (s Snapshot, code int, body string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		tr := newTracker(t, Config{Link: "l"})
		var p fakePipeline
		tr.Follow(p.Snapshot)
		run(t, tr, &p)
		s = tr.Snapshot()
		code, body = health(tr)
	})
	return s, code, body
}

// TestVerdicts: each condition is the verdict in a scenario of its own, with the sentence,
// the next step and the health that docs/troubleshooting.md shows. With -rewrite it writes
// that page.
func TestVerdicts(t *testing.T) {
	var page strings.Builder
	page.WriteString(pageHead)
	index(&page)
	for i := range conditions {
		c := &conditions[i]
		run, ok := scenarios[c.name]
		if !ok {
			t.Errorf("%s has no scenario", c.name)
			continue
		}
		s, code, health := play(t, run)
		v := &s.Verdict
		if c.name == "throttle-set" { // it is never the worst
			if v.Name != "steady" || len(v.Also) != 1 {
				t.Errorf("%s: %+v", c.name, v)
			}
			section(&page, c, &Verdict{Sentence: v.Also[0]})
			continue
		}
		if v.Name != c.name || v.Level != c.level {
			t.Errorf("%s: the verdict is %s (%s): %s", c.name, v.Name, v.Level, v.Sentence)
		}
		if v.Since.IsZero() || v.Since.After(s.At) {
			t.Errorf("%s: since %s", c.name, v.Since)
		}
		if unwell := code != http.StatusOK; unwell && c.unwell == nil || !unwell && c.level == Broken || unwell && c.level == Good {
			t.Errorf("%s, %s: /healthz is %d", c.name, c.level, code)
		}
		if !strings.HasPrefix(health, string(c.level)+": "+v.Sentence+"\n") || v.Next != "" && !strings.Contains(health, "\nnext: "+v.Next+"\n") {
			t.Errorf("%s: /healthz says %s", c.name, health)
		}
		if (c.level == Broken || c.level == Attention) && v.Next == "" {
			t.Errorf("%s: nothing is said of what to do", c.name)
		}
		section(&page, c, v)
	}
	if len(scenarios) != len(conditions) {
		t.Errorf("%d scenarios of %d conditions", len(scenarios), len(conditions))
	}
	const path = "../docs/troubleshooting.md"
	if *rewrite {
		must.Succeed(t, os.WriteFile(path, []byte(page.String()), 0o600))
	}
	if diff := cmp.Diff(string(must.Get(os.ReadFile(path))(t)), page.String()); diff != "" {
		t.Errorf("%s is not what the table says (go test ./status -run TestVerdicts -rewrite):\n%s", path, diff)
	}
}

const pageHead = `# Troubleshooting

Every link has a verdict: one sentence, how much it matters, since when, and what to do next. ` + "`/status`" + ` (` + "`verdict`" + `),
` + "`/healthz`" + `, the log (` + "`verdict`" + `) and the metric ` + "`replicator_verdict`" + ` show the same one. Of the conditions below the first
that holds is the verdict, and ` + "`also`" + ` has the others. The [alerts](alerts.md) on verdicts lead to these sections. (` + "`go test ./status -run TestVerdicts -rewrite`" + ` generates this page.)

| level | means |
|---|---|
| good | the target equals the source, or this process stands by |
| working | the link gets there by itself |
| attention | the link continues, but an operator should act |
| unknown | the lag, or the lease, is not known now |
| broken | the link has stopped, or does not mirror everything, until an operator acts |

` + "`replicator status`" + ` shows it from any machine: it finds the process that runs a link by the metadata in the target and asks
it. If that process cannot be reached, or serves no status, the command shows the position that was last recorded in the metadata, and
whether a process runs the link. It exits with code 4 if a link is broken, or with ` + "`--max-lag`" + ` if the target lags more than
that, its lag is unknown, or the target is not consistent.

Verdicts by level; the sentences in the sections are examples:

`

// index writes links to the sections of the conditions, by level.
func index(page *strings.Builder) {
	for _, level := range []Level{Broken, Attention, Unknown, Working, Good} {
		var names []string
		for i := range conditions {
			if c := &conditions[i]; c.level == level {
				names = append(names, fmt.Sprintf("[%s](#%s)", c.name, c.name))
			}
		}
		_, _ = fmt.Fprintf(page, "- **%s**: %s\n", level, strings.Join(names, ", "))
	}
}

// section writes the section of a condition.
func section(page *strings.Builder, c *condition, v *Verdict) {
	health := "200"
	switch {
	case c.unwell != nil && c.level == Broken:
		health = "503"
	case c.unwell != nil:
		health = map[bool]string{true: "503", false: "503 once it has lasted"}[c.name == "oplog-short" || c.name == "stopped"]
	}
	_, _ = fmt.Fprintf(page, "\n## %s\n\n> %s\n\n%s\n\n- Level: %s. `/healthz`: %s.\n", c.name, v.Sentence, c.means, c.level, health)
	if v.Next != "" {
		_, _ = fmt.Fprintf(page, "- Next: %s\n", v.Next)
	}
}

// TestInterruptedCutoverFirst: a cutover that no process works on, while applications may be unable to write, is the verdict also of a link with
// foreign writes, differences or divergences: the cutover may have been begun with them waived.
func TestInterruptedCutoverFirst(t *testing.T) {
	for _, waived := range []string{"foreign-writes", "differences", "diverged"} {
		s, _, _ := play(t, func(t *testing.T, tr *Tracker, p *fakePipeline) {
			scenarios[waived](t, tr, p)
			interrupt(tr, true)
		})
		if v := &s.Verdict; v.Name != "cutover-interrupted" || !strings.Contains(v.Next, "--resume") || len(v.Also) == 0 {
			t.Errorf("%s: the verdict is %+v", waived, v)
		}
	}
}

// TestVerdictOfEachState: no state is without a verdict, also when nothing else is known.
func TestVerdictOfEachState(t *testing.T) {
	for _, state := range states {
		s, _, _ := play(t, func(_ *testing.T, _ *Tracker, p *fakePipeline) {
			p.set(func(s *monitor.Snapshot) { s.State, s.Since = state, time.Now() })
		})
		if s.Verdict.Name == "unknown" || s.Verdict.Sentence == "" {
			t.Errorf("%s: %+v", state, s.Verdict)
		}
	}
}

// TestVerdictIsNotStalled: what looks like a stall and is none.
func TestVerdictIsNotStalled(t *testing.T) {
	for name, change := range map[string]func(s *monitor.Snapshot){
		"it is short":  func(s *monitor.Snapshot) { s.Stands.Since = time.Now().Add(-29 * time.Second) },
		"kept back":    func(s *monitor.Snapshot) { s.Applier.KeptBack = []applier.KeptBack{{NS: "shop.a"}} },
		"it has ended": func(s *monitor.Snapshot) { s.State = monitor.Stopped },
	} {
		s, _, _ := play(t, func(_ *testing.T, _ *Tracker, p *fakePipeline) {
			p.set(func(s *monitor.Snapshot) {
				steadily(s)
				s.Stands = &monitor.Stands{Since: time.Now().Add(-time.Hour)}
				change(s)
			})
		})
		if s.Verdict.Name == "stalled" || strings.Contains(strings.Join(s.Verdict.Also, " "), "Stalled") {
			t.Errorf("%s: %+v", name, s.Verdict)
		}
	}
}

// TestProgressEndsFailing: an operation applied after an error ends the condition.
func TestProgressEndsFailing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTracker(t, Config{})
		var p fakePipeline
		tr.Follow(p.Snapshot)
		failing(100)(t, tr, &p)
		if name := tr.Snapshot().Verdict.Name; name != "no-progress" {
			t.Errorf("it is %s", name)
		}
		p.set(func(s *monitor.Snapshot) { s.Log.Applied = oplog.NewOpTime(1001, 1, 7) })
		tr.sample()
		if v := tr.Snapshot().Verdict; v.Name != "catching-up" {
			t.Errorf("it is %s: %s", v.Name, v.Sentence)
		}
	})
}

// TestVerdictAnnounced: a verdict is announced once it has lasted, and once only; Since is
// when it began.
func TestVerdictAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []VerdictChanged
		tr := newTracker(t, Config{Observer: func(e event.Event) { told = append(told, e.(VerdictChanged)) }})
		var p fakePipeline
		tr.Follow(p.Snapshot)
		listen := func(s *monitor.Snapshot, _ int) { s.HeardAt = time.Now() }
		p.set(steadily)
		during(tr, &p, 10, listen)
		// A wait that is over after two samples is not worth a line.
		p.set(func(s *monitor.Snapshot) { waiting("target", false)(s, time.Now()) })
		during(tr, &p, 2, listen)
		p.set(func(s *monitor.Snapshot) { s.Waits = nil })
		during(tr, &p, 10, listen)
		p.set(func(s *monitor.Snapshot) { s.Window.Left = time.Minute })
		began := time.Now()
		during(tr, &p, 10, func(s *monitor.Snapshot, _ int) { s.HeardAt, s.Window.At = time.Now(), time.Now() })
		var names []string
		for _, c := range told {
			names = append(names, c.From+" "+c.To.Name)
		}
		if diff := cmp.Diff([]string{" steady", "steady oplog-short"}, names); diff != "" {
			t.Fatal(diff)
		}
		if since := told[1].To.Since; !since.Equal(began) {
			t.Errorf("since %s, began %s", since, began)
		}
		if text := told[1].LogValue().String(); !strings.Contains(text, "oplog-short") || !strings.Contains(text, "attention") || !strings.Contains(text, "replSetResizeOplog") {
			t.Error(text)
		}
	})
}

// TestVerdictBlamesTheTarget: a link that cannot begin as the target is away does not say that
// the source is.
func TestVerdictBlamesTheTarget(t *testing.T) {
	s, _, _ := play(t, func(_ *testing.T, _ *Tracker, p *fakePipeline) {
		p.set(func(s *monitor.Snapshot) { s.State, s.Since = monitor.Starting, time.Now() })
		time.Sleep(5 * time.Minute)
	})
	if s.Verdict.Name != "starting-long" || len(s.Verdict.Also) != 0 {
		t.Errorf("%+v", s.Verdict)
	}
}

// cutting is a link that is being cut over, by a process that has died if interrupted.
func cutting(interrupted bool) func(*testing.T, *Tracker, *fakePipeline) {
	return func(_ *testing.T, tr *Tracker, p *fakePipeline) {
		p.set(steadily)
		interrupt(tr, interrupted)
	}
}

// interrupt has the tracker see a cutover.
func interrupt(tr *Tracker, interrupted bool) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.cutover = cutoverSeen{at: time.Now(), is: &Cutover{
		State: "running", Step: "freeze", Since: time.Now().Add(-3 * time.Minute), By: "ann@ops1", BlocksSource: true, Interrupted: interrupted,
	}}
}
