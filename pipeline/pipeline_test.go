package pipeline_test

import (
	"context"
	"flag"
	"runtime"
	"runtime/debug"
	"strconv"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"

	"github.com/oplogrep/replicator/internal/metric"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/scope"
)

func TestMain(m *testing.M) {
	// Scenarios spend most of their time waiting.
	if err := flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0))); err != nil {
		panic(err)
	}
	// The sets are in this process, and those of several tests at once.
	debug.SetMemoryLimit(3 << 30)
	goleak.VerifyTestMain(m)
}

// TestMirror is the plain case: documents, changes of many kinds and an index,
// with renames.
func TestMirror(t *testing.T) {
	t.Parallel()
	w := newWorld(t, mongosim.Options{Members: 3, Seed: 1}, mongosim.Options{Members: 3, Seed: 2})
	must := func(err error) {
		t.Helper()
		if err != nil {
			w.fail("pipeline_test.go", "mirror", err)
		}
	}
	must(w.start("a", pipeline.Config{}, scope.Config{Map: []string{"shop=store"}, Exclude: []string{"store"}}))
	a := w.links["a"]
	must(w.await([]string{"running"}))
	ctx := t.Context()
	must(w.writes(ctx, w.source, "insert", []string{"shop.a", "1..1000"}))
	must(w.writes(ctx, w.source, "update", []string{"shop.a", "1..300"}))
	must(w.source.write(ctx, "shop", bson.D{{Key: "createIndexes", Value: "a"}, {Key: "indexes", Value: bson.A{
		bson.D{{Key: "key", Value: bson.D{{Key: "x", Value: 1}}}, {Key: "name", Value: "x_1"}},
	}}}))
	must(w.writes(ctx, w.source, "update", []string{"shop.a", "200..400"}))
	must(w.writes(ctx, w.source, "delete", []string{"shop.a", "900..1000"}))
	must(w.caughtUp(a))
	verdict, err := w.equal(a)
	must(err)
	if verdict != "equal" {
		t.Error(verdict)
	}
	if n, err := w.target.count(ctx, "store.a"); n != 899 || err != nil {
		t.Errorf("%d documents, %v", n, err)
	}
	must(w.end("drain", a))
	if a.err != nil {
		t.Error(a.err)
	}
	if s := a.p.Snapshot(); s.State != monitor.Stopped || s.Lag != 0 || !s.Progress.Durable.Equal(s.Fetched) {
		t.Errorf("drained, it is %s, at %s of %s, %s behind", s.State, s.Progress.Durable, s.Fetched, s.Lag)
	}
	measured(t, a.p.Snapshot())
}

// measured checks what the stages of TestMirror have measured.
func measured(t *testing.T, s monitor.Snapshot) {
	t.Helper()
	// After a fault, operations may be in the target that were not acknowledged, and of a flush in
	// several parts the first may have been; the applier's tests count exactly.
	c := &s.Applier
	if c.Inserts+c.Updates+c.Deletes != c.Ops || c.Ops == 0 || c.Bytes < 20*c.Ops {
		t.Errorf("counts %+v", c)
	}
	list, rest := s.Namespaces.Top(10)
	if len(list) != 1 || list[0].NS != "shop.a" || list[0].Ops == 0 || list[0].Ops > c.Ops || list[0].Bytes > c.Bytes || rest.Ops != 0 {
		t.Errorf("namespaces %+v, and %+v", list, rest)
	}
	if n := int64(s.Latency.Total()); s.Clock.At.IsZero() || n < list[0].Ops || n > c.Ops+c.Commands {
		t.Errorf("%d latencies of %d operations and %d commands, the source's clock is %+v", n, c.Ops, c.Commands, s.Clock)
	}
	busy := map[string]time.Duration{"fetcher": s.Work.Fetcher[metric.Busy], "batcher": s.Work.Batcher[metric.Busy], "dispatcher": s.Work.Dispatcher[metric.Busy]}
	for _, lane := range s.Work.Lanes {
		busy["lanes"] += lane[metric.Busy]
	}
	for stage, took := range busy {
		if took <= 0 {
			t.Errorf("the %s was never busy: %+v", stage, s.Work)
		}
	}
}

// TestStoppedBeforeItRuns: a link that is canceled before it has started reports that,
// and leaves nothing behind.
func TestStoppedBeforeItRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t, mongosim.Options{}, mongosim.Options{Seed: 2})
	s, err := scope.New(scope.Config{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := pipeline.New(pipeline.Config{Link: "t", Scope: s}, w.source.conn, w.target.conn)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancelCause(t.Context())
	stop(failure.ErrStopped)
	if got := verdict(p.Run(ctx, t.Context())); got != "exit 10: stopped" {
		t.Error(got)
	}
	if p.Snapshot().State != monitor.Stopped {
		t.Error(p.Snapshot().State)
	}
}
