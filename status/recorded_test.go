package status

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/control"
	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/request"
)

// recording is what happens to a link, and which alerts fire then. Something happens after five
// minutes: change is given the time since then.
type recording struct {
	name    string
	minutes int
	change  func(s *monitor.Snapshot, since time.Duration)
	fires   []string
}

// happensAfter is when a recording's change begins.
const happensAfter = 5 * time.Minute

// behind is a link that has applied nothing for some time, by what the source says.
func behindFor(s *monitor.Snapshot, d time.Duration) {
	s.Lag, s.Source.Committed = d, at(1000+uint32(d/time.Second))
}

var recordings = []recording{
	{"nothing", 90, func(*monitor.Snapshot, time.Duration) {}, nil},
	{"the link is kept an hour behind", 90, func(s *monitor.Snapshot, _ time.Duration) {
		behindFor(s, time.Hour)
		s.Delay = time.Hour
	}, nil},
	{"an operator pauses the link", 80, func(s *monitor.Snapshot, since time.Duration) {
		behindFor(s, since)
		s.State, s.Control.Paused = monitor.CatchingUp, &request.Paused{Since: time.Now().Add(-since), By: "ann@ops1"}
	}, []string{"ReplicatorPaused"}},
	{"the target answers nothing", 40, func(s *monitor.Snapshot, since time.Duration) {
		s.State, s.Since, s.Reason, s.HeardAt = monitor.Starting, time.Now().Add(-since), "the lease is lost: the lease was not renewed in time", time.Time{}
		s.TargetSilent, s.Control = time.Now().Add(-since), nil
	}, []string{"ReplicatorBroken", "ReplicatorNotSteady"}},
	{"the source answers nothing", 40, func(s *monitor.Snapshot, since time.Duration) {
		s.State, s.HeardAt = monitor.CatchingUp, time.Now().Add(-since)
	}, []string{"ReplicatorBroken", "ReplicatorNotSteady"}},
	{"nothing is applied, and the process does not notice", 25, func(s *monitor.Snapshot, since time.Duration) {
		behindFor(s, since)
		s.Progress.Ops = 500
	}, []string{"ReplicatorBehind", "ReplicatorFallsBehind", "ReplicatorStalled"}},
	{"the target is too slow", 45, func(s *monitor.Snapshot, since time.Duration) {
		behindFor(s, since/2)
		s.State, s.Buffer.Waiting = monitor.CatchingUp, true
	}, []string{"ReplicatorBehind", "ReplicatorFallsBehind", "ReplicatorNotSteady"}},
	{"the target is a little too slow", 45, func(s *monitor.Snapshot, since time.Duration) { behindFor(s, since/50) }, nil},
	{"the source deletes faster than the link reads", 30, func(s *monitor.Snapshot, since time.Duration) {
		const pace = 30 // seconds of the oplog are deleted in a second
		left := 26*time.Hour - since*pace
		s.Window.Oldest.T = s.Window.Position.T - uint32(left/time.Second)
		s.Window.Left = left / pace
	}, []string{"ReplicatorOplogShort", "ReplicatorOplogWindowBurns", "ReplicatorOplogWindowBurnsFast"}},
	{"a collection cannot be copied again", 12, func(s *monitor.Snapshot, since time.Duration) {
		behindFor(s, since)
		s.State, s.LeftOut = monitor.CatchingUp, []checkpoint.LeftOut{{NS: "shop.a", Since: at(3), Failed: "the target does not accept its options: BSON field 'create.clusteredIndex' is an unknown field"}}
	}, []string{"ReplicatorBehind", "ReplicatorBroken", "ReplicatorCollectionFailed"}},
	{"something else writes to the target", 20, func(s *monitor.Snapshot, since time.Duration) {
		s.Guard.State.Counts = map[string]int64{"update": 3}
		s.Guard.State.Touched = []guard.Touched{{NS: "store.a", Source: "shop.a", Count: 3, First: time.Now().Add(-since), Last: time.Now().Add(-since)}}
	}, []string{"ReplicatorAttention", "ReplicatorForeignWrites"}},
	{"the oplog of the target may not be read", 25, func(s *monitor.Snapshot, _ time.Duration) {
		s.Guard.Watching, s.Guard.Why = false, "the user of the target may not read local.oplog.rs"
	}, []string{"ReplicatorGuardBlind"}},
	{"an index build takes long, all else goes on", 70, func(s *monitor.Snapshot, since time.Duration) {
		behindFor(s, since)
		s.State, s.Applier.KeptBack = monitor.CatchingUp, []applier.KeptBack{{NS: "shop.a", Since: time.Now().Add(-since)}}
	}, []string{"ReplicatorBehind", "ReplicatorCollectionKeptBack", "ReplicatorFallsBehind", "ReplicatorNotSteady"}},
	{"the process stands by, and cannot read the lease", 12, func(s *monitor.Snapshot, since time.Duration) {
		s.State, s.Process, s.BlindSince, s.Control = monitor.Standby, "vm:b", time.Now().Add(-since), nil
	}, []string{"ReplicatorUnknown"}},
	{"the link is copied", 180, func(s *monitor.Snapshot, _ time.Duration) {
		lag := s.Window
		copying(s)
		s.HeardAt, s.Spool.Full, s.Window, s.Lacking = time.Now(), false, lag, ddl.Lacking{}
	}, nil},
}

