package e2e

import (
	"context"
	"errors"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/mirrored"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/pipeline/monitor"
)

// errEnd is the cause of what a test ends at once.
var errEnd = errors.New("ended by the test")

// mirror is a pipeline that is started again and again, each time as another
// process would be: with connections of its own.
type mirror struct {
	t              *testing.T
	cfg            pipeline.Config
	source, target string
	// wrap, if not nil, changes what a run talks to, and told is told of what it
	// announces.
	wrap func(source, target pipeline.Cluster) (pipeline.Cluster, pipeline.Cluster)
	told event.Observer

	// p is the run's; others than the owner of the mirror may ask it for a cut.
	p atomic.Pointer[pipeline.Pipeline]
	// stop ends the run at once, soft when it is drained; ended gets its error.
	stop, soft context.CancelCauseFunc
	ended      chan error
	conns      []*driver.Set
	running    sync.WaitGroup

	mu     sync.Mutex // guards the rest
	events []string   // the last ones
	failed int        // attempts of the run
}

// keptEvents is how many events are shown where a test fails.
const keptEvents = 60

func (m *mirror) observe(e event.Event) {
	m.told.Tell(e)
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, failed := e.(pipeline.AttemptEnded); failed {
		m.failed++
	}
	m.events = append(m.events, time.Now().Format("15:04:05.000 ")+e.Message()+" "+e.LogValue().String())
	if len(m.events) > 2*keptEvents {
		m.events = append(m.events[:0], m.events[len(m.events)-keptEvents:]...)
	}
}

// begin starts a run.
func (m *mirror) begin() {
	m.t.Helper()
	m.conns, m.failed = nil, 0
	for _, uri := range []string{m.source, m.target} {
		conn, err := mirrored.Connect(m.t.Context(), uri)
		if err != nil {
			m.t.Fatal(err)
		}
		m.conns = append(m.conns, conn)
	}
	cfg := m.cfg
	cfg.Observer = m.observe
	var source, target pipeline.Cluster = m.conns[0], m.conns[1]
	if m.wrap != nil {
		source, target = m.wrap(source, target)
	}
	p, err := pipeline.New(cfg, source, target)
	if err != nil {
		m.t.Fatal(err)
	}
	m.p.Store(p)
	m.ended = make(chan error, 1)
	ctx, stop := context.WithCancelCause(context.WithoutCancel(m.t.Context()))
	soft, drain := context.WithCancelCause(ctx)
	m.stop, m.soft = stop, drain
	ended := m.ended
	m.running.Go(func() { ended <- p.Run(ctx, soft) })
}

// end ends the run at once, if there is one: connections first, so that nobody can
// be told.
func (m *mirror) end(why error) {
	m.t.Helper()
	if m.stop == nil {
		return
	}
	early := m.over()
	for _, c := range m.conns {
		c.Close()
	}
	m.stop(why)
	m.running.Wait()
	m.soft(nil)
	m.stop = nil
	if err := <-m.ended; early {
		m.fail("the mirror had ended by itself: %v", err)
	}
}

// over reports whether the run has ended.
func (m *mirror) over() bool {
	select {
	case err := <-m.ended:
		m.ended <- err
		return true
	default:
		return false
	}
}

// patience is how many times its limit await waits in all.
const patience = 10

// advance is what changes as long as a link is not stuck, however slow the machine is.
type advance struct {
	applied       oplog.OpTime
	ops, commands int64
	phase         checkpoint.CopyPhase
	copied        int64 // documents and indexes
}

func advanceOf(s monitor.Snapshot) advance {
	a := advance{applied: s.Log.Applied, ops: s.Applier.Ops, commands: s.Applier.Commands}
	if s.Copy != nil {
		if a.phase = s.Copy.Phase; s.Copy.Progress != nil {
			a.copied = s.Copy.Progress.Docs + int64(s.Copy.Progress.Indexes)
		}
	}
	return a
}

