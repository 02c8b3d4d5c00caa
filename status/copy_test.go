package status

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/initialsync/clone"
	"github.com/oplogrep/replicator/initialsync/pace"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/monitor"
)

// copying is a link in the middle of its copy.
func copying(s *monitor.Snapshot) {
	now := time.Now()
	disk := &spool.DiskStats{Bytes: 5000, Limit: 1 << 30, Free: 1 << 33, Entries: 40, First: at(990), Last: at(1300), Full: true, Why: "its limit is reached"}
	*s = monitor.Snapshot{
		Link: "l", State: monitor.InitialSync, Since: now.Add(-10 * time.Minute), Attempts: 1, Term: 3,
		Progress:  checkpoint.Progress{FetchFrom: at(990)},
		Log:       checkpoint.Progress{Applied: at(1000), AppliedWall: 1_000_500, FetchFrom: at(990), Durable: at(1000)},
		Gaps:      checkpoint.Gaps{Copying: true},
		SourceSet: "rs0", SourceHost: "a:1", HeardAt: now,
		Copy: &monitor.Copy{
			Copy: checkpoint.Copy{
				Number: 2, Phase: checkpoint.Copying, Host: "a:1", FetchFrom: at(990), Begin: at(1000),
				Started: now.Add(-10 * time.Minute), Why: "a:1 rolled back",
			},
			Progress: &initialsync.Progress{
				Step: initialsync.StepCopy, Since: now.Add(-5 * time.Minute), Collections: 3, TotalCollections: 10,
				Docs: 1000, TotalDocs: 5000, Bytes: 100_000, TotalBytes: 700_000,
				DocsPerSecond: 12.34567, BytesPerSecond: 2000, Left: 5 * time.Minute,
				Current: []initialsync.CollectionProgress{
					{NS: "shop.orders", Docs: 900, TotalDocs: 4000, Bytes: 90_000, TotalBytes: 600_000, Ranges: 8, DoneRanges: 1},
					{NS: "shop.\xffx\n", TotalDocs: 10, Ranges: 1, Indexes: true},
				},
				Indexes: 2, TotalIndexes: 20,
				Failed: []initialsync.FailedIndex{{NS: "shop.items", Name: "a_1", Why: "too long"}},
			},
			Spool: disk,
			Pace:  pace.Status{BytesPerSecond: 1 << 20, OpsPerSecond: 500, Factor: 0.25, Side: clone.Target, Why: "22 % of its cache is dirty"},
		},
		Spool: disk,
		Lacking: ddl.Lacking{
			Views:   []ddl.LeftView{{NS: "shop2.v", Source: "shop.v", Why: "it has no viewOn"}, {NS: "shop.system.views", Source: "shop.system.views", ID: "7"}},
			Indexes: ddl.Specs{{NS: "shop2.items", Index: "a_1", Absent: true}},
			Options: []ddl.LeftOption{{NS: "shop2.items", Name: "validator"}},
		},
		Window: monitor.Window{Oldest: bson.Timestamp{T: 400, I: 1}, Position: bson.Timestamp{T: 1000, I: 1}, At: now.Add(-10 * time.Second), Left: 200 * time.Second},
	}
}

func TestCopyGolden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		tr := newTracker(t, Config{Version: "v", Link: "l", Registry: registry})
		var p fakePipeline
		tr.Follow(p.Snapshot)
		p.set(copying)
		tr.sample()
		time.Sleep(30 * time.Second)
		s := tr.Snapshot()
		text, err := json.MarshalIndent(struct {
			Consistent             bool
			OplogWindowLeftSeconds *float64
			OplogRolloverSeconds   *float64
			LackingViews           []LackingView
			LackingIndexes         []LackingIndex
			LackingOptions         []LackingOption
			Copy                   *Copy
		}{s.Consistent, s.OplogWindowLeftSeconds, s.OplogRolloverSeconds, s.LackingViews, s.LackingIndexes, s.LackingOptions, s.Copy}, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		golden(t, "copy.json", string(text)+"\n")
		golden(t, "copy-healthz.txt", s.sentence())
		golden(t, "copy-metrics.txt", metricsOf(t, registry))
	})
}

func metricsOf(t *testing.T, registry *prometheus.Registry) string {
	t.Helper()
	families := must.Get(registry.Gather())(t)
	var out strings.Builder
	for _, f := range families {
		for _, m := range f.GetMetric() {
			out.WriteString(f.GetName())
			for _, l := range m.GetLabel() {
				out.WriteString(" " + l.GetName() + "=" + l.GetValue())
			}
			out.WriteString(" " + jsonOf(t, m.GetGauge().GetValue()+m.GetCounter().GetValue()) + "\n")
		}
	}
	return out.String()
}

