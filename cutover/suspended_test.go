package cutover_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/race"
)

// suspension is the command at which a process is suspended: nothing it sends arrives, and it reads no reply, until it
// continues. That is so much later that no command is sent by the time that was set before.
type suspension struct {
	side, at int
	executed bool
	reached  chan struct{}
	goOn     chan struct{}

	mu   sync.Mutex // guards the rest
	n    [2]int
	woke time.Time
}

// wait waits until the process continues.
func (s *suspension) wait() {
	<-s.goOn
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.woke.IsZero() {
		s.woke = time.Now()
	}
}

// isLate reports whether a command has to be sent by a time that was set before the process continued.
func (s *suspension) isLate(cmd mongo.Command) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.woke.IsZero() && !cmd.SendBy.IsZero() && cmd.SendBy.Before(s.woke.Add(time.Second)) // each has a second
}

func newSuspension(side, at int, executed bool) *suspension {
	return &suspension{side: side, at: at, executed: executed, reached: make(chan struct{}), goOn: make(chan struct{})}
}

// suspended are the calls of a process to one of its sets.
type suspended struct {
	mongo.Caller
	side int
	in   *suspension
}

// Call implements mongo.Caller.
func (s suspended) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	p := s.in
	p.mu.Lock()
	p.n[s.side]++
	here := s.side == p.side && p.n[s.side] == p.at
	p.mu.Unlock()
	switch {
	case here && p.executed:
		reply, err := s.Caller.Call(ctx, cmd)
		close(p.reached)
		p.wait()
		return reply, err
	case here:
		close(p.reached)
	}
	select {
	case <-p.reached:
		p.wait()
	default:
	}
	if p.isLate(cmd) {
		return nil, mongo.ErrTooLate
	}
	return s.Caller.Call(ctx, cmd)
}

// TestSuspended: a process that is suspended at any command changes nothing, once it continues, of a cutover that another
// process has meanwhile resumed, cancelled, or cancelled and begun again; or it says that a command of it was late.
func TestSuspended(t *testing.T) {
	t.Parallel()
	target := open(t, "7.0")
	whole, count := newMoved(t, target, "whole"), newSuspension(0, never, false)
	must.Get(cutover.Run(t.Context(), whole.config(suspended{target, 0, count}, suspended{whole.source, 1, count}), byBlock))(t)
	var all sync.WaitGroup
	few := make(chan struct{}, 8)
	for side, n := range count.n {
		for at := 1; at <= n; at++ {
			if !race.One(at) {
				continue
			}
			for i, how := range []string{"resumed", "cancelled", "begun again"} {
				m, p := newMoved(t, target, fmt.Sprintf("dr%d-%d-%d", side, at, i)), newSuspension(side, at, (at+i)%2 == 0)
				few <- struct{}{}
				all.Go(func() {
					defer func() { <-few }()
					m.overtake(p, fmt.Sprintf("side %d, command %d, executed %t, %s", side, at, p.executed, how), how)
				})
			}
		}
	}
	all.Wait()
}

// suspend begins what a process does, and returns once it is suspended: with its error to come, or nil if it ended before, as
// the keeper of the lease has sent less.
func (m *moved) suspend(p *suspension, what string, do func(*cutover.Config) (*record.Record, error)) <-chan error {
	m.t.Helper()
	first := make(chan error, 1)
	go func() {
		_, err := do(m.config(suspended{m.target, 0, p}, suspended{m.source, 1, p}))
		first <- err
	}()
	select {
	case <-p.reached:
		return first
	case err := <-first:
		if err != nil {
			m.t.Errorf("%s: %v", what, err)
		}
		return nil
	}
}

// overtake has another process carry on while the first one is suspended.
func (m *moved) overtake(p *suspension, what, how string) {
	m.t.Helper()
	first := m.suspend(p, what, func(cfg *cutover.Config) (*record.Record, error) { return cutover.Run(m.t.Context(), cfg, byBlock) })
	if first == nil {
		return
	}
	if err := m.carryOn(how); err != nil && !errors.Is(err, cutover.ErrNone) && !errors.Is(err, cutover.ErrCommitted) {
		m.t.Errorf("%s: the other process: %v", what, err)
	}
	close(p.goOn)
	err := <-first
	if errors.As(err, new(*ddl.LateError)) {
		return // it was on its way
	}
	switch r := must.Get(m.records.Get(m.t.Context(), m.link))(m.t); {
	case r != nil && r.State == record.Done:
		m.isDone(what)
	case r != nil && r.State == record.Cancelled && err != nil:
		m.isBack(what)
	case r.Open() && m.carryOn("resumed") == nil:
		m.isDone(what) // the end had been reached before the other process came
	default:
		m.t.Errorf("%s: the first process: %v; the record is %+v", what, err, r)
	}
}

// carryOn is what another process does.
func (m *moved) carryOn(how string) error {
	ctx := m.t.Context()
	other := func() *cutover.Config {
		cfg := m.whole()
		cfg.Process, cfg.Drain.By = "another's", "another"
		return cfg
	}
	r, err := m.records.Get(ctx, m.link)
	switch {
	case err != nil:
		return err
	case r == nil:
		_, err = cutover.Run(ctx, other(), byBlock)
	case how == "resumed":
		_, err = cutover.Resume(ctx, other())
	default:
		if _, err = cutover.Cancel(ctx, other()); err == nil && how == "begun again" {
			_, err = cutover.Run(ctx, other(), byBlock)
		}
	}
	return err
}
