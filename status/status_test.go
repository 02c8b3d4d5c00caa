package status

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/buffer"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/feedback"
	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/syncsource"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// golden compares text with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *rewrite {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s:\n%s", path, diff)
	}
}

// fakePipeline is a pipeline that does what it is told.
type fakePipeline struct {
	mu sync.Mutex
	s  pipeline.Snapshot
}

func (f *fakePipeline) Snapshot() pipeline.Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.s
}

func (f *fakePipeline) set(change func(*pipeline.Snapshot)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.s)
}

// callerFunc is a server.
type callerFunc func(cmd string) (bson.Raw, error)

func (f callerFunc) Call(_ context.Context, c mongo.Command) (bson.Raw, error) {
	return f(c.Body.Index(0).Key())
}

func raw(t *testing.T, json string) bson.Raw {
	t.Helper()
	var d bson.D
	if err := bson.UnmarshalExtJSON([]byte(json), false, &d); err != nil {
		t.Fatal(err)
	}
	doc, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func at(seconds uint32) oplog.OpTime { return oplog.NewOpTime(seconds, 1, 7) }

func newTracker(t *testing.T, cfg Config) *Tracker {
	t.Helper()
	tr, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// busy is a link in the middle of its work.
func busy(s *pipeline.Snapshot) {
	now := time.Now()
	*s = pipeline.Snapshot{
		Link: "l", State: pipeline.CatchingUp, Since: now.Add(-90 * time.Second), Attempts: 2, Term: 9,
		Progress: checkpoint.Progress{
			Applied: at(1000), AppliedWall: 1_000_500, FetchFrom: at(900), Durable: at(990), DurableWall: 990_500, Ops: 123_456,
		},
		Gaps: checkpoint.Gaps{CopiedUntil: at(950)},
		Log: checkpoint.Progress{
			Applied: at(1000), AppliedWall: 1_000_500, FetchFrom: at(900), Durable: at(990), DurableWall: 990_500, Ops: 123_456,
		},
		Fetched: at(1020), FetchedAt: now,
		SourceSet: "rs0", SourceHost: "a:1",
		Source:  fetcher.Metadata{Committed: at(1012), CommittedWall: 1_012_750, Applied: at(1013)},
		HeardAt: now.Add(-1500 * time.Millisecond), Lag: 12_250 * time.Millisecond,
		Buffer:  buffer.Stats{Held: 5000, Limit: 1 << 20, Replies: 3, Oldest: now.Add(-2 * time.Second), Waiting: true},
		Applier: applier.Stats{Ops: 1, Flushes: 2, Coalesced: 3, Retries: 4, Divergences: 5, DeletesEmpty: 6, Skipped: 7, Commands: 8, Barriers: 9, Writers: 16},
		Resolver: syncsource.Status{Denied: syncsource.Denylist{
			"c:3": {Until: now.Add(time.Minute), Reason: "could not be read from: no answer"},
			"b:2": {Until: now.Add(10 * time.Second), Reason: "is too stale"},
		}},
		TargetHosts: []string{"x:1", "y:2"},
		LastError:   "applier: not primary", LastErrorAt: now.Add(-3 * time.Minute),
	}
}

// TestGolden: everything that is known comes out, and in the form that is kept.
func TestGolden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		source := callerFunc(func(cmd string) (bson.Raw, error) {
			if cmd != "find" {
				t.Errorf("the source was asked %s", cmd)
			}
			return raw(t, `{"cursor": {"firstBatch": [{"ts": {"$timestamp": {"t": 300, "i": 1}}}], "id": {"$numberLong": "0"}, "ns": "local.oplog.rs"}, "ok": 1}`), nil
		})
		target := callerFunc(func(string) (bson.Raw, error) {
			return raw(t, `{"setName": "rs1", "primary": "x:1", "ok": 1}`), nil
		})
		tr := newTracker(t, Config{Version: "v1.2.3", Link: "l", Feedback: feedback.Member, Source: source, Target: target, Registry: registry})
		var p fakePipeline
		tr.Follow(p.Snapshot)
		ctx, stop := context.WithCancelCause(t.Context())
		ended := errors.New("ended")
		done := make(chan error, 1)
		go func() { done <- tr.Run(ctx) }()
		// 100 operations a second, never at the moment that they are counted.
		time.Sleep(500 * time.Millisecond)
		for range 20 {
			p.set(func(s *pipeline.Snapshot) { s.Progress.Ops += 100 })
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

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestNothingKnown: what is not known is null, and no metric says 0 for it.
func TestNothingKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		tr := newTracker(t, Config{Version: "v", Link: "l", Registry: registry})
		check := func(state pipeline.State) {
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
		check(pipeline.Starting)
		var p fakePipeline
		tr.Follow(p.Snapshot)
		p.set(func(s *pipeline.Snapshot) { s.State = pipeline.Failed })
		check(pipeline.Failed)
		// An attempt that has heard nothing: its lag is unknown, not 0.
		p.set(func(s *pipeline.Snapshot) { busy(s); s.HeardAt = time.Time{}; s.Lag = 0 })
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
			return raw(t, `{"cursor": {"firstBatch": [{"ts": {"$timestamp": {"t": 300, "i": 1}}}]}}`), nil
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
		if s := tr.Snapshot(); *s.Source.DataAgeSeconds != 26.5 || *s.LagSeconds != 12.25 || *s.AgeOfOldestUnappliedSeconds != 38.75 || *s.OplogWindowLeftSeconds != 600 {
			t.Errorf("%s", jsonOf(t, s))
		}
		time.Sleep(6 * time.Second)
		if s := tr.Snapshot(); s.OplogWindowLeftSeconds != nil {
			t.Errorf("the window is %v s, as it was long ago", *s.OplogWindowLeftSeconds)
		}
		// Everything that the source had is applied: nothing waits, however old that is.
		p.set(func(s *pipeline.Snapshot) { s.Progress.Applied, s.Lag = s.Source.Committed, 0 })
		if s := tr.Snapshot(); *s.LagSeconds != 0 || *s.AgeOfOldestUnappliedSeconds != 0 {
			t.Errorf("%s", jsonOf(t, s))
		}
		stop(nil)
		<-done
	})
}

// TestCounts: what was counted in an attempt stays when the next one begins anew.
func TestCounts(t *testing.T) {
	t.Parallel()
	tr := newTracker(t, Config{Version: "v", Link: "l"})
	var p fakePipeline
	tr.Follow(p.Snapshot)
	p.set(func(s *pipeline.Snapshot) {
		s.Attempts, s.Applier = 1, applier.Stats{Flushes: 5, Divergences: 2, Writers: 4}
	})
	ended := pipeline.AttemptEnded{Attempt: 1, Err: errors.New("x")}
	tr.Observe(ended)
	want := func(flushes, divergences int64) {
		t.Helper()
		if a := tr.Snapshot().Applier; a.Flushes != flushes || a.Divergences != divergences || a.Writers != 4 {
			t.Errorf("%+v", a)
		}
	}
	want(5, 2)
	tr.Observe(ended) // acquiring the lease failed: it is still the same attempt
	want(5, 2)
	p.set(func(s *pipeline.Snapshot) { s.Attempts, s.Applier = 2, applier.Stats{Flushes: 1, Writers: 4} })
	want(6, 2)
	tr.Observe(ended)
	want(6, 2)
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

func get(t *testing.T, h http.Handler, method, path string) (int, http.Header, string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path, http.NoBody))
	return w.Code, w.Header(), w.Body.String()
}