// TestConsistent: a target is consistent when its copy is done, and not before,
// however far the log is applied.
func TestConsistent(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name             string
		copied           *checkpoint.Copy
		applied, until   oplog.OpTime
		consistent, told bool
	}{
		{name: "nothing known"},
		{name: "no copy", applied: at(5), consistent: true},
		{name: "another's copy, not yet", applied: at(5), until: at(6)},
		{name: "another's copy", applied: at(6), until: at(6), consistent: true, told: true},
		{name: "copying", copied: &checkpoint.Copy{Phase: checkpoint.Copying}, applied: at(5)},
		{name: "replaying", copied: &checkpoint.Copy{Phase: checkpoint.Replaying, Stop: at(6)}, applied: at(5), until: at(6)},
		{name: "replayed, not checked", copied: &checkpoint.Copy{Phase: checkpoint.Replaying, Stop: at(6)}, applied: at(9), until: at(6)},
		{name: "done", copied: &checkpoint.Copy{Phase: checkpoint.Copied, Stop: at(6)}, applied: at(9), until: at(6), consistent: true, told: true},
		{name: "done long ago", copied: &checkpoint.Copy{Phase: checkpoint.Copied, Stop: at(6)}, applied: at(9), consistent: true, told: true},
		{name: "done, with documents copied again", copied: &checkpoint.Copy{Phase: checkpoint.Copied, Stop: at(6)}, applied: at(9), until: at(12)},
		{name: "done, nothing known", copied: &checkpoint.Copy{Phase: checkpoint.Copied, Stop: at(6)}, until: at(6)},
	} {
		tr := newTracker(t, Config{})
		var p fakePipeline
		tr.Follow(p.Snapshot)
		p.set(func(s *monitor.Snapshot) {
			s.Progress.Applied, s.Log.Applied, s.CopiedUntil = c.applied, c.applied, c.until
			if c.copied != nil {
				s.Copy = &monitor.Copy{Copy: *c.copied}
			}
		})
		s := tr.Snapshot()
		if s.Consistent != c.consistent || (s.ConsistentAt != nil) != c.told || s.ConsistentAt != nil && s.ConsistentAt.T != 6 {
			t.Errorf("%s: %v, %+v", c.name, s.Consistent, s.ConsistentAt)
		}
	}
}

// TestDoubts: the reasons why the target is not consistent are reported.
func TestDoubts(t *testing.T) {
	t.Parallel()
	replaying := &checkpoint.Copy{Number: 1, Host: "a:1", Phase: checkpoint.Replaying, Stop: at(90)}
	done := &checkpoint.Copy{Number: 1, Host: "a:1", Phase: checkpoint.Copied, Stop: at(6)}
	for _, c := range []struct {
		name           string
		copied         *checkpoint.Copy
		applied, until oplog.OpTime
		leftOut        []checkpoint.LeftOut
		want           string
	}{
		{name: "consistent", copied: done, applied: at(9)},
		{
			name: "replaying", copied: replaying, applied: at(5), until: at(90),
			want: "copy 1 of a:1, replaying: all documents are copied, 1m25s of the oplog must still be applied to them; the target is not consistent\n",
		},
		{name: "copied again", copied: done, applied: at(9), leftOut: leftOut("shop.a", "shop.b"), want: "not consistent, as they are copied again: shop.a, shop.b\n"},
		{
			name: "many", applied: at(9), leftOut: leftOut("a.1", "a.2", "a.3", "a.4", "a.5", "a.6", "a.7"),
			want: "not consistent, as they are copied again: a.1, a.2, a.3, a.4, a.5 and 2 more\n",
		},
		{
			name: "both", copied: replaying, applied: at(90), until: at(90), leftOut: leftOut("shop.a"),
			want: "copy 1 of a:1, replaying: all documents are copied, 0s of the oplog must still be applied to them; the target is not consistent\n" +
				"not consistent, as they are copied again: shop.a\n",
		},
		{name: "copied by others", applied: at(5), until: at(9), want: "the target is not consistent: the oplog has not been applied yet to everything that was copied\n"},
	} {
		tr := newTracker(t, Config{})
		var p fakePipeline
		tr.Follow(p.Snapshot)
		p.set(func(s *monitor.Snapshot) {
			s.Progress.Applied, s.Log.Applied, s.CopiedUntil, s.LeftOut = c.applied, c.applied, c.until, c.leftOut
			if c.copied != nil {
				s.Copy = &monitor.Copy{Copy: *c.copied}
			}
		})
		s := tr.Snapshot()
		if got := s.doubts(); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
		if s.Consistent != (c.want == "") || !strings.Contains(s.sentence(), c.want) {
			t.Errorf("%s: consistent %v, %s", c.name, s.Consistent, s.sentence())
		}
	}
}

