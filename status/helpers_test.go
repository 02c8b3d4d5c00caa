package status

import (
	"context"
	"encoding/json"
	"flag"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/buffer"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/syncsource"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// golden compares text with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *rewrite {
		must.Succeed(t, os.MkdirAll("testdata", 0o755))
		must.Succeed(t, os.WriteFile(path, []byte(got), 0o600))
	}
	want := must.Get(os.ReadFile(path))(t)
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s:\n%s", path, diff)
	}
}

// fakePipeline is a scripted pipeline.
type fakePipeline struct {
	mu sync.Mutex
	s  monitor.Snapshot
}

func (f *fakePipeline) Snapshot() monitor.Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.s
}

func (f *fakePipeline) set(change func(*monitor.Snapshot)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.s)
}

// callerFunc is a server.
type callerFunc func(cmd string) (bson.Raw, error)

func (f callerFunc) Call(_ context.Context, c mongo.Command) (bson.Raw, error) {
	if c.DB == "config" { // whether writes are blocked
		return bson.Marshal(bson.D{{Key: "ok", Value: 1}, {Key: "cursor", Value: bson.D{
			{Key: "id", Value: int64(0)}, {Key: "ns", Value: "config.user_writes_critical_sections"}, {Key: "firstBatch", Value: bson.A{}},
		}}})
	}
	return f(c.Body.Index(0).Key())
}

func at(seconds uint32) oplog.OpTime { return oplog.NewOpTime(seconds, 1, 7) }

func newTracker(t *testing.T, cfg Config) *Tracker {
	t.Helper()
	return must.Get(New(cfg))(t)
}

// busy is a link in the middle of its work.
func busy(s *monitor.Snapshot) {
	now := time.Now()
	*s = monitor.Snapshot{
		Link: "l", State: monitor.CatchingUp, Since: now.Add(-90 * time.Second), Attempts: 2, Term: 9,
		Process: "db7:8080:1700000000:0123456789abcdef",
		Lease:   lease.Stats{Left: 6500 * time.Millisecond, Takeovers: 2, Fenced: 1, Renewals: 40, Failures: 3, LastRenewal: 12 * time.Millisecond},
		Progress: checkpoint.Progress{
			Applied: at(1000), AppliedWall: 1_000_500, FetchFrom: at(900), Durable: at(990), DurableWall: 990_500, Ops: 123_456,
		},
		Gaps: checkpoint.Gaps{CopiedUntil: at(950)},
		Log: checkpoint.Progress{
			Applied: at(1000), AppliedWall: 1_000_500, FetchFrom: at(900), Durable: at(990), DurableWall: 990_500, Ops: 123_456,
		},
		Back:      &checkpoint.Back{Link: "dr", Instance: "i", At: time.UnixMilli(900_000), Start: at(880)},
		Fetched:   at(1020),
		SourceSet: "rs0", SourceHost: "a:1",
		Source:  fetcher.Metadata{Committed: at(1012), CommittedWall: 1_012_750, Applied: at(1013)},
		HeardAt: now.Add(-1500 * time.Millisecond), Lag: 12_250 * time.Millisecond, Delay: 5 * time.Second, CutInterval: 10 * time.Second,
		Deferred:   ddl.Specs{{NS: "shop.a", Index: "sku"}, {NS: "shop.a", Index: "seen"}, {NS: "shop.b"}},
		DeferredOf: map[oplog.Namespace][]string{"shop.orders": {"seen", "sku"}},
		Buffer:     buffer.Stats{Buffered: 5000, Limit: 1 << 20, Replies: 3, Oldest: now.Add(-2 * time.Second), Waiting: true},
		Applier:    applier.Stats{Ops: 1, Flushes: 2, Coalesced: 3, Retries: 4, Divergences: 5, DeletesEmpty: 6, Skipped: 7, Commands: 8, Barriers: 9, Writers: 16},
		Resolver: syncsource.Status{Denied: syncsource.Denylist{
			"c:3": {Until: now.Add(time.Minute), Reason: "could not be read from: no answer"},
			"b:2": {Until: now.Add(10 * time.Second), Reason: "is too stale"},
		}},
		TargetHosts: []string{"x:1", "y:2"},
		LastError:   "applier: not primary", LastErrorAt: now.Add(-3 * time.Minute),
	}
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	text := must.Get(json.Marshal(v))(t)
	return string(text)
}

// health is what /healthz answers.
func health(tr *Tracker) (code int, body string) {
	s := tr.Snapshot()
	if !s.Healthy() {
		return http.StatusServiceUnavailable, s.Health()
	}
	return http.StatusOK, s.Health()
}

type nested struct{}

func (nested) Message() string { return "odd" }

func (nested) Level() slog.Level { return slog.LevelError }

func (nested) LogValue() slog.Value {
	const a, b, d, g, h = "a", "b", "d", "g", "h"
	return slog.GroupValue(slog.Int(a, 1), slog.Group(g, slog.String(b, "x"), slog.Group(h, slog.Duration(d, time.Second))))
}

func memberAtFault(reason string) event.Event {
	const host, why = "host", "reason"
	return event.NewLine(slog.LevelWarn, "member unusable", slog.String(host, "c:3"), slog.String(why, reason))
}
