package status

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/feedback"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/syncsource"
)

// TestGolden: everything that is known comes out, and in the form that is kept.
func TestGolden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		source := callerFunc(func(cmd string) (bson.Raw, error) {
			if cmd != "find" {
				t.Errorf("the source was asked %s", cmd)
			}
			return bsongen.FromJSON(t, `{"cursor": {"firstBatch": [{"ts": {"$timestamp": {"t": 300, "i": 1}}}], "id": {"$numberLong": "0"}, "ns": "local.oplog.rs"}, "ok": 1}`), nil
		})
		target := callerFunc(func(string) (bson.Raw, error) {
			return bsongen.FromJSON(t, `{"setName": "rs1", "primary": "x:1", "ok": 1}`), nil
		})
		tr := newTracker(t, Config{Version: "v1.2.3", Link: "l", Feedback: feedback.Member, Source: source, Target: target, Registry: registry})
		var p fakePipeline
		tr.Follow(p.Snapshot)
		ctx, stop := context.WithCancelCause(t.Context())
		ended := errors.New("ended")
		done := make(chan error, 1)
		go func() { done <- tr.Run(ctx) }()
		figures := newFigures()
		// 100 operations a second, never at the moment that they are counted.
		time.Sleep(500 * time.Millisecond)
		for range 20 {
			p.set(func(s *monitor.Snapshot) { s.Progress.Ops += 100; figures.second(s) })
			time.Sleep(time.Second)
		}
		tr.Observe(checkpoint.Acquired{Link: "l", Applied: at(980), FetchFrom: at(880)})
		tr.Observe(checkpoint.Advanced{Link: "l", Applied: at(990), FetchFrom: at(900)})
		tr.Observe(syncsource.SourceChosen{To: "a:1", Reason: "it is the nearest", Refused: []syncsource.Refusal{{Host: "b:2", Reason: "is too stale"}}})
		tr.Observe(feedback.Failed{Mode: feedback.Member, MemberID: 3, Host: "a:1", Err: errors.New("no such member")})
		tr.Observe(memberAtFault("cannot be reached"))
		time.Sleep(time.Second)
		tr.Observe(memberAtFault("is in state RECOVERING"))
		synctest.Wait()
		p.set(busy)
		p.set(figures.show)
		s := tr.Snapshot()
		text, err := json.MarshalIndent(s, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		golden(t, "snapshot.json", string(text)+"\n")
		golden(t, "healthz.txt", s.sentence())

		var out strings.Builder
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				out.WriteString(f.GetName())
				for _, l := range m.GetLabel() {
					out.WriteString(" " + l.GetName() + "=" + l.GetValue())
				}
				out.WriteString(" " + jsonOf(t, m.GetGauge().GetValue()+m.GetCounter().GetValue()) + "\n")
			}
		}
		golden(t, "metrics.txt", out.String())
		stop(ended)
		if err := <-done; !errors.Is(err, ended) {
			t.Errorf("Run returned %v", err)
		}
	})
}

// TestNothingKnown: unknown values are null, and no metric is 0 for them.
func TestNothingKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		tr := newTracker(t, Config{Version: "v", Link: "l", Registry: registry})
		check := func(state monitor.State) {
			t.Helper()
			s := tr.Snapshot()
			if s.State != string(state) || s.Consistent || s.LagSeconds != nil || s.AgeOfOldestUnappliedSeconds != nil ||
				s.OplogWindowLeftSeconds != nil || s.Source.DataAgeSeconds != nil || s.OpTimes.Applied != nil || s.Applier.OpsPerSecond != nil {
				t.Errorf("%+v", s)
			}
			families, err := registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range families {
				switch f.GetName() {
				case "replicator_lag_seconds", "replicator_optime_seconds", "replicator_source_data_age_seconds",
					"replicator_oldest_unapplied_seconds", "replicator_oplog_window_left_seconds":
					t.Errorf("%s is there", f.GetName())
				}
			}
		}
		check(monitor.Starting)
		var p fakePipeline
		tr.Follow(p.Snapshot)
		p.set(func(s *monitor.Snapshot) { s.State = monitor.Failed })
		check(monitor.Failed)
		// An attempt that has heard nothing: its lag is unknown, not 0.
		p.set(func(s *monitor.Snapshot) { busy(s); s.HeardAt = time.Time{}; s.Lag = 0 })
		if s := tr.Snapshot(); s.LagSeconds != nil || s.AgeOfOldestUnappliedSeconds != nil {
			t.Errorf("lag %v", *s.LagSeconds)
		}
	})
}