// TestKeptBack: the state names what waits for an index build, and since when.
func TestKeptBack(t *testing.T) {
	t.Parallel()
	tr := newTracker(t, Config{})
	var p fakePipeline
	tr.Follow(p.Snapshot)
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	p.set(func(s *monitor.Snapshot) {
		s.Applier.KeptBack = []applier.KeptBack{{NS: "shop.a", Commit: at(3), Since: since}}
	})
	if got := tr.Snapshot().KeptBack; len(got) != 1 || got[0].Namespace != "shop.a" || *got[0].Commit != *opTime(at(3), 0) || got[0].Since != since {
		t.Errorf("%+v", got)
	}
}

// TestLeftOutFailed: a link is not well while it leaves out a collection that is not
// copied any more, and says which one and why; one that is being copied is not a reason.
func TestLeftOutFailed(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	tr := newTracker(t, Config{Registry: registry})
	var p fakePipeline
	tr.Follow(p.Snapshot)
	tr.Observe(checkpoint.Advanced{Applied: at(8), FetchFrom: at(7)})
	for failed, want := range map[string]int{"": http.StatusOK, "too long": http.StatusServiceUnavailable} {
		p.set(func(s *monitor.Snapshot) {
			*s = monitor.Snapshot{State: monitor.CatchingUp, Since: time.Now(), HeardAt: time.Now()}
			s.Log.Applied, s.Progress.Applied = at(9), at(3)
			s.LeftOut = []checkpoint.LeftOut{{NS: "shop.a", Since: at(3), Failed: failed}, {NS: "shop.b", Since: at(5)}}
		})
		code, text := health(tr)
		if code != want || !strings.Contains(text, "shop.b") || !strings.Contains(text, "shop.a") || !strings.Contains(text, failed) {
			t.Errorf("failed %q: %d, %s", failed, code, text)
		}
		if s := tr.Snapshot(); s.Consistent || *s.OpTimes.Applied != *opTime(at(3), 0) || *s.OpTimes.LogApplied != *opTime(at(9), 0) || len(s.LeftOut) != 2 {
			t.Errorf("%+v", s)
		}
		if c := tr.Snapshot().Checkpoint; *c.Applied != *opTime(at(3), 0) || *c.FetchFrom != *opTime(at(7), 0) {
			t.Errorf("the checkpoint is told as %+v", c)
		}
		kinds := "replicator_left_out_collections kind=copying 2\nreplicator_left_out_collections kind=failed 0\n"
		if failed != "" {
			kinds = "replicator_left_out_collections kind=copying 1\nreplicator_left_out_collections kind=failed 1\n"
		}
		if got := metricsOf(t, registry); !strings.Contains(got, kinds) || !strings.Contains(got, "replicator_optime_seconds kind=applied 3\n") {
			t.Errorf("metrics %s", got)
		}
	}
}

// TestWindow: what the pipeline knows goes before the tracker's own look, which is
// spared then; old values do not count.
func TestWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		source := callerFunc(func(string) (bson.Raw, error) {
			asked.Add(1)
			return bsongen.FromJSON(t, `{"cursor": {"firstBatch": [{"ts": {"$timestamp": {"t": 300, "i": 1}}}]}}`), nil
		})
		registry := prometheus.NewRegistry()
		tr := newTracker(t, Config{Source: source, Registry: registry})
		var p fakePipeline
		tr.Follow(p.Snapshot)
		p.set(copying)
		ctx, stop := context.WithCancelCause(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = tr.Run(ctx) }()
		want := func(when string, window, rollover float64) {
			t.Helper()
			synctest.Wait()
			s := tr.Snapshot()
			if got := orNaN(s.OplogWindowLeftSeconds); got != window {
				t.Errorf("%s: the window is %v", when, got)
			}
			if got := orNaN(s.OplogRolloverSeconds); got != rollover && !(math.IsNaN(got) && math.IsNaN(rollover)) {
				t.Errorf("%s: rolls over in %v", when, got)
			}
		}
		want("at first", 600, 190)
		time.Sleep(45 * time.Second)
		want("later", 600, 145)
		if n := asked.Load(); n != 0 {
			t.Errorf("the source was asked %d times", n)
		}
		time.Sleep(16 * time.Second)
		want("old", 690, math.NaN())
		if asked.Load() == 0 {
			t.Error("the source was not asked")
		}
		p.set(func(s *monitor.Snapshot) { s.Window.At, s.Window.Left = time.Now(), -1 })
		want("a log that stands still", 600, math.NaN())
		if strings.Contains(metricsOf(t, registry), "rollover") {
			t.Error("a metric says when a log rolls over that stands still")
		}
		p.set(func(s *monitor.Snapshot) { s.Window.At, s.Window.Left = time.Now(), 0; s.Window.Oldest.T = 1001 })
		want("over", 0, 0)
		stop(nil)
		<-done
	})
}

