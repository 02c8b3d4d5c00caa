package netfault_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/oplogrep/replicator/mongosim/fault"
	"github.com/oplogrep/replicator/mongosim/internal/netfault"
)

// set sets the faults that the texts name.
func set(t testing.TB, n *netfault.Network, from, to string, texts ...string) {
	t.Helper()
	var faults []fault.Fault
	for _, text := range texts {
		f, err := fault.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		faults = append(faults, f)
	}
	if err := n.Set(from, to, faults...); err != nil {
		t.Fatal(err)
	}
}

// delay returns how long a message takes.
func delay(t *testing.T, n *netfault.Network, from, to string) time.Duration {
	t.Helper()
	start := time.Now()
	if err := n.Delay(t.Context(), from, to); err != nil {
		t.Errorf("from %s to %s: %v", from, to, err)
	}
	return time.Since(start)
}

// lost reports whether a message does not arrive within a minute.
func lost(t *testing.T, n *netfault.Network, from, to string) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := n.Delay(ctx, from, to)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("from %s to %s: %v", from, to, err)
	}
	return err != nil
}

func TestDelayTakesTheLatencyOfItsDirection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := netfault.NewNetwork(1)
		set(t, n, "b", "a", "latency 5ms in", "latency 2ms")
		for _, tc := range []struct {
			from, to string
			want     time.Duration
		}{
			{"a", "b", 7 * time.Millisecond},
			{"b", "a", 2 * time.Millisecond},
			{"a", "c", 0},
			{"c", "a", 0},
		} {
			if got := delay(t, n, tc.from, tc.to); got != tc.want {
				t.Errorf("from %s to %s takes %v, want %v", tc.from, tc.to, got, tc.want)
			}
		}
		n.Heal("a", "b")
		if got := delay(t, n, "a", "b"); got != 0 {
			t.Errorf("healed it takes %v", got)
		}
	})
}

func TestSetReplaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := netfault.NewNetwork(1)
		set(t, n, "a", "b", "cut")
		set(t, n, "b", "a", "latency 1ms")
		if got := delay(t, n, "a", "b"); got != time.Millisecond {
			t.Errorf("it takes %v", got)
		}
		set(t, n, "a", "b")
		if got := delay(t, n, "a", "b"); got != 0 {
			t.Errorf("without faults it takes %v", got)
		}
	})
}

func TestBlackHoles(t *testing.T) {
	type way struct{ from, to string }
	ab, ba := way{"a", "b"}, way{"b", "a"}
	for name, tc := range map[string]struct {
		from, to, text string
		lost           []way
	}{
		"drop":               {"a", "b", "drop", []way{ab, ba}},
		"freeze":             {"a", "b", "freeze", []way{ab, ba}},
		"in":                 {"a", "b", "half-open in", []way{ba}},
		"out":                {"a", "b", "half-open out", []way{ab}},
		"in, swapped":        {"b", "a", "half-open in", []way{ab}},
		"out, swapped":       {"b", "a", "half-open out", []way{ba}},
		"any, in":            {netfault.Any, "b", "half-open in", []way{ba}},
		"any, out":           {"a", netfault.Any, "half-open out", []way{ab}},
		"any end, in":        {"b", netfault.Any, "half-open in", []way{ab}},
		"any and any":        {netfault.Any, netfault.Any, "drop", []way{ab, ba}},
		"any and any, in":    {netfault.Any, netfault.Any, "half-open in", []way{ab, ba}},
		"somewhere else":     {"a", "c", "drop", nil},
		"any link elsewhere": {"c", netfault.Any, "drop", nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := netfault.NewNetwork(1)
				set(t, n, tc.from, tc.to, tc.text)
				var got []way
				for _, w := range []way{ab, ba} {
					if lost(t, n, w.from, w.to) {
						got = append(got, w)
					}
				}
				if diff := cmp.Diff(tc.lost, got, cmp.AllowUnexported(way{})); diff != "" {
					t.Error(diff)
				}
				n.HealAll()
				if lost(t, n, "a", "b") || lost(t, n, "b", "a") {
					t.Error("healed it still loses")
				}
			})
		})
	}
}

