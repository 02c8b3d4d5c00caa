package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/web"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	errPassing = errors.New("the server is away")
	errLasting = errors.New("the history has diverged")
	errLate    = errors.New("stopped before it had drained")
)

// explained has a code as of docs/exit-codes.md for each of the errors.
func explained(err error) Failure {
	switch {
	case errors.Is(err, errPassing):
		return Failure{Code: 8, Error: err.Error(), Do: "Wait.", Helps: true}
	case errors.Is(err, errLate):
		return Failure{Code: 10, Error: err.Error(), Helps: true}
	}
	return Failure{Code: 6, Error: err.Error(), Do: "Copy again."}
}

// bench runs an Agent in a bubble.
type bench struct {
	*Agent
	t          *testing.T
	log        bytes.Buffer
	drain      context.CancelCauseFunc
	kill       context.CancelCauseFunc
	soft, hard context.Context
	works      sync.WaitGroup

	mu      sync.Mutex // guards the rest
	running []string
	runs    int // how many links were started
	most    int
	next    map[string]error // how the next run of a link ends at once
	hangs   bool             // links do not drain
}

func newBench(t *testing.T, most int) *bench {
	t.Helper()
	b := &bench{t: t, next: map[string]error{}}
	b.hard, b.kill = context.WithCancelCause(t.Context())
	b.soft, b.drain = context.WithCancelCause(b.hard)
	b.Agent = New(b.hard, b.soft, Config{
		Version: "v", Member: "m", Max: most, Explain: explained, Log: slog.New(slog.NewTextHandler(&b.log, nil)),
	})
	t.Cleanup(func() {
		b.drain(context.Canceled)
		b.works.Wait()
		b.kill(nil)
	})
	return b
}

// link is one that runs until it is to drain, or fails at once if next has an error.
func (b *bench) link(name, settings string) Link {
	return Link{Name: name, Settings: settings, Run: func(ctx, soft context.Context, show func(View)) error {
		b.mu.Lock()
		err := b.next[name]
		b.runs++
		b.running = append(b.running, name+settings)
		b.most = max(b.most, len(b.running))
		hangs := b.hangs
		b.mu.Unlock()
		defer func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			i := slices.Index(b.running, name+settings)
			b.running = slices.Delete(b.running, i, i+1)
		}()
		if err != nil {
			return err
		}
		registry := prometheus.NewRegistry()
		gauge := prometheus.NewGauge(prometheus.GaugeOpts{Name: "lag", ConstLabels: prometheus.Labels{"a": "1", "z": "2"}})
		named := prometheus.NewGauge(prometheus.GaugeOpts{Name: "leads", ConstLabels: prometheus.Labels{"link": "in the target"}})
		registry.MustRegister(gauge, named)
		show(View{
			Summary: func() Summary {
				return Summary{State: "steady", Healthy: name != "sick", Verdict: "no reply", Next: "look at the source"}
			},
			Link:    web.Link{Status: func() any { return "all of " + name }},
			Metrics: registry,
		})
		<-soft.Done()
		if hangs {
			<-ctx.Done()
			return errLate
		}
		return nil
	}}
}

func (b *bench) set(links ...string) {
	var list []Link
	for _, l := range links {
		name, settings, _ := strings.Cut(l, "=")
		list = append(list, b.link(name, settings))
	}
	b.Set(list)
}

// work has the agent run a link. It returns what ends that, and where the result comes.
func (b *bench) work(name string) (stop func(), result <-chan error) {
	ctx, cancel := context.WithCancelCause(b.soft)
	end := make(chan error, 1)
	b.works.Go(func() { end <- b.Work(ctx, name, 7) })
	synctest.Wait()
	return func() { cancel(errors.New("moved")); synctest.Wait() }, end
}

func (b *bench) started() (running []string, runs int) {
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.running), b.runs
}

func (b *bench) expect(what string, want ...string) {
	b.t.Helper()
	got, _ := b.started()
	slices.Sort(got)
	if !slices.Equal(got, want) {
		b.t.Errorf("%s: %q run, want %q", what, got, want)
	}
}

func (b *bench) fail(link string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next[link] = err
}

func (b *bench) statusOf(name string) LinkStatus {
	b.t.Helper()
	for _, l := range b.Status().Links {
		if l.Link == name {
			return l
		}
	}
	b.t.Fatalf("no status of %s", name)
	return LinkStatus{}
}

// Other settings restart their link and no other; a link that is removed drains, one that is
// added runs once this process is to.
func TestSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 3)
		b.set("a=1", "b=1")
		b.work("a")
		b.work("b")
		b.work("c")
		b.expect("at first", "a1", "b1")
		if s := b.statusOf("c"); s.State != Waiting || !strings.Contains(s.Why, "does not have the link") {
			t.Errorf("c: %+v", s)
		}
		b.set("a=1", "b=2", "c=1")
		b.expect("one changed, one new", "a1", "b2", "c1")
		if _, runs := b.started(); runs != 4 {
			t.Errorf("%d starts, want 4: a did not change", runs)
		}
		b.set("b=2", "c=1")
		b.expect("one removed", "b2", "c1")
		if s := b.statusOf("b"); s.Failures != 0 || s.State != Running || s.Run == nil || s.Term != 7 {
			t.Errorf("b: %+v", s)
		}
	})
}