func orNaN(f *float64) float64 {
	if f == nil {
		return math.NaN()
	}
	return *f
}

// TestShortages: a spool that is full for long, and a log that rolls over soon, are
// not well.
func TestShortages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTracker(t, Config{})
		var p fakePipeline
		tr.Follow(p.Snapshot)
		full := func(is bool) {
			p.set(func(s *monitor.Snapshot) {
				copying(s)
				s.Spool.Full, s.Window = is, monitor.Window{}
			})
		}
		health := func() string {
			code, body := health(tr)
			if code == http.StatusOK {
				return ""
			}
			return body
		}
		pass := func(seconds int) {
			for range seconds {
				time.Sleep(time.Second)
				p.set(func(s *monitor.Snapshot) { s.HeardAt = time.Now() })
				tr.sample()
			}
		}
		full(true)
		pass(61)
		if bad := health(); bad != "" {
			t.Errorf("after a minute: %s", bad)
		}
		pass(1)
		if bad := health(); !strings.Contains(bad, "the spool is full for 1m1s: its limit is reached.") {
			t.Errorf("later: %s", bad)
		}
		full(false)
		pass(1)
		if bad := health(); bad != "" {
			t.Errorf("with room: %s", bad)
		}
		full(true)
		pass(30)
		if bad := health(); bad != "" {
			t.Errorf("full anew: %s", bad)
		}
		p.set(func(s *monitor.Snapshot) { copying(s); s.Window.At, s.Window.Left = time.Now(), 2*time.Minute })
		if bad := health(); bad != "" {
			t.Errorf("two minutes: %s", bad)
		}
		pass(1)
		if bad := health(); !strings.Contains(bad, "The source's oplog rolls over in about 1m59s.\n") {
			t.Errorf("less: %s", bad)
		}
	})
}

func leftOut(names ...oplog.Namespace) []checkpoint.LeftOut {
	var list []checkpoint.LeftOut
	for _, ns := range names {
		list = append(list, checkpoint.LeftOut{NS: ns, Since: at(3)})
	}
	return list
}

// TestStepOfCopy: a copy that does not copy documents now says what it does.
func TestStepOfCopy(t *testing.T) {
	t.Parallel()
	for step, want := range map[initialsync.Step]string{
		"": "Copying: 0 of 3 ", initialsync.StepCreate: "Copying, creating collections: 0 of 3 ", initialsync.StepCopy: "Copying: 0 of 3 ",
	} {
		s, _, _ := play(t, func(_ *testing.T, _ *Tracker, p *fakePipeline) {
			p.set(func(s *monitor.Snapshot) {
				copying(s)
				s.HeardAt, s.Spool.Full = time.Now(), false
				s.Copy.Progress = &initialsync.Progress{Step: step, TotalCollections: 3, Left: -1}
			})
		})
		if !strings.HasPrefix(s.Verdict.Sentence, want) {
			t.Errorf("%q: %s", step, s.Verdict.Sentence)
		}
	}
}

// TestLeftOfIndexes: while indexes are built, a copy does not say that no time is left, as none is for documents.
func TestLeftOfIndexes(t *testing.T) {
	t.Parallel()
	for step, want := range map[initialsync.Step]string{
		initialsync.StepCopy:    " of about 0.0 MiB, about 0.0 s left",
		initialsync.StepIndexes: " of about 0.0 MiB, 2 of 5 indexes",
		initialsync.StepDone:    " of about 0.0 MiB. ",
	} {
		s, _, _ := play(t, func(_ *testing.T, _ *Tracker, p *fakePipeline) {
			p.set(func(s *monitor.Snapshot) {
				copying(s)
				s.HeardAt, s.Spool.Full = time.Now(), false
				s.Copy.Pace.Why = ""
				s.Copy.Progress = &initialsync.Progress{Step: step, Collections: 1, TotalCollections: 3, Indexes: 2, TotalIndexes: 5}
			})
		})
		if !strings.Contains(s.Verdict.Sentence, want) || strings.Contains(s.doubts(), "left") != (step == initialsync.StepCopy) {
			t.Errorf("%s: %s\n%s", step, s.Verdict.Sentence, s.doubts())
		}
	}
}