// TestAges: data grow old while nothing is heard.
func TestAges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		source := callerFunc(func(string) (bson.Raw, error) {
			if asked++; asked > 1 {
				return nil, errors.New("away")
			}
			return bsongen.FromJSON(t, `{"cursor": {"firstBatch": [{"ts": {"$timestamp": {"t": 300, "i": 1}}}]}}`), nil
		})
		tr := newTracker(t, Config{Version: "v", Link: "l", Source: source})
		var p fakePipeline
		tr.Follow(p.Snapshot)
		p.set(busy)
		ctx, stop := context.WithCancelCause(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = tr.Run(ctx) }()
		synctest.Wait()
		if s := tr.Snapshot(); *s.Source.DataAgeSeconds != 1.5 || *s.LagSeconds != 12.25 || *s.AgeOfOldestUnappliedSeconds != 13.75 || *s.OplogWindowLeftSeconds != 600 {
			t.Errorf("%s", jsonOf(t, s))
		}
		time.Sleep(25 * time.Second)
		if s := tr.Snapshot(); *s.Source.DataAgeSeconds != 26.5 || s.LagSeconds != nil || *s.AgeOfOldestUnappliedSeconds != 38.75 || *s.OplogWindowLeftSeconds != 600 {
			t.Errorf("%s", jsonOf(t, s))
		}
		time.Sleep(6 * time.Second)
		if s := tr.Snapshot(); s.OplogWindowLeftSeconds != nil {
			t.Errorf("the window is %v s, as it was long ago", *s.OplogWindowLeftSeconds)
		}
		// Everything that the source had is applied: what it has had since is not known.
		p.set(func(s *monitor.Snapshot) { s.Progress.Applied, s.Lag = s.Source.Committed, 0 })
		if s := tr.Snapshot(); s.LagSeconds != nil || s.AgeOfOldestUnappliedSeconds != nil || !s.ExactAt.Equal(*s.Source.HeardAt) {
			t.Errorf("%s", jsonOf(t, s))
		}
		p.set(func(s *monitor.Snapshot) { s.HeardAt = time.Now() })
		if s := tr.Snapshot(); *s.LagSeconds != 0 || *s.AgeOfOldestUnappliedSeconds != 0 {
			t.Errorf("%s", jsonOf(t, s))
		}
		// So is everything that the member has that is read, and others have more.
		p.set(func(s *monitor.Snapshot) { s.Source.Behind, s.Lag = 30*time.Second, 30*time.Second })
		if s := tr.Snapshot(); *s.LagSeconds != 30 || *s.AgeOfOldestUnappliedSeconds != 30 {
			t.Errorf("%s", jsonOf(t, s))
		}
		stop(nil)
		<-done
	})
}

func TestFeedback(t *testing.T) {
	t.Parallel()
	if f := newTracker(t, Config{}).Snapshot().Feedback; f.Mode != "none" || f.State != "off" {
		t.Errorf("%+v", f)
	}
	tr := newTracker(t, Config{Feedback: feedback.Document})
	state := func(want string) {
		t.Helper()
		if f := tr.Snapshot().Feedback; f.State != want || f.Mode != "document" {
			t.Errorf("%+v, want %s", f, want)
		}
	}
	state("waiting")
	tr.Observe(feedback.Reporting{Mode: feedback.Document, Host: "a:1"})
	state("reporting")
	tr.Observe(feedback.Failed{Mode: feedback.Document, Host: "a:1", Err: errors.New("x")})
	state("failing")
}

func TestHealth(t *testing.T) {
	t.Parallel()
	healthy := map[monitor.State]bool{
		monitor.InitialSync: true, monitor.CatchingUp: true, monitor.Steady: true, monitor.Starting: true,
		monitor.Standby: true, monitor.Stale: false, monitor.Failed: false, monitor.Stopped: false,
	}
	for _, state := range states {
		synctest.Test(t, func(t *testing.T) {
			tr := newTracker(t, Config{})
			var p fakePipeline
			tr.Follow(p.Snapshot)
			p.set(func(s *monitor.Snapshot) { s.State, s.Since, s.Reason = state, time.Now(), "because" })
			time.Sleep(time.Minute - time.Nanosecond)
			code, body := health(tr)
			if want, ok := healthy[state]; !ok || (code == http.StatusOK) != want || code != http.StatusOK && code != http.StatusServiceUnavailable ||
				!strings.Contains(body, "\n"+string(state)+" for 1m0s: because\n") {
				t.Errorf("%s: %d %s", state, code, body)
			}
			time.Sleep(time.Nanosecond)
			code, _ = health(tr)
			if want := healthy[state] && state != monitor.Starting; (code == http.StatusOK) != want {
				t.Errorf("%s, later: %d", state, code)
			}
		})
	}
}

