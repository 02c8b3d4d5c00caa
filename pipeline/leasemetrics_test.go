package pipeline_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
)

// leaseMetrics are those of one process.
type leaseMetrics struct {
	leader, term, left, takeovers, fenced float64
	renewals                              uint64
}

func readLeaseMetrics(t *testing.T, reg *prometheus.Registry) (m leaseMetrics) {
	t.Helper()
	fields := map[string]*float64{"leader": &m.leader, "term": &m.term, "seconds_left": &m.left, "takeovers_total": &m.takeovers, "fenced_writes_total": &m.fenced}
	for _, family := range must.Get(reg.Gather())(t) {
		one := family.GetMetric()[0]
		for name, value := range fields {
			if family.GetName() == "replicator_lease_"+name {
				*value = one.GetGauge().GetValue() + one.GetCounter().GetValue()
				delete(fields, name)
			}
		}
		if family.GetName() == "replicator_lease_renewal_seconds" {
			m.renewals = one.GetHistogram().GetSampleCount()
		}
	}
	for name := range fields {
		t.Errorf("there is no metric replicator_lease_%s", name)
	}
	return m
}

// TestLeaseMetrics: two processes lead in turn. The metrics and the snapshot of each say what it
// does with the lease, how long it lasts, how often it took the lease over, and which of its
// writes were refused.
func TestLeaseMetrics(t *testing.T) {
	t.Parallel()
	w := newWorld(t, mongosim.Options{Members: 1, Seed: 1}, mongosim.Options{Members: 1, Seed: 2})
	first, second := prometheus.NewRegistry(), prometheus.NewRegistry()
	w.registry = first
	f := w.freezable("start a lease=4s\nawait running a\nsource insert shop.a 1..50\nawait caught-up a")
	w.registry = second
	w.play("start b lease=4s\nawait standby b")
	a, b := w.links["a"], w.links["b"]
	wants := func(when string, reg *prometheus.Registry, leads bool, term, takeovers int64) leaseMetrics {
		t.Helper()
		m := readLeaseMetrics(t, reg)
		if (m.leader == 1) != leads || (m.left > 0) != leads || m.left > (4*time.Second).Seconds() || int64(m.term) != term || int64(m.takeovers) != takeovers {
			t.Errorf("%s: %+v; want leader %t, term %d, takeovers %d", when, m, leads, term, takeovers)
		}
		return m
	}
	term := a.p.Snapshot().Term
	must.Succeed(t, w.untilOf(a, "a renewal", func() bool { return readLeaseMetrics(t, first).renewals > 0 }))
	if m := wants("a leads", first, true, term, 0); m.fenced != 0 {
		t.Errorf("a leads: %+v", m)
	}
	wants("b stands by", second, false, term, 0)

	f.freeze()
	w.play("source update shop.a 1..50\nawait caught-up b")
	if m := readLeaseMetrics(t, first); m.leader != 0 || m.left != 0 {
		t.Errorf("a is suspended, and b leads: %+v", m)
	}
	term = b.p.Snapshot().Term
	wants("b has taken over", second, true, term, 1)
	f.thaw()
	w.play("await standby a")
	if m := wants("a stands by", first, false, term, 0); m.fenced == 0 || a.p.Snapshot().Lease.Fenced == 0 {
		t.Errorf("no write of a was refused: %+v", m)
	}

	w.play("drain b\nawait running a\nsource update shop.a 1..20\nawait caught-up a\nequal a")
	wants("a leads again", first, true, a.p.Snapshot().Term, 1)
	if m := readLeaseMetrics(t, second); m.leader != 0 || m.left != 0 || m.fenced != 0 {
		t.Errorf("b has ended: %+v", m)
	}
	w.play("drain a")
}
