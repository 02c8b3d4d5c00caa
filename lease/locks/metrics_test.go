package locks_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease/locks"
	"github.com/oplogrep/replicator/lease/locks/lockstest"
)

// counted fails the test unless the metrics have these values, one in a line without its prefix.
func counted(t *testing.T, reg *prometheus.Registry, want string) {
	t.Helper()
	got := map[string]float64{}
	for _, family := range must.Get(reg.Gather())(t) {
		for _, m := range family.GetMetric() {
			words := []string{strings.TrimPrefix(family.GetName(), "replicator_locks_")}
			for _, l := range m.GetLabel() {
				words = append(words, l.GetValue())
			}
			got[strings.Join(words, " ")] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	for line := range strings.Lines(want) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " = ")
		if is, ok := got[name]; !ok || strconv.FormatFloat(is, 'f', -1, 64) != value {
			t.Errorf("%s is %v, want %s", name, is, value)
		}
	}
	for _, p := range must.Get(testutil.GatherAndLint(reg))(t) {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// TestMetricsOfManager: locks held, tried and lost, over two Managers of one process.
func TestMetricsOfManager(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, reg := lockstest.NewMemory(), prometheus.NewRegistry()
		ctx, stop := context.WithCancelCause(t.Context())
		first := locks.NewManager(locks.Config{Store: store, Process: "p", Registry: reg})
		second := locks.NewManager(locks.Config{Store: store, Process: "q", Registry: reg})
		go first.Run(ctx)
		for _, name := range []string{"a", "b", "c"} {
			_ = must.Get(first.Lock(ctx, name, "", locks.Wants{}))(t)
		}
		_, err := second.Lock(ctx, "a", "", locks.Wants{})
		must.Fail(t, err, locks.ErrBusy)
		d := must.Get(second.Lock(ctx, "d", "", locks.Wants{}))(t)
		counted(t, reg, "held slow = 4\nattempts_total slow acquired = 4\nattempts_total slow busy = 1\nwait_seconds slow = 4\nrenewal_seconds slow = 2")
		d.Unlock(ctx)
		d.Unlock(ctx)
		must.Succeed(t, store.Release(ctx, "b", store.Record("b").ID))
		time.Sleep(time.Minute)
		synctest.Wait()
		counted(t, reg, "held slow = 2\nlost_total slow released = 1\nrenewal_seconds slow = 4")
		away := errors.New("away")
		store.Fail(func(context.Context, string) (bool, error) { return false, errors.Join(locks.ErrUnavailable, away) })
		_, err = second.Lock(ctx, "e", "", locks.Wants{})
		must.Fail(t, err, away)
		time.Sleep(15 * time.Minute)
		synctest.Wait()
		counted(t, reg, "held slow = 0\nlost_total slow expired = 2\nattempts_total slow failed = 1\nrenewal_failures_total slow = 30")
		stop(nil)
	})
}

// TestMetricsOfElect: the same for locks that end.
func TestMetricsOfElect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, reg := lockstest.NewMemory(), prometheus.NewRegistry()
		e := locks.NewElect(locks.ElectConfig{Store: store, Registry: reg})
		other := locks.NewElect(locks.ElectConfig{Store: store, Registry: reg})
		until := func(ctx context.Context) { <-ctx.Done() }
		if got, err := e.TryLock(t.Context(), "a", "", until); !got || err != nil {
			t.Fatal(got, err)
		}
		if got, err := other.TryLock(t.Context(), "a", "", until); got || err != nil {
			t.Fatal(got, err)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		counted(t, reg, "held ending = 1\nattempts_total ending acquired = 1\nattempts_total ending busy = 1\nrenewal_seconds ending = 2")
		must.Succeed(t, store.Release(t.Context(), "a", store.Record("a").ID))
		time.Sleep(5 * time.Second)
		synctest.Wait()
		counted(t, reg, "held ending = 0\nlost_total ending released = 1\nrenewal_failures_total ending = 0")
		e.Close()
		other.Close()
	})
}

// TestSweepsPings: the pings of processes that were killed are removed a week later, not that
// of one whose lock is still locked, by one look a day.
func TestSweepsPings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := lockstest.NewMemory()
		for _, p := range []string{"killed", "unlocked"} {
			must.Succeed(t, store.Ping(t.Context(), p))
		}
		killed := locks.NewManager(locks.Config{Store: store, Process: "killed"})
		_ = must.Get(killed.Lock(t.Context(), "b", "", locks.Wants{}))(t)
		ctx, stop := context.WithCancelCause(t.Context())
		m := locks.NewManager(locks.Config{Store: store, Process: "p", Ping: 5 * time.Minute})
		go m.Run(ctx)
		_ = must.Get(m.Lock(ctx, "a", "", locks.Wants{}))(t)
		time.Sleep(6*24*time.Hour + time.Hour)
		if !store.HasPing("unlocked") {
			t.Error("it was removed before a week was over")
		}
		time.Sleep(2 * 24 * time.Hour)
		if store.HasPing("unlocked") || !store.HasPing("killed") || !store.HasPing("p") {
			t.Errorf("unlocked %t, killed %t, p %t", store.HasPing("unlocked"), store.HasPing("killed"), store.HasPing("p"))
		}
		if n := store.Calls(lockstest.SweepPings); n != 9 {
			t.Errorf("it looked %d times in 8 days", n)
		}
		stop(nil)
	})
}