// await waits until the run is where it is wanted. It gives up once nothing has advanced for
// so long: how long all of it takes depends on the machine.
func (m *mirror) await(limit time.Duration, what string, reached func(monitor.Snapshot) bool) {
	m.t.Helper()
	begun := time.Now()
	moved, last := begun, advance{}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		s := m.p.Load().Snapshot()
		if reached(s) {
			if took := time.Since(begun); took > limit {
				m.t.Logf("it took %s until %s", took.Round(time.Second), what)
			}
			return
		}
		if now := advanceOf(s); now != last {
			moved, last = time.Now(), now
		}
		if time.Since(moved) > limit || time.Since(begun) > patience*limit {
			m.waits()
			m.fatal("waited for %s until %s; the mirror is %s (%s), and has applied %s, nothing since %s; fetched %s, last error %s",
				time.Since(begun).Round(time.Second), what, s.State, s.Reason, s.Log.Applied, moved.Format(time.TimeOnly), s.Fetched, s.LastError)
		}
		select {
		case err := <-m.ended:
			m.ended <- err
			m.fatal("waited until %s; the mirror has ended: %v", what, err)
		case <-tick.C:
		}
	}
}

// drain waits until everything up to a time is applied, and ends the run in order. A run that stopped because an attempt failed (the
// servers of the embedded set have moods) and its entries are on disk is begun again, as docs/exit-codes.md says of code 10.
func (m *mirror) drain(limit time.Duration, until bson.Timestamp) {
	m.t.Helper()
	for runs := 1; !m.drainOnce(limit, until); runs++ {
		if runs == patience {
			m.fatal("%d runs in a row have stopped before they had drained", runs)
		}
		m.begin()
	}
}

// drainOnce reports whether the run has ended in order.
func (m *mirror) drainOnce(limit time.Duration, until bson.Timestamp) bool {
	m.t.Helper()
	m.await(limit, "everything is applied", func(s monitor.Snapshot) bool {
		return !s.Progress.Applied.TS.Before(until)
	})
	m.soft(errEnd)
	var err error
	select {
	case err = <-m.ended:
		m.ended <- nil
	case <-time.After(limit):
		m.waits()
		m.fatal("it does not drain")
	}
	m.mu.Lock()
	stopped := m.failed > 0 && errors.Is(err, failure.ErrStopped)
	m.mu.Unlock()
	if err != nil && !stopped {
		m.fatal("drain: %v", err)
	}
	s := m.p.Load().Snapshot()
	m.t.Logf("drained at %s; applied since the last start: %+v; %v", s.Progress.Applied, s.Applier, err)
	if s.Applier.Divergences != 0 || !stopped && s.Progress.Durable != s.Progress.Applied {
		m.fatal("%d divergences, durable %s of %s", s.Applier.Divergences, s.Progress.Durable, s.Progress.Applied)
	}
	m.stop(errEnd)
	m.running.Wait()
	for _, c := range m.conns {
		c.Close()
	}
	m.stop = nil
	return !stopped
}

func (m *mirror) show() {
	m.t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.events[max(0, len(m.events)-keptEvents):] {
		m.t.Log(e)
	}
}

func (m *mirror) fail(format string, args ...any) {
	m.t.Helper()
	m.show()
	m.t.Errorf(format, args...)
}

// waits logs what the goroutines of the stages wait for.
func (m *mirror) waits() {
	m.t.Helper()
	buf := make([]byte, 16<<20)
	for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if stage.MatchString(g) {
			m.t.Log(g)
		}
	}
}

// stage is in the stack of a goroutine of a stage.
var stage = regexp.MustCompile(`replicator/(applier|batcher|buffer|fetcher|initialsync|pipeline)[./]`)

func (m *mirror) fatal(format string, args ...any) {
	m.t.Helper()
	m.show()
	m.t.Fatalf(format, args...)
}