// A process that stands by is of no use while it cannot look at the lease.
func TestHealthOfBlindStandby(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tr := newTracker(t, Config{})
		var p fakePipeline
		tr.Follow(p.Snapshot)
		p.set(func(s *monitor.Snapshot) {
			s.State, s.Since, s.Process, s.BlindSince = monitor.Standby, time.Now(), "a", time.Now()
		})
		for _, want := range []int{http.StatusOK, http.StatusServiceUnavailable} {
			time.Sleep(time.Minute - time.Second)
			if code, body := health(tr); code != want {
				t.Errorf("%d, want %d: %s", code, want, body)
			}
		}
	})
}

// A link that hears nothing of its source for long is not well, whatever its state
// is and however often it restarts.
func TestSilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tr := newTracker(t, Config{})
		var p fakePipeline
		tr.Follow(p.Snapshot)
		health := func() (int, string) { return health(tr) }
		time.Sleep(time.Hour)
		p.set(func(s *monitor.Snapshot) { s.State, s.Since, s.HeardAt = monitor.CatchingUp, time.Now(), time.Now() })
		tr.sample()
		p.set(func(s *monitor.Snapshot) { s.HeardAt = time.Time{} })
		time.Sleep(time.Minute)
		if code, body := health(); code != http.StatusOK {
			t.Errorf("after a minute: %d %s", code, body)
		}
		time.Sleep(time.Second)
		if code, body := health(); code != http.StatusServiceUnavailable || !strings.Contains(body, "no reply from the source for 1m1s:") {
			t.Errorf("later: %d %s", code, body)
		}
		p.set(func(s *monitor.Snapshot) { s.HeardAt = time.Now() })
		if code, body := health(); code != http.StatusOK || strings.Contains(body, "no reply from the source for") {
			t.Errorf("heard again: %d %s", code, body)
		}
	})
}

// TestProblems: a flood of one kind takes the place of one problem.
func TestProblems(t *testing.T) {
	t.Parallel()
	tr := newTracker(t, Config{})
	for range 1000 {
		tr.Observe(nested{})
	}
	tr.Observe(event.NewLine(slog.LevelInfo, "member up")) // no problem
	list := tr.Snapshot().Problems
	want := map[string]string{"a": "1", "g.b": "x", "g.h.d": "1s"}
	if len(list) != 1 || list[0].Count != 1000 || list[0].Level != "ERROR" || !cmp.Equal(list[0].Fields, want) {
		t.Errorf("%+v", list)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	newTracker(t, Config{Registry: registry})
	if _, err := New(Config{Registry: registry}); err == nil {
		t.Error("two trackers on one registry")
	}
}

// TestReady: a process is ready once it leads or stands by, and stays so while attempts begin
// again; not while it stands by and cannot look at the lease, nor once it has ended.
func TestReady(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tr := newTracker(t, Config{})
		var p fakePipeline
		tr.Follow(p.Snapshot)
		in := func(state monitor.State) {
			p.set(func(s *monitor.Snapshot) { s.State, s.Since, s.Process = state, time.Now(), "a" })
		}
		is := func(when, want string) {
			t.Helper()
			got := ""
			if err := tr.Ready(); err != nil {
				got = err.Error()
			}
			if want == "" && got != "" || !strings.HasPrefix(got, want) {
				t.Errorf("%s: %q, want %q", when, got, want)
			}
		}
		is("before the pipeline", "starting: ")
		in(monitor.Starting)
		is("at the start", "starting: ")
		time.Sleep(time.Hour)
		is("long after the start", "starting: ")
		in(monitor.InitialSync)
		tr.sample() // nobody asks
		in(monitor.Starting)
		is("in another attempt", "")
		in(monitor.Standby)
		is("standing by", "")
		p.set(func(s *monitor.Snapshot) { s.BlindSince = time.Now() })
		time.Sleep(blindGrace)
		is("blind for a short time", "")
		time.Sleep(time.Second)
		is("blind", "it stands by, and could not look at the lease for 11s")
		in(monitor.Steady)
		is("leading", "")
		for _, state := range []monitor.State{monitor.Stale, monitor.Failed, monitor.Stopped} {
			in(state)
			is(string(state), "the link is "+string(state))
		}
	})
}
