package cutover_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/race"
)

// TestCancelSuspended: a process that is suspended at any command of a cancellation changes nothing, once it continues, of
// the cutover that another process has meanwhile cancelled, begun again and carried out: the old source stays blocked.
func TestCancelSuspended(t *testing.T) {
	t.Parallel()
	target := open(t, "7.0")
	for _, converted := range []bool{false, true} {
		whole, count := newMoved(t, target, fmt.Sprintf("whole-%t", converted)), newSuspension(0, never, false)
		whole.half(converted)
		must.Get(cutover.Cancel(t.Context(), whole.config(suspended{target, 0, count}, suspended{whole.source, 1, count})))(t)
		for side, n := range count.n {
			for at := 1; at <= n; at++ {
				if !race.One(at) {
					continue
				}
				for _, executed := range []bool{false, true} {
					what := fmt.Sprintf("%t-%d-%d-%t", converted, side, at, executed)
					m := newMoved(t, target, "dr-"+what)
					m.half(converted)
					m.outstrip(newSuspension(side, at, executed), "converted-side-command-executed "+what)
				}
			}
		}
	}
}

// half begins a cutover, and interrupts it once writes to the source are blocked, or options converted.
func (m *moved) half(converted bool) {
	m.t.Helper()
	cfg := m.whole()
	ctx, stop := context.WithCancelCause(m.t.Context())
	defer stop(nil)
	if cfg.Armed = func(context.Context) { stop(errBroken) }; !converted {
		cfg.Told = func(taken record.Taken) {
			if taken.Step == record.Drain {
				stop(errBroken)
			}
		}
	}
	if _, err := cutover.Run(ctx, cfg, byBlock); err == nil {
		m.t.Fatal("it goes on although it was interrupted")
	}
}

// outstrip has another process cancel the cutover, and carry out the next one, while the process that cancels it is suspended.
func (m *moved) outstrip(p *suspension, what string) {
	m.t.Helper()
	first := m.suspend(p, what, func(cfg *cutover.Config) (*record.Record, error) { return cutover.Cancel(m.t.Context(), cfg) })
	if first == nil {
		return
	}
	other := m.whole()
	other.Process, other.Drain.By = "another's", "another"
	if r := must.Get(m.records.Get(m.t.Context(), m.link))(m.t); r.Open() {
		must.Get(cutover.Cancel(m.t.Context(), other))(m.t)
	}
	other = m.whole()
	other.Process, other.Drain.By = "another's", "another"
	must.Get(cutover.Run(m.t.Context(), other, byBlock))(m.t)
	close(p.goOn)
	err := <-first
	if r := must.Get(m.records.Get(m.t.Context(), m.link))(m.t); r.State != record.Done || !m.source.isBlocked() {
		m.t.Errorf("%s: the first process: %v; the source of a link that has ended is blocked: %t; the record is %s", what, err, m.source.isBlocked(), r)
	}
	m.isDone(what)
}
