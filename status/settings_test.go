package status

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/control"
	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/request"
)

// TestMetricsOfSettings: the metrics of a pause, of the delay, and of what waits or is deferred. What
// a process does not know is missing.
func TestMetricsOfSettings(t *testing.T) {
	const paused, deferred = "replicator_paused ", "replicator_deferred "
	for name, c := range map[string]struct {
		change      func(s *monitor.Snapshot, now time.Time)
		want, lacks []string
	}{
		"paused": {
			controlled(func(c *control.Status, _ *monitor.Snapshot) { c.Paused = &request.Paused{Since: time.Now()} }),
			[]string{paused + "1\n"},
			nil,
		},
		"not paused": {controlled(func(*control.Status, *monitor.Snapshot) {}), []string{paused + "0\n"}, nil},
		"not known": {
			controlled(func(c *control.Status, s *monitor.Snapshot) {
				c.Known, c.UnreadSince, s.Deferred = false, time.Now(), nil
			}),
			nil,
			[]string{paused, deferred},
		},
		"kept back": {
			func(s *monitor.Snapshot, now time.Time) {
				s.Applier.KeptBack = []applier.KeptBack{{NS: "shop.a", Since: now}, {NS: "shop.b", Since: now}}
			},
			[]string{"replicator_kept_back_collections 2\n", "replicator_delay_seconds 5\n", deferred + "kind=collections 1\n", deferred + "kind=indexes 2\n"},
			[]string{paused},
		},
		"foreign writes of before are not known yet": {
			func(s *monitor.Snapshot, _ time.Time) {
				s.State, s.Guard = monitor.Starting, &guard.Status{Mode: guard.Alarm}
			},
			[]string{"replicator_guard_watching 0\n"},
			[]string{"replicator_foreign_writes_total"},
		},
		"foreign writes": {
			func(s *monitor.Snapshot, _ time.Time) {
				s.Guard = &guard.Status{Mode: guard.Alarm, Watching: true, State: guard.State{Wall: 1, Counts: map[string]int64{"update": 3}}}
			},
			[]string{"replicator_guard_watching 1\n", "replicator_foreign_writes_total kind=update 3\n", "replicator_foreign_writes_total kind=insert 0\n"},
			nil,
		},
		"not watched": {
			func(s *monitor.Snapshot, _ time.Time) { s.Guard = &guard.Status{Mode: guard.Off} },
			nil,
			[]string{"replicator_guard_watching", "replicator_foreign_writes_total"},
		},
		"standby": {
			func(s *monitor.Snapshot, _ time.Time) { s.State = monitor.Standby },
			[]string{"replicator_delay_seconds 5\n"},
			[]string{paused, deferred},
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			registry := prometheus.NewRegistry()
			tr := newTracker(t, Config{Link: "l", Registry: registry})
			var p fakePipeline
			tr.Follow(p.Snapshot)
			in(c.change)(t, tr, &p)
			got := metricsOf(t, registry)
			for _, line := range c.want {
				if !strings.Contains(got, line) {
					t.Errorf("%s: there is no %q in\n%s", name, line, got)
				}
			}
			for _, line := range c.lacks {
				if strings.Contains(got, line) {
					t.Errorf("%s: there is %q", name, line)
				}
			}
		})
	}
}
