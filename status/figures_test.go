package status

import (
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metric"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/syncsource"
)

// figures makes up what the stages of a link measure.
type figures struct {
	latency    *metric.Durations
	namespaces monitor.Namespaces
	work       monitor.Work
	counts     applier.Stats
}

func newFigures() *figures {
	return &figures{latency: metric.NewDurations("x", "x"), work: monitor.Work{Lanes: make([]metric.Spent, 16)}}
}

// second is a second of a link whose target is slow.
func (f *figures) second(s *monitor.Snapshot) {
	f.counts.Inserts += 60
	f.counts.Updates += 30
	f.counts.Deletes += 10
	f.counts.Commands++
	f.counts.Bytes += 25_000
	f.latency.Observe(40*time.Millisecond, 95)
	f.latency.Observe(900*time.Millisecond, 5)
	sampled := make([]applier.SampledOp, 40)
	for i := range sampled { // Two of five are of one document.
		sampled[i].Doc = 0xf00d
		if i%5 > 1 {
			sampled[i].Doc = uint32(f.counts.Commands)<<16 | uint32(i) //nolint:gosec // It has few seconds.
		}
	}
	f.namespaces.Count([]applier.NamespaceOps{{NS: "shop.orders", Ops: 90, Bytes: 24_000}, {NS: "shop.carts", Ops: 10, Bytes: 1000}}, sampled)
	f.work.Fetcher[metric.Blocked] += 900 * time.Millisecond
	f.work.Fetcher[metric.Busy] += 50 * time.Millisecond
	f.work.Batcher[metric.Busy] += 100 * time.Millisecond
	f.work.Feedback[metric.Busy] += 10 * time.Millisecond
	for i := range f.work.Lanes {
		f.work.Lanes[i][metric.Busy] += 930 * time.Millisecond
	}
	f.show(s)
}

// show sets the measured figures.
func (f *figures) show(s *monitor.Snapshot) {
	s.SourceHost = "a:1"
	s.Applier.Inserts, s.Applier.Updates, s.Applier.Deletes, s.Applier.Commands, s.Applier.Bytes = f.counts.Inserts, f.counts.Updates, f.counts.Deletes, f.counts.Commands, f.counts.Bytes
	s.Latency, s.Namespaces, s.Work = f.latency.Now(), &f.namespaces, f.work
	s.Work.Lanes = append([]metric.Spent(nil), f.work.Lanes...)
	s.Clock = syncsource.Clock{Ahead: -3 * time.Second, Within: 2 * time.Millisecond, At: time.Now()}
}

// follow samples a link for some seconds, changing it in each.
func follow(tr *Tracker, p *fakePipeline, seconds int, change func(i int, s *monitor.Snapshot)) {
	for i := range seconds {
		p.set(func(s *monitor.Snapshot) { change(i, s) })
		tr.sample()
		time.Sleep(sampleEvery)
	}
}

// TestTrend: the trend is the slope of the lag, and unknown while the lag is.
func TestTrend(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		lag   func(i int) time.Duration
		heard func(i int) bool
		over  int
		want  any
	}{
		{name: "grows", over: 120, lag: func(i int) time.Duration { return time.Duration(i) * 400 * time.Millisecond }, want: 0.4},
		{name: "shrinks", over: 60, lag: func(i int) time.Duration { return time.Hour - 5*time.Duration(i)*time.Second }, want: -5.0},
		{name: "stands", over: 60, lag: func(int) time.Duration { return 3 * time.Second }, want: 0.0},
		{name: "only the last two minutes count", over: 400, lag: func(i int) time.Duration {
			return time.Duration(max(0, 200-i)) * time.Minute
		}, want: 0.0},
		{name: "too short", over: 30, lag: func(i int) time.Duration { return time.Duration(i) * time.Second }},
		{name: "the source is silent", over: 120, lag: func(i int) time.Duration { return time.Duration(i) * time.Second }, heard: func(i int) bool { return i < 100 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				tr := newTracker(t, Config{})
				var p fakePipeline
				tr.Follow(p.Snapshot)
				p.set(busy)
				follow(tr, &p, tt.over, func(i int, s *monitor.Snapshot) {
					s.Lag = tt.lag(i)
					if tt.heard == nil || tt.heard(i) {
						s.HeardAt = time.Now()
					}
				})
				got := tr.Snapshot().LagTrend
				switch {
				case tt.want == nil && got != nil:
					t.Errorf("%v, want none", *got)
				case tt.want != nil && (got == nil || *got != tt.want):
					t.Errorf("%s, want %v", jsonOf(t, got), tt.want)
				}
			})
		})
	}
}

