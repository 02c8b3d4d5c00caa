package main

import (
	"strings"
	"testing"
	"time"

	"github.com/oplogrep/replicator/status"
)

// TestStatusFigures: the text has the known figures, and omits the others.
func TestStatusFigures(t *testing.T) {
	t.Parallel()
	f := func(v float64) *float64 { return &v }
	phase, ops, level := "following", int64(5000), "debug"
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s := status.Snapshot{
		LagSeconds: f(0), AgeOfOldestUnappliedSeconds: f(3723.4),
		Latency:      status.Latency{P50Seconds: f(0.0071), P95Seconds: f(0.25), P99Seconds: f(2.04)},
		Rates:        status.Rates{InsertsPerSecond: f(10), UpdatesPerSecond: f(2.4), DeletesPerSecond: f(0), BytesPerSecond: f(3 << 20)},
		Bottleneck:   &status.Bottleneck{Why: "the target: the 16 writers wait for it 80 % of the time"},
		Cut:          &status.Cut{AgeSeconds: 12.34},
		LackingViews: []status.LackingView{{Namespace: "shop.v", Why: "its pipeline is invalid"}},
		LackingIndexes: []status.LackingIndex{
			{Namespace: "shop.a", Name: "x_1"}, {Namespace: "shop.b", Name: "y_1"}, {Namespace: "shop.b", Name: "z_1"}, {Namespace: "shop.c", Name: "x_1"},
		},
		LackingOptions: []status.LackingOption{{Namespace: "shop.a", Name: "validator"}},
		Control: &status.Control{
			Paused:   &status.Paused{Since: now, By: "me@vm"},
			Throttle: status.Throttle{ApplyOpsPerSecond: &ops, Adaptive: true, Factor: 0.5}, LogLevel: &level,
		},
		Namespaces: []status.Namespace{
			{Namespace: "shop.idle", OpsPerSecond: f(0)},
			{Namespace: "shop.unknown"},
			{Namespace: "shop.some", OpsPerSecond: f(1), DeferredIndexes: []string{"a", "b"}},
			{Namespace: "shop.\x1bmost", OpsPerSecond: f(9), LogBytesPerSecond: f(2048), Phase: &phase},
		},
	}
	var got strings.Builder
	describeFigures(&got, "  ", &s)
	const want = `  lag: 0 ms, oldest not applied 1h2m3s
  latency: p50 7 ms, p95 250 ms, p99 2.0 s
  rates: 10 inserts/s, 2 updates/s, 0 deletes/s, 3.0 MiB/s
  slowest: the target: the 16 writers wait for it 80 % of the time
  cut: 12.3 s old
  lacking: 1 view (shop.v), 4 indexes (x_1 of shop.a; y_1 of shop.b; z_1 of shop.b; and 1 more: see replicator links), 1 option (validator of shop.a)
  set: paused since 2026-01-02 03:04:05 UTC by me@vm, applied operations at most 5000 per second, adaptive, 50 % of that now, log level debug
  namespace shop.\x1bmost: following, 9 operations/s, 2.0 KiB/s
  namespace shop.some: 1 operations/s, 2 indexes deferred until cutover
`
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", &got, want)
	}
	got.Reset()
	if describeFigures(&got, "", &status.Snapshot{}); got.Len() != 0 {
		t.Errorf("nothing is known, and it says\n%s", &got)
	}
}

// TestVerifiedText: collections that could not be compared count although they are not listed.
func TestVerifiedText(t *testing.T) {
	t.Parallel()
	v := &status.Verified{Collections: 300, Verified: 170, Unchecked: make([]status.UnverifiedNamespace, 100), MoreUnchecked: 20, Differences: 7}
	const want = "not as a whole: nothing was compared, 170 of 300 collections, 120 could not be compared, 7 differences"
	if got := strings.Join(verifiedText(v), ", "); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