// A link that has ended starts again when an operator asks for it, at once and without other settings;
// one that runs, or waits, is not disturbed.
func TestRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2)
		b.fail("a", errLasting)
		b.fail("b", errPassing)
		b.set("a=1", "b=1", "c=1")
		b.work("a")
		b.work("b")
		b.work("c")
		if s := b.statusOf("a"); s.State != Ended {
			t.Fatalf("a: %+v", s)
		}
		for _, name := range []string{"c", "none"} {
			if b.Retry(name) {
				t.Errorf("%s is started again", name)
			}
		}
		for range 3 { // the cause is still there
			_, before := b.started()
			b.mu.Lock() // until then none of them has ended again
			if !b.Retry("a") || !b.Retry("b") {
				t.Error("they have not ended")
			}
			b.Retry("a") // by a second operator: it counts once
			b.mu.Unlock()
			synctest.Wait()
			if _, now := b.started(); now != before+2 {
				t.Errorf("%d starts, want 2", now-before)
			}
		}
		if s := b.statusOf("a"); s.State != Ended || s.Failures != 4 {
			t.Errorf("a: %+v", s)
		}
		b.fail("a", nil)
		b.fail("b", nil)
		if !b.Retry("a") || !b.Retry("b") {
			t.Error("they have not ended")
		}
		b.expect("in the end", "a1", "b1")
		_, before := b.started()
		if b.Retry("a") {
			t.Error("one that runs is started again")
		}
		if b.expect("still", "a1", "b1"); b.runs != before {
			t.Errorf("%d starts", b.runs-before)
		}
	})
}

// What announces the drain of a run may come after the next one has begun.
func TestDrainsLate(t *testing.T) {
	t.Parallel()
	j := &job{}
	first := j.begin()
	second := j.begin()
	if j.drains(first, "late"); j.status().State != Running {
		t.Error("the second run drains")
	}
	if j.drains(second, "now"); j.status().State != Draining {
		t.Error("the second run does not drain")
	}
}

// An error that passes is retried after a time that doubles, one that does not once the settings
// have changed. The others do not notice.
func TestFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 3)
		b.set("passing=1", "lasting=1", "well=1")
		b.fail("passing", errPassing)
		b.fail("lasting", errLasting)
		b.work("well")
		b.work("lasting")
		_, passing := b.work("passing")
		if s := b.statusOf("lasting"); s.State != Ended || s.LastFailure == nil || s.LastFailure.Code != 6 || s.LastFailure.Do != "Copy again." || s.Run != nil {
			t.Errorf("lasting: %+v", s)
		}
		if s := b.statusOf("passing"); s.State != Retrying || s.LastFailure.Code != 8 || s.NextTry == nil || s.NextTry.Sub(s.LastFailure.At) > time.Second {
			t.Errorf("passing: %+v", s)
		}
		time.Sleep(time.Second)
		if s := b.statusOf("passing"); s.Failures != 2 || s.NextTry.Sub(s.LastFailure.At) < time.Second || s.NextTry.Sub(s.LastFailure.At) > 2*time.Second {
			t.Errorf("passing: %+v", s)
		}
		b.fail("passing", nil)
		time.Sleep(2 * time.Second)
		b.expect("after a while", "passing1", "well1")
		time.Sleep(time.Hour)
		b.expect("after an hour", "passing1", "well1")
		b.fail("lasting", nil)
		b.set("passing=1", "lasting=2", "well=1")
		b.expect("with other settings", "lasting2", "passing1", "well1")
		if _, runs := b.started(); runs != 6 {
			t.Errorf("%d starts, want 6", runs)
		}
		select {
		case err := <-passing:
			t.Errorf("it no longer tries: %v", err)
		default:
		}
	})
}

// An error that keeps coming back is returned, so that another process may try.
func TestKeepsFailing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		b.set("a=1")
		b.fail("a", errPassing)
		_, result := b.work("a")
		select {
		case err := <-result:
			if !errors.Is(err, errPassing) {
				t.Errorf("got %v", err)
			}
		case <-time.After(time.Hour): // of the bubble
			t.Error("it is not returned")
		}
		if _, runs := b.started(); runs != 5 {
			t.Errorf("%d starts, want 5", runs)
		}
		b.fail("a", nil)
		b.work("a")
		b.expect("again", "a1")
	})
}

// There is room for so many, also while one that has moved away still drains.
func TestRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2)
		b.set("a=1", "b=1", "c=1")
		stop, _ := b.work("a")
		b.work("b")
		b.work("c")
		b.expect("two", "a1", "b1")
		if s := b.statusOf("c"); s.State != Waiting || !strings.Contains(s.Why, "room") {
			t.Errorf("c: %+v", s)
		}
		stop()
		b.expect("one has moved", "b1", "c1")
		if b.most != 2 {
			t.Errorf("%d ran at once", b.most)
		}
	})
}