// TestLatency: percentiles are those of the last minute alone.
func TestLatency(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tr := newTracker(t, Config{})
		var p fakePipeline
		tr.Follow(p.Snapshot)
		f := newFigures()
		p.set(busy)
		if l := tr.Snapshot().Latency; l.P50Seconds != nil || l.ClockAheadSeconds != nil {
			t.Errorf("before anything: %s", jsonOf(t, l))
		}
		follow(tr, &p, 30, func(_ int, s *monitor.Snapshot) {
			f.latency.Observe(10*time.Minute, 1000)
			f.show(s)
			s.HeardAt = time.Now()
		})
		if l := tr.Snapshot().Latency; l.P50Seconds == nil || *l.P50Seconds < 540 || *l.P50Seconds > 660 {
			t.Errorf("slow: %s", jsonOf(t, l))
		}
		follow(tr, &p, 70, func(_ int, s *monitor.Snapshot) {
			f.latency.Observe(20*time.Millisecond, 98)
			f.latency.Observe(2*time.Second, 2)
			f.show(s)
			s.HeardAt = time.Now()
		})
		l := tr.Snapshot().Latency
		if *l.P50Seconds < 0.016 || *l.P50Seconds > 0.024 || *l.P95Seconds > 0.024 || *l.P99Seconds < 1.7 || *l.P99Seconds > 2.3 {
			t.Errorf("fast again: %s", jsonOf(t, l))
		}
		if l.Samples < 5500 || l.Samples > 6500 || *l.ClockAheadSeconds != -3 {
			t.Errorf("%s", jsonOf(t, l))
		}
		follow(tr, &p, 70, func(_ int, s *monitor.Snapshot) { f.show(s); s.HeardAt = time.Now() })
		if l := tr.Snapshot().Latency; l.P99Seconds != nil || l.Samples != 0 {
			t.Errorf("idle: %s", jsonOf(t, l))
		}
	})
}

// TestLatencyOfAFrozenTarget: latencies are not shown once nothing is acknowledged although
// something waits, and are again with the next acknowledgements.
func TestLatencyOfAFrozenTarget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tr := newTracker(t, Config{})
		var p fakePipeline
		tr.Follow(p.Snapshot)
		f := newFigures()
		p.set(busy)
		acknowledge := func(_ int, s *monitor.Snapshot) {
			f.latency.Observe(20*time.Millisecond, 98)
			f.show(s)
			s.HeardAt = time.Now()
		}
		follow(tr, &p, 30, acknowledge)
		if l := tr.Snapshot().Latency; l.P99Seconds == nil {
			t.Error("none while operations are acknowledged")
		}
		follow(tr, &p, 10, func(_ int, s *monitor.Snapshot) { s.HeardAt = time.Now() })
		if l := tr.Snapshot().Latency; l.P99Seconds != nil {
			t.Errorf("p99 is %v s, and nothing has been acknowledged for 10 s", *l.P99Seconds)
		}
		follow(tr, &p, 10, acknowledge)
		if l := tr.Snapshot().Latency; l.P99Seconds == nil {
			t.Error("none after operations were acknowledged again")
		}
	})
}

// TestNamespaces: collections that the link does not follow are listed with their counts, first those that
// could not be copied again, and at most as many as of the busiest. The others are counted.
func TestNamespaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tr := newTracker(t, Config{})
		var p fakePipeline
		tr.Follow(p.Snapshot)
		var counted monitor.Namespaces
		for i := range 150 {
			counted.Count([]applier.NamespaceOps{{NS: oplog.Namespace(fmt.Sprintf("d.c%03d", i)), Ops: int64(1000 - i), Bytes: 7}}, nil)
		}
		p.set(busy)
		p.set(func(s *monitor.Snapshot) {
			s.Namespaces = &counted
			for i := range 300 {
				out := checkpoint.LeftOut{NS: oplog.Namespace(fmt.Sprintf("d.out%03d", i))}
				if i >= 290 {
					out.Failed = "no space"
				}
				s.LeftOut = append(s.LeftOut, out)
			}
			s.LeftOut[299].NS = "d.c140"
		})
		tr.sample()
		s := tr.Snapshot()
		if len(s.Namespaces) != 2*mostNamespaces || s.NamespacesRest == nil || s.NamespacesRest.Waiting != 200 || len(s.LeftOut) != 300 {
			t.Fatalf("%d namespaces, and %s", len(s.Namespaces), jsonOf(t, s.NamespacesRest))
		}
		var sum int64
		phases, unknown := map[string]int{}, 0
		for _, n := range s.Namespaces {
			phases[*n.Phase]++
			if n.Ops == nil {
				unknown++
			} else {
				sum += *n.Ops
			}
			if n.Namespace == "d.c140" && (*n.Phase != "left out" || *n.Ops != 860) {
				t.Errorf("%s", jsonOf(t, n))
			}
		}
		if want := map[string]int{"following": 100, "left out": 10, "copying again": 90}; !maps.Equal(phases, want) {
			t.Errorf("%v, want %v", phases, want)
		}
		// Those of which nothing was counted one by one may be among the rest.
		if all := int64(150*1000 - 150*149/2); sum+s.NamespacesRest.Ops != all || unknown != 99 {
			t.Errorf("%d operations of %d, unknown of %d", sum+s.NamespacesRest.Ops, all, unknown)
		}
	})
}

// TestNamespacesOfACopy: of a collection that is not being copied at this moment it is not known whether it
// waits or is done; it does not follow the log.
func TestNamespacesOfACopy(t *testing.T) {
	t.Parallel()
	for phase, want := range map[checkpoint.CopyPhase]string{checkpoint.Copying: "null", checkpoint.Replaying: `"following"`} {
		tr := newTracker(t, Config{})
		var p fakePipeline
		tr.Follow(p.Snapshot)
		var counted monitor.Namespaces
		counted.Count([]applier.NamespaceOps{{NS: "d.c", Ops: 1, Bytes: 7}}, nil)
		p.set(busy)
		p.set(func(s *monitor.Snapshot) {
			s.State, s.Namespaces = monitor.InitialSync, &counted
			s.Copy = &monitor.Copy{Copy: checkpoint.Copy{Phase: phase}}
		})
		if list := tr.Snapshot().Namespaces; len(list) != 1 || jsonOf(t, list[0].Phase) != want || *list[0].Ops != 1 {
			t.Errorf("%s: %s", phase, jsonOf(t, list))
		}
	}
}