func TestHandler(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	tr := newTracker(t, Config{Version: "v", Link: "l", Registry: registry})
	var p fakePipeline
	tr.Follow(p.Snapshot)
	p.set(busy)
	h := Handler(tr, registry)

	code, header, body := get(t, h, http.MethodGet, "/status")
	if code != http.StatusOK || header.Get("Content-Type") != "application/json" || strings.Count(body, "\n") != 1 {
		t.Errorf("/status: %d %v\n%s", code, header, body)
	}
	_, _, pretty := get(t, h, http.MethodGet, "/status?pretty")
	if strings.Count(pretty, "\n") < 50 {
		t.Errorf("/status?pretty:\n%s", pretty)
	}
	for _, text := range []string{body, pretty} {
		var s Snapshot
		d := json.NewDecoder(strings.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(&s); err != nil || s.Link != "l" || *s.LagSeconds != 12.25 {
			t.Errorf("%v: %+v", err, s)
		}
	}
	if code, _, body := get(t, h, http.MethodGet, "/metrics"); code != http.StatusOK ||
		!strings.Contains(body, `replicator_state{state="catching-up"} 1`) || !strings.Contains(body, `replicator_state{state="steady"} 0`) ||
		!strings.Contains(body, "replicator_lag_seconds 12.25") || !strings.Contains(body, `replicator_optime_seconds{kind="source"} 1012`) {
		t.Errorf("/metrics: %d\n%s", code, body)
	}
	if code, _, body := get(t, h, http.MethodGet, "/"); code != http.StatusOK || !strings.Contains(body, "/healthz") {
		t.Errorf("/: %d\n%s", code, body)
	}
	if code, _, _ := get(t, h, http.MethodGet, "/nothing"); code != http.StatusNotFound {
		t.Errorf("/nothing: %d", code)
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodHead, http.MethodOptions} {
		for _, path := range []string{"/", "/status", "/healthz", "/metrics"} {
			if code, header, _ := get(t, h, method, path); code != http.StatusMethodNotAllowed || header.Get("Allow") != http.MethodGet {
				t.Errorf("%s %s: %d, Allow %q", method, path, code, header.Get("Allow"))
			}
		}
	}
}

func TestHealth(t *testing.T) {
	t.Parallel()
	healthy := map[pipeline.State]bool{
		pipeline.InitialSync: true, pipeline.CatchingUp: true, pipeline.Steady: true, pipeline.Starting: true,
		pipeline.Stale: false, pipeline.Failed: false, pipeline.Stopped: false,
	}
	for _, state := range states {
		synctest.Test(t, func(t *testing.T) {
			tr := newTracker(t, Config{StartingGrace: 30 * time.Second})
			var p fakePipeline
			tr.Follow(p.Snapshot)
			p.set(func(s *pipeline.Snapshot) { s.State, s.Since, s.Reason = state, time.Now(), "because" })
			time.Sleep(30*time.Second - time.Nanosecond)
			code, _, body := get(t, Handler(tr, prometheus.NewRegistry()), http.MethodGet, "/healthz")
			if want, ok := healthy[state]; !ok || (code == http.StatusOK) != want || code != http.StatusOK && code != http.StatusServiceUnavailable ||
				!strings.HasPrefix(body, string(state)+" for 30s: because\n") {
				t.Errorf("%s: %d %s", state, code, body)
			}
			time.Sleep(time.Nanosecond)
			code, _, _ = get(t, Handler(tr, prometheus.NewRegistry()), http.MethodGet, "/healthz")
			if want := healthy[state] && state != pipeline.Starting; (code == http.StatusOK) != want {
				t.Errorf("%s, later: %d", state, code)
			}
		})
	}
}

// A link that hears nothing of its source for long is not well, whatever its state
// is and however often it begins anew.
func TestSilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tr := newTracker(t, Config{})
		var p fakePipeline
		tr.Follow(p.Snapshot)
		health := func() (int, string) {
			code, _, body := get(t, Handler(tr, prometheus.NewRegistry()), http.MethodGet, "/healthz")
			return code, body
		}
		time.Sleep(time.Hour)
		p.set(func(s *pipeline.Snapshot) { s.State, s.Since, s.HeardAt = pipeline.CatchingUp, time.Now(), time.Now() })
		tr.sample()
		p.set(func(s *pipeline.Snapshot) { s.HeardAt = time.Time{} })
		time.Sleep(time.Minute)
		if code, body := health(); code != http.StatusOK {
			t.Errorf("after a minute: %d %s", code, body)
		}
		time.Sleep(time.Second)
		if code, body := health(); code != http.StatusServiceUnavailable || !strings.Contains(body, "nothing was heard of the source for 1m1s\n") {
			t.Errorf("later: %d %s", code, body)
		}
		p.set(func(s *pipeline.Snapshot) { s.HeardAt = time.Now() })
		if code, body := health(); code != http.StatusOK || strings.Contains(body, "nothing was heard of the source for") {
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

type nested struct{}

func (nested) Message() string   { return "odd" }
func (nested) Level() slog.Level { return slog.LevelError }
func (nested) LogValue() slog.Value {
	const a, b, d, g, h = "a", "b", "d", "g", "h"
	return slog.GroupValue(slog.Int(a, 1), slog.Group(g, slog.String(b, "x"), slog.Group(h, slog.Duration(d, time.Second))))
}

func TestConfig(t *testing.T) {
	t.Parallel()
	if _, err := New(Config{StartingGrace: -1, AskEvery: -1}); err == nil || strings.Count(err.Error(), "\n") != 1 {
		t.Errorf("%v", err)
	}
	registry := prometheus.NewRegistry()
	newTracker(t, Config{Registry: registry})
	if _, err := New(Config{Registry: registry}); err == nil {
		t.Error("two trackers on one registry")
	}
}

// TestServe: a request that is under way is answered when the end comes.
func TestServe(t *testing.T) {
	t.Parallel()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	arrived, answer := make(chan struct{}), make(chan struct{})
	h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(arrived)
		<-answer
		_, _ = io.WriteString(w, "there")
	})
	ctx, stop := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, ln, h) }()
	got := make(chan string, 1)
	transport := &http.Transport{}
	go func() {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+ln.Addr().String()+"/", http.NoBody)
		if err != nil {
			got <- err.Error()
			return
		}
		res, err := (&http.Client{Transport: transport}).Do(req)
		if err != nil {
			got <- err.Error()
			return
		}
		defer func() { _ = res.Body.Close() }()
		var b bytes.Buffer
		_, _ = b.ReadFrom(res.Body)
		got <- b.String()
	}()
	<-arrived
	stop(nil)
	close(answer)
	if text := <-got; text != "there" {
		t.Errorf("got %q", text)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	transport.CloseIdleConnections()
	if _, err := net.DialTimeout("tcp", ln.Addr().String(), time.Second); err == nil {
		t.Error("it is still listened")
	}
}

func TestServeFails(t *testing.T) {
	t.Parallel()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = ln.Close()
	if err := Serve(t.Context(), ln, http.NotFoundHandler()); err == nil || !strings.HasPrefix(err.Error(), "status: serve on 127.0.0.1:") {
		t.Errorf("%v", err)
	}
}

func memberAtFault(reason string) event.Event {
	const host, why = "host", "reason"
	return event.NewLine(slog.LevelWarn, "member at fault", slog.String(host, "c:3"), slog.String(why, reason))
}
