package model

import "testing"

// instances are those that are explored in full. Together they have everything that can
// happen; one with all of it would have too many states.
var instances = map[string]config{
	"clocks":              {processes: 2, messages: 2, terms: 2, renewals: 2, ttl: 2, slow: 1, stalls: true},
	"elections":           {processes: 2, messages: 2, terms: 3, entries: 1, ttl: 1, elections: 1},
	"forgotten sessions":  {processes: 2, messages: 2, terms: 3, entries: 1, ttl: 1, forgets: 1},
	"entries":             {processes: 2, messages: 2, terms: 2, entries: 2, ttl: 1, forgets: 1, ends: true},
	"both, with attempts": {processes: 2, messages: 2, terms: 2, entries: 1, ttl: 1, elections: 1, forgets: 1, ends: true},
	"takeover":            {processes: 2, messages: 2, terms: 2, entries: 1, ttl: 1, takeovers: 1, forgets: 1},
	"three":               {processes: 3, messages: 2, terms: 2, entries: 1, ttl: 1},
	// Without the term in the documents, but with the sessions' numbers, which are not
	// forgotten: either is enough.
	"numbers alone": {processes: 2, messages: 2, terms: 2, entries: 2, ttl: 1, ends: true, off: fence},
}

// alive are those whose every state is also verified for liveness, which takes more
// memory.
var alive = map[string]config{
	"elections": {processes: 2, messages: 1, terms: 3, ttl: 1, elections: 1},
	"skews":     {processes: 2, messages: 1, terms: 3, ttl: 2, elections: 1, skews: true},
	"releases":  {processes: 2, messages: 2, terms: 3, ttl: 1, ends: true, entries: 1},
}

// TestHolds: no sequence of steps leads to a state that must not be.
func TestHolds(t *testing.T) {
	t.Parallel()
	for name, c := range instances {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := c.explore(false)
			if t.Logf("%d states", len(e.states)); e.bad >= 0 {
				t.Errorf("%s is broken, after %s", e.broken, e.trace(e.bad))
			}
		})
	}
}

// TestAlive: from every state each process can get to lead by itself.
func TestAlive(t *testing.T) {
	t.Parallel()
	for name, c := range alive {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := c.explore(true)
			if t.Logf("%d states, %d steps", len(e.states), len(e.edges)); e.bad >= 0 {
				t.Fatalf("%s is broken, after %s", e.broken, e.trace(e.bad))
			}
			if at, p := e.stuck(); at >= 0 {
				t.Errorf("process %d is stuck, after %s", p, e.trace(at))
			}
		})
	}
}

// TestEachProtection: with one protection switched off, the checker finds how an invariant
// is broken in an instance that holds with it.
func TestEachProtection(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		off  protection
		in   config
		want invariant
	}{
		{fence, instances["forgotten sessions"], order},
		{margin, instances["clocks"], oneHolder},
		{numberedRenewals, instances["clocks"], oneHolder},
		{compareAndSet, instances["both, with attempts"], terms},
		{majority, instances["elections"], terms},
		{position, instances["entries"], once},
		{above, alive["elections"], live},
		{watch, alive["skews"], live},
	} {
		t.Run(string(tt.off), func(t *testing.T) {
			t.Parallel()
			tt.in.off = tt.off
			e := tt.in.explore(tt.want == live)
			got, at := e.broken, e.bad
			if tt.want == live && e.bad < 0 {
				if at, _ = e.stuck(); at >= 0 {
					got = live
				}
			}
			if got != tt.want {
				t.Fatalf("%d states: %q is broken, want %q", len(e.states), got, tt.want)
			}
			t.Logf("%s is broken, after %s", got, e.trace(at))
		})
	}
}
