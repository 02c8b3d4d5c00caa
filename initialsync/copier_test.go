package initialsync

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
)

func TestNew(t *testing.T) {
	t.Parallel()
	_, err := New(Config{Workers: -1})
	for _, want := range []string{
		"no source", "no target", "no scope", "no log", "nothing to carry out commands with", "the link has no name",
		"-1 workers, 2 for indexes", "no checkpoint",
	} {
		if err == nil || !strings.Contains(err.Error(), "initialsync: "+want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
}

// TestCancel ends a copy at any time.
func TestCancel(t *testing.T) {
	t.Parallel()
	why := errors.New("why")
	for after := time.Duration(0); after < 30*time.Second; after += 350 * time.Millisecond {
		synctest.Test(t, func(t *testing.T) {
			w := everyKind(t)
			w.slow = true
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			defer time.AfterFunc(after, func() { cancel(why) }).Stop()
			err := w.start(Config{Workers: 2}, 3).Run(ctx)
			if err != nil && err != why || err == nil && after < 10*time.Second { //nolint:errorlint // the cause itself
				t.Errorf("after %s: %v", after, err)
			}
			if err == nil {
				return
			}
			if err := w.start(Config{Workers: 2}, 3).Run(t.Context()); err != nil {
				t.Errorf("after %s: the next one: %v", after, err)
			}
		})
	}
}

// TestReplaying does nothing if the copy is complete.
func TestReplaying(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.link.Phase = checkpoint.Replaying
	c := w.start(Config{}, 1)
	if err := c.Run(t.Context()); err != nil || w.calls > 0 || c.Progress().Step != StepDone {
		t.Errorf("error %v, %d changes, %+v", err, w.calls, c.Progress())
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	w := everyKind(t)
	reg := prometheus.NewRegistry()
	must.Succeed(t, w.start(Config{Registry: reg}, 4).Run(t.Context()))
	want := `
# HELP replicator_initialsync_bytes_total Bytes of documents copied by this process.
# TYPE replicator_initialsync_bytes_total counter
replicator_initialsync_bytes_total 1900
# HELP replicator_initialsync_docs_total Documents copied by this process.
# TYPE replicator_initialsync_docs_total counter
replicator_initialsync_docs_total 19
# HELP replicator_initialsync_ranges Parts of collections that are copied by themselves: those that are done, and that there are.
# TYPE replicator_initialsync_ranges gauge
replicator_initialsync_ranges{kind="done"} 14
replicator_initialsync_ranges{kind="total"} 14
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "replicator_initialsync_bytes_total",
		"replicator_initialsync_docs_total", "replicator_initialsync_ranges"); err != nil {
		t.Error(err)
	}
	// Another process continues the counters.
	c := w.start(Config{Registry: reg}, 4)
	must.Succeed(t, c.Run(t.Context()))
	if n := testutil.ToFloat64(c.board.metrics.docs); n != 19 {
		t.Errorf("%v documents", n)
	}
	for _, step := range []Step{StepCopy, StepDone} {
		if n := testutil.ToFloat64(c.board.metrics.step.WithLabelValues(string(step))); (n == 1) != (step == StepDone) {
			t.Errorf("step %s is %v", step, n)
		}
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	code := func(c servererr.Code) error { return fmt.Errorf("ddl: %w", servererr.New(c, "x")) }
	for _, x := range []struct {
		err  error
		want bool
	}{
		{code(servererr.DuplicateKey), true},
		{code(servererr.CannotCreateIndex), true},
		{code(servererr.IndexBuildAborted), true},
		{code(16755), true}, // a key that is not a place on earth
		{fmt.Errorf("view: %w", &oplog.EntryError{}), true},
		{code(servererr.Unauthorized), false},
		{code(servererr.NotWritablePrimary), false},
		{code(servererr.InterruptedDueToReplStateChange), false},
		{code(servererr.WriteConcernTimeout), false},
		{code(servererr.OutOfDiskSpace), false},
		{code(servererr.TemporarilyUnavailable), false},
		{code(servererr.ExceededMemoryLimit), false},
		{servererr.New(servererr.BadValue, "x").WithLabels("RetryableWriteError"), false},
		{&mongo.LostError{Err: code(servererr.BadValue)}, false},
		{&mongo.UnconfirmedError{Err: servererr.New(servererr.BadValue, "x")}, false},
		{lease.ErrFenced, false},
		{context.Canceled, false},
	} {
		if got := isRefusal(x.err); got != x.want {
			t.Errorf("%v: %t", x.err, got)
		}
	}
}

// TestRate compares the rate with the totals.
func TestRate(t *testing.T) {
	t.Parallel()
	start := time.Unix(1000, 0)
	r := rate{start: start}
	var counted []time.Duration
	for i := range 400 {
		at := time.Duration(i*i%7+i*3) * 100 * time.Millisecond
		if len(counted) > 0 {
			at = max(at, counted[len(counted)-1])
		}
		r.add(start.Add(at), 1, 1000)
		counted = append(counted, at)
		docs, bytes := r.perSecond(start.Add(at))
		from := at.Truncate(time.Second) - (window-1)*time.Second
		n := 0
		for _, c := range counted {
			if c >= from {
				n++
			}
		}
		want := float64(n) / max(1, (at-max(0, from)).Seconds())
		if diff := docs - want; diff > 1e-9 || diff < -1e-9 || bytes < docs*999 || bytes > docs*1001 {
			t.Fatalf("at %s: %v a second, want %v", at, docs, want)
		}
	}
	if docs, _ := r.perSecond(start.Add(time.Hour)); docs != 0 {
		t.Errorf("%v a second when nothing is copied any more", docs)
	}
}

// TestLeft: a very low recent rate does not predict how long a large rest takes.
func TestLeft(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		bytes     int64
		perSecond float64
		want      time.Duration
	}{
		{1000, 100, 10 * time.Second},
		{1000, 0.1, 10_000 * time.Second},
		{240 << 20, 40, -1},
		{1 << 40, 1 << 20, 1 << 20 * time.Second},
		{1 << 62, 8 << 10, maxLeft},
	} {
		if got := left(tt.bytes, tt.perSecond); got != tt.want {
			t.Errorf("%d bytes at %g: %s, want %s", tt.bytes, tt.perSecond, got, tt.want)
		}
	}
}