func TestFaultsOfAnyComeOnTop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := netfault.NewNetwork(1)
		set(t, n, "a", "b", "latency 1ms")
		set(t, n, "a", netfault.Any, "latency 2ms")
		set(t, n, netfault.Any, netfault.Any, "latency 4ms")
		if got := delay(t, n, "b", "a"); got != 7*time.Millisecond {
			t.Errorf("it takes %v", got)
		}
		n.Heal("a", "b")
		if got := delay(t, n, "b", "a"); got != 6*time.Millisecond {
			t.Errorf("with the link's own healed it takes %v", got)
		}
	})
}

func TestDelayFollowsChanges(t *testing.T) {
	const step = 10 * time.Millisecond
	for name, tc := range map[string]struct {
		before, after []string
		want          time.Duration
		err           error
	}{
		"a black hole is healed":         {[]string{"drop"}, nil, step, nil},
		"a frozen end goes on":           {[]string{"freeze"}, []string{"latency 1s"}, step, nil},
		"cut on the way":                 {[]string{"latency 1s"}, []string{"cut"}, step, netfault.ErrCut},
		"latency is drawn at the start":  {[]string{"latency 50ms"}, nil, 5 * step, nil},
		"cut while in a black hole":      {[]string{"drop"}, []string{"cut"}, step, netfault.ErrCut},
		"another fault changes nothing":  {[]string{"latency 50ms"}, []string{"latency 50ms", "rate 1"}, 5 * step, nil},
		"the black hole opens after it":  {[]string{"latency 5ms"}, []string{"drop"}, step / 2, nil},
		"half-open the other way around": {[]string{"latency 50ms"}, []string{"half-open in"}, 5 * step, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := netfault.NewNetwork(1)
				set(t, n, "a", "b", tc.before...)
				time.AfterFunc(step, func() { set(t, n, "a", "b", tc.after...) })
				start := time.Now()
				err := n.Delay(t.Context(), "a", "b")
				if got := time.Since(start); !errors.Is(err, tc.err) || got != tc.want {
					t.Errorf("%v after %v, want %v after %v", err, got, tc.err, tc.want)
				}
				time.Sleep(step)
			})
		})
	}
}

func TestDelayEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reason := errors.New("stopped")
		for _, text := range []string{"latency 1h", "drop", "freeze"} {
			n := netfault.NewNetwork(1)
			set(t, n, "a", "b", text)
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Second, func() { cancel(reason) })
			if err := n.Delay(ctx, "a", "b"); !errors.Is(err, reason) {
				t.Errorf("%s: error is %v", text, err)
			}
		}
	})
}

func TestJitterComesFromTheSeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		draws := func(seed uint64, from, to string, others bool) (all []time.Duration) {
			n := netfault.NewNetwork(seed)
			set(t, n, netfault.Any, netfault.Any, "latency 10ms jitter=5ms")
			for range 20 {
				if others {
					delay(t, n, "b", "a")
					delay(t, n, "a", "c")
				}
				d := delay(t, n, from, to)
				if d < 10*time.Millisecond || d > 15*time.Millisecond {
					t.Errorf("a message takes %v", d)
				}
				all = append(all, d)
			}
			return all
		}
		first := draws(1, "a", "b", false)
		if diff := cmp.Diff(first, draws(1, "a", "b", true)); diff != "" {
			t.Error("the same seed gives others: " + diff)
		}
		if cmp.Equal(first, draws(2, "a", "b", false)) {
			t.Error("another seed gives the same")
		}
		if cmp.Equal(first, draws(1, "b", "a", false)) {
			t.Error("the other direction gives the same")
		}
	})
}

func TestSetRefusesWhatIsNoFault(t *testing.T) {
	n := netfault.NewNetwork(1)
	err := n.Set("a", "b", fault.Fault{Kind: fault.Cut}, fault.Fault{Kind: fault.Rate})
	if _, ok := errors.AsType[*fault.InvalidError](err); !ok {
		t.Errorf("error is %v", err)
	}
	if err := n.Delay(t.Context(), "a", "b"); err != nil {
		t.Errorf("Set refused the faults, but changed the link: %v", err)
	}
}