// play records the metrics of one instance, each minute. They are those that the rules name.
func (r *recording) play(t *testing.T, ruled map[string]bool) map[string][]string {
	series := map[string][]string{}
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		tr := newTracker(t, Config{Link: "l", Registry: registry})
		start := time.Now()
		tr.Follow(func() (s monitor.Snapshot) {
			steadily(&s)
			s.Window.Position.T, s.Window.Oldest.T = 100_000, 100_000-uint32(s.Window.Left/time.Second)
			now := time.Since(start)
			s.Delay, s.Deferred, s.Progress.Ops, s.Control = 0, nil, int64(now/time.Millisecond), &control.Status{Known: true, Factor: 1, CopyBytesPerSecond: -1, CopyOpsPerSecond: -1}
			s.Guard = &guard.Status{Mode: guard.Alarm, Watching: true, State: guard.State{Wall: time.Now().UnixMilli()}}
			if now >= happensAfter {
				r.change(&s, now-happensAfter)
			}
			return s
		})
		time.Sleep(500 * time.Millisecond)
		for minute := range r.minutes + 1 {
			scrape(t, registry, ruled, series, minute)
			for range 6 { // Each second, as Run does, shows the same, and takes longer.
				tr.sample()
				time.Sleep(10 * time.Second)
			}
		}
	})
	// Drop series that are always 0.
	maps.DeleteFunc(series, func(name string, values []string) bool {
		of := strings.Contains(name, ` level=`) || strings.Contains(name, ` state=`)
		return of && !slices.ContainsFunc(values, func(v string) bool { return v != "0" && v != "_" && v != "stale" })
	})
	return series
}

// scrape adds a value to each series, in the notation of Prometheus's unit tests: _ for none, and stale for
// one that has ended.
func scrape(t *testing.T, registry *prometheus.Registry, ruled map[string]bool, series map[string][]string, minute int) {
	t.Helper()
	for _, f := range must.Get(registry.Gather())(t) {
		if !ruled[f.GetName()] {
			continue
		}
		for _, m := range f.GetMetric() {
			labels := []string{`job="replicator"`, `instance="a:9216"`}
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			name := f.GetName() + "{" + strings.Join(labels, ", ") + "}"
			for len(series[name]) < minute {
				series[name] = append(series[name], "_")
			}
			series[name] = append(series[name], strconv.FormatFloat(m.GetGauge().GetValue()+m.GetCounter().GetValue(), 'f', -1, 64))
		}
	}
	for name, values := range series {
		if len(values) > minute {
			continue
		}
		gone := "_"
		if last := values[len(values)-1]; last != "_" && last != "stale" {
			gone = "stale"
		}
		series[name] = append(values, gone)
	}
}

// notation returns values with those that repeat, or grow by the same number, written once.
func notation(values []string) string {
	var out []string
	for i := 0; i < len(values); {
		step, n := 0, 1
		for ; i+n < len(values); n++ {
			by, ok := difference(values[i+n-1], values[i+n])
			if !ok || n > 1 && by != step {
				break
			}
			step = by
		}
		switch {
		case n < 3 && step != 0:
			n = 1
			out = append(out, values[i])
		case n == 1:
			out = append(out, values[i])
		case values[i] == "_":
			out = append(out, fmt.Sprintf("_x%d", n))
		case step == 0:
			out = append(out, fmt.Sprintf("%sx%d", values[i], n-1))
		default:
			out = append(out, fmt.Sprintf("%s%+dx%d", values[i], step, n-1))
		}
		i += n
	}
	return strings.Join(out, " ")
}

// difference returns how much a value is larger than the one before, if both are whole numbers or
// the same.
func difference(from, to string) (int, bool) {
	if from == to {
		return 0, true
	}
	a, errA := strconv.Atoi(from)
	b, errB := strconv.Atoi(to)
	return b - a, errA == nil && errB == nil
}

const recordedHead = `# What a link shows while something happens to it, and which alerts have fired by the end. The series are recorded
# from the program by go test ./status -run TestRecorded -rewrite; the module deploy plays them, and so does
# promtool test rules recorded_test.yml
rule_files:
  - alerts.yml
evaluation_interval: 1m
tests:
`

// TestRecorded: what deploy/prometheus/recorded_test.yml has for series is what the program shows.
func TestRecorded(t *testing.T) {
	rules := must.Get(os.ReadFile("../deploy/prometheus/alerts.yml"))(t)
	ruled := map[string]bool{}
	for _, name := range regexp.MustCompile(`replicator_[a-z_]+`).FindAllString(string(rules), -1) {
		ruled[name] = true
	}
	var out strings.Builder
	out.WriteString(recordedHead)
	for i := range recordings {
		r := &recordings[i]
		series := r.play(t, ruled)
		_, _ = fmt.Fprintf(&out, "  - name: 'recorded: %s'\n    interval: 1m\n    input_series:\n", r.name)
		for _, name := range slices.Sorted(maps.Keys(series)) {
			_, _ = fmt.Fprintf(&out, "      - series: '%s'\n        values: '%s'\n", name, notation(series[name]))
		}
		_, _ = fmt.Fprintf(&out, "    promql_expr_test:\n      - expr: count by (alertname) (count_over_time(ALERTS{alertstate=\"firing\"}[2d]))\n        eval_time: %dm\n", r.minutes)
		if len(r.fires) == 0 {
			out.WriteString("        exp_samples: []\n")
			continue
		}
		out.WriteString("        exp_samples:\n")
		for _, alert := range r.fires {
			_, _ = fmt.Fprintf(&out, "          - labels: '{alertname=%q}'\n            value: 1\n", alert)
		}
	}
	const path = "../deploy/prometheus/recorded_test.yml"
	if *rewrite {
		must.Succeed(t, os.WriteFile(path, []byte(out.String()), 0o600))
	}
	if diff := cmp.Diff(string(must.Get(os.ReadFile(path))(t)), out.String()); diff != "" {
		t.Errorf("%s is not what the program shows (go test ./status -run TestRecorded -rewrite, then go test in deploy):\n%s", path, diff)
	}
}