// All links drain at once, and one that does not is said to have been late.
func TestEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2)
		b.set("a=1", "b=1")
		b.work("a")
		b.hangs = true
		b.work("b")
		b.drain(context.Canceled)
		b.expect("after the first signal", "b1")
		if s := b.statusOf("b"); s.State != Draining {
			t.Errorf("b: %+v", s)
		}
		b.kill(errLate)
		b.expect("after the second")
		if late := b.Undrained(); !slices.Equal(late, []string{"b"}) {
			t.Errorf("late: %q", late)
		}
		if len(b.Status().Links) != 0 {
			t.Errorf("it still has %+v", b.Status().Links)
		}
	})
}

// A link that was late when it moved away does not make the process's end one that was.
func TestMovedLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2)
		b.set("a=1")
		b.fail("a", errPassing)
		stop, _ := b.work("a")
		stop()
		b.drain(context.Canceled)
		synctest.Wait()
		if late := b.Undrained(); len(late) != 0 {
			t.Errorf("late: %q", late)
		}
	})
}

func get(b *bench, own prometheus.Gatherer, path string) (code int, body string) {
	return ask(b, own, http.MethodGet, path)
}

func ask(b *bench, own prometheus.Gatherer, method, path string) (code int, body string) {
	b.t.Helper()
	s := must.Get(web.New(b.Web(own)))(b.t)
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequestWithContext(b.t.Context(), method, path, nil))
	return w.Code, w.Body.String()
}

// What the process shows of itself and of its links.
func TestHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 4)
		var away error
		b.cfg.Ready = func() error { return away }
		b.set("a=1", "sick=1", "lasting=1")
		b.fail("lasting", errLasting)
		b.Fault(errors.New("line 3: there is no setting x"))
		b.work("a")
		b.work("sick")
		b.work("lasting")
		own := prometheus.NewRegistry()
		must.Succeed(t, b.Register(own))

		code, body := get(b, own, "/healthz")
		want := "m: 3 of at most 4 links\nthe links file could not be read again: line 3: there is no setting x\n" +
			"lasting: ended: the history has diverged (exit code 6). Copy again.\nsick: running: no reply. Next: look at the source\n"
		if code != http.StatusOK || body != want {
			t.Errorf("/healthz: %d %s", code, body)
		}
		if code, body = get(b, own, "/readyz"); code != http.StatusOK || body != "ready\n" {
			t.Errorf("/readyz: %d %s", code, body)
		}
		away = errors.New("the control plane has not answered")
		if code, body = get(b, own, "/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "control plane") {
			t.Errorf("/readyz: %d %s", code, body)
		}
		if code, body = get(b, own, "/healthz"); code != http.StatusOK {
			t.Errorf("/healthz while the control plane is away, which a restart does not help: %d %s", code, body)
		}
		if code, body = get(b, own, "/status/a"); code != http.StatusOK || body != "\"all of a\"\n" {
			t.Errorf("/status/a: %d %s", code, body)
		}
		if code, body = get(b, own, "/status/lasting"); code != http.StatusServiceUnavailable || !strings.Contains(body, "exit code 6") {
			t.Errorf("/status/lasting: %d %s", code, body)
		}
		if code, _ = get(b, own, "/status/none"); code != http.StatusNotFound {
			t.Errorf("/status/none: %d", code)
		}
		_, body = get(b, own, "/status")
		var s Status
		must.Succeed(t, json.Unmarshal([]byte(body), &s))
		if s.Ready || s.Member != "m" || s.FileLinks != 3 || s.FileError == "" || len(s.Links) != 3 || s.Links[0].Run == nil || s.Links[0].Run.State != "steady" {
			t.Errorf("/status: %s", body)
		}
		checkMetrics(b, own)
	})
}

func checkMetrics(b *bench, own *prometheus.Registry) {
	b.t.Helper()
	code, body := get(b, own, "/metrics")
	for _, want := range []string{
		`lag{a="1",link="a",z="2"} 0`, `lag{a="1",link="sick",z="2"} 0`, `leads{link="a"} 0`,
		`replicator_agent_link_state{link="lasting",state="ended"} 1`, `replicator_agent_link_state{link="a",state="running"} 1`,
		`replicator_agent_link_exit_code{link="lasting"} 6`, `replicator_agent_file_valid 0`, `replicator_agent_ready 0`, `replicator_agent_max_links 4`,
	} {
		if code != http.StatusOK || !strings.Contains(body, want+"\n") {
			b.t.Errorf("the metrics (%d) have no %s:\n%s", code, want, body)
		}
	}
	if strings.Count(body, "# TYPE lag ") != 1 {
		b.t.Errorf("a metric is there twice:\n%s", body)
	}
	if code, _ := ask(b, own, http.MethodPost, "/status"); code != http.StatusMethodNotAllowed {
		b.t.Errorf("POST: %d", code)
	}
}
