package batcher

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/batch"
)

func TestConfig(t *testing.T) {
	_, err := New(Config{MaxOps: MostOps + 1, MaxBytes: -1, Delay: -time.Second, MemoryBytes: -5})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, part := range []string{
		"set up the batcher: ", "operations of a batch: 1000001, possible are 1 to 1000000", "bytes of a batch: -1",
		"delay: -1s", "memory for open transactions: -5 bytes",
	} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in %v", part, err)
		}
	}
	b, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	if b.cfg.MaxOps != 5000 || b.cfg.MaxBytes != 100<<20 || b.cfg.Delay != 0 {
		t.Errorf("defaults: %+v", b.cfg)
	}
}

// Run returns the cause itself, unwrapped, so that it can be compared.
func TestCause(t *testing.T) {
	b, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	cause := errors.New("why")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	in := make(chan oplog.Reply, 1)
	in <- oplog.Reply{Entries: []oplog.Entry{newLog().entry(t, 1, "t(i1)")}}
	out := make(chan batch.Batch)
	if err := b.Run(ctx, in, out); err != cause { //nolint:errorlint // itself is meant
		t.Errorf("the end is %v", err)
	}
	if _, open := <-out; open {
		t.Error("a batch after the stop")
	}
}

// The second Batcher of a process continues the metrics of the first.
func TestMetrics(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	for range 2 {
		b, err := New(Config{MaxOps: 2, Registry: reg, SpillDir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		l := newLog()
		var r oplog.Reply
		for token := range strings.FieldsSeq("i1 i2 p1(i3) n1 c:drop t(i4) e1(i5) p2(i6) n2 n3 x2") {
			r.Entries = append(r.Entries, l.entry(t, 100+l.n, token))
		}
		in := make(chan oplog.Reply, 1)
		in <- r
		close(in)
		out := make(chan batch.Batch, 100)
		must.Succeed(t, b.Run(t.Context(), in, out))
		for x := range out {
			l.describe(t, &x)
		}
	}
	want := `
# HELP replicator_batcher_batches_total Batches, by why they ended: full, partial (nothing more was there), individual, empty (nothing to apply).
# TYPE replicator_batcher_batches_total counter
replicator_batcher_batches_total{kind="individual"} 2
replicator_batcher_batches_total{kind="empty"} 6
replicator_batcher_batches_total{kind="full"} 4
replicator_batcher_batches_total{kind="partial"} 2
# HELP replicator_batcher_entries_total Oplog entries, by what came of them: pass, partial, committed, aborted, past.
# TYPE replicator_batcher_entries_total counter
replicator_batcher_entries_total{outcome="aborted"} 2
replicator_batcher_entries_total{outcome="committed"} 4
replicator_batcher_entries_total{outcome="partial"} 4
replicator_batcher_entries_total{outcome="past"} 0
replicator_batcher_entries_total{outcome="pass"} 12
# HELP replicator_batcher_oldest_transaction_age_seconds How much earlier than the newest entry the oldest open transaction began.
# TYPE replicator_batcher_oldest_transaction_age_seconds gauge
replicator_batcher_oldest_transaction_age_seconds 0
# HELP replicator_batcher_operations_total Operations in batches.
# TYPE replicator_batcher_operations_total counter
replicator_batcher_operations_total 12
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "replicator_batcher_batches_total",
		"replicator_batcher_entries_total", "replicator_batcher_operations_total", "replicator_batcher_oldest_transaction_age_seconds"); err != nil {
		t.Error(err)
	}
}

// TestMetricsEnded: the metrics of a Batcher that has ended show no open transaction: another process may continue.
func TestMetricsEnded(t *testing.T) {
	b, err := New(Config{MaxOps: 2, Registry: prometheus.NewPedanticRegistry(), SpillDir: t.TempDir()})
	must.Succeed(t, err)
	l := newLog()
	var r oplog.Reply
	for token := range strings.FieldsSeq("i1 p1(i3) n1 i2 i3 i4") {
		r.Entries = append(r.Entries, l.entry(t, 100+l.n, token))
	}
	in, out := make(chan oplog.Reply), make(chan batch.Batch, 100)
	ctx, stop := context.WithCancelCause(t.Context())
	ended := make(chan error)
	go func() { ended <- b.Run(ctx, in, out) }()
	in <- r
	in <- oplog.Reply{}
	in <- oplog.Reply{} // all of the first one has been sent
	if age, bytes := testutil.ToFloat64(b.metrics.oldestAge), testutil.ToFloat64(b.metrics.chainBytes); age == 0 || bytes == 0 {
		t.Errorf("a transaction is open: %v s, %v bytes", age, bytes)
	}
	errOther := errors.New("another process leads")
	stop(errOther)
	if err := <-ended; !errors.Is(err, errOther) {
		t.Errorf("ended with %v", err)
	}
	if age, bytes := testutil.ToFloat64(b.metrics.oldestAge), testutil.ToFloat64(b.metrics.chainBytes); age != 0 || bytes != 0 {
		t.Errorf("after the end: %v s, %v bytes", age, bytes)
	}
}
