package locks_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"go.uber.org/goleak"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease/locks"
	"github.com/oplogrep/replicator/lease/locks/lockstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A scenario has a line per command: its time, the process, and what it does.
//
//	lock NAME [WAIT] [again]   take the lock; again: take it up again from a process of the same first letter
//	unlock NAME
//	check NAME                 what Err says
//	freeze, thaw               its pinger stands still, or runs again
//	close                      shut down
//
// The process "store" is the store: skew DURATION, elect DURATION (the new primary's clock),
// down CALL, lost CALL (executed, without a reply), hang CALL, up, show NAME, pings PROCESS.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var s string
			synctest.Test(t, func(t *testing.T) { s = play(t, d.Input) })
			return s
		})
	})
}

// scene is one scenario.
type scene struct {
	t     *testing.T
	start time.Time
	store *lockstest.Memory
	all   map[string]*actor

	running sync.WaitGroup
	mu      sync.Mutex // guards lines
	lines   []string
}

// actor is a process.
type actor struct {
	name   string
	m      *locks.Manager
	mu     sync.Mutex // guards held
	held   map[string]*locks.Lock
	freeze func()
}

func play(t *testing.T, input string) string {
	s := &scene{t: t, start: time.Now(), store: lockstest.NewMemory(), all: map[string]*actor{}}
	ctx, cancel := context.WithCancelCause(t.Context())
	for line := range strings.Lines(input) {
		words := strings.Fields(line)
		at := must.Get(time.ParseDuration(words[0]))(t)
		time.Sleep(at - time.Since(s.start))
		synctest.Wait()
		if words[1] == "store" {
			s.onStore(words[2], words[3:])
		} else {
			s.actor(ctx, words[1]).do(ctx, s, words[2], words[3:])
		}
		synctest.Wait()
	}
	cancel(errors.New("the end"))
	s.store.Fail(nil)
	s.running.Wait()
	return strings.Join(s.lines, "\n") + "\n"
}

func (s *scene) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// The waits have a jitter.
	unit := time.Second
	if time.Since(s.start) > time.Minute {
		unit = time.Minute
	}
	s.lines = append(s.lines, fmt.Sprintf("%s %s", time.Since(s.start).Truncate(unit), fmt.Sprintf(format, args...)))
	// Locks that are lost together have no order.
	if n := len(s.lines); n > 1 && strings.Contains(s.lines[n-1], " lost ") && strings.Contains(s.lines[n-2], " lost ") {
		slices.Sort(s.lines[n-2:])
	}
}

func (s *scene) actor(ctx context.Context, name string) *actor {
	a := s.all[name]
	if a == nil {
		a = &actor{name: name, held: map[string]*locks.Lock{}, m: locks.NewManager(locks.Config{Store: s.store, Process: name})}
		s.all[name] = a
		a.thaw(ctx, s)
	}
	return a
}

func (a *actor) thaw(ctx context.Context, s *scene) {
	ctx, cancel := context.WithCancelCause(ctx)
	a.freeze = func() { cancel(nil) }
	s.running.Go(func() { a.m.Run(ctx) })
}

func (a *actor) do(ctx context.Context, s *scene, verb string, args []string) {
	switch verb {
	case "lock":
		s.running.Go(func() { a.lock(ctx, s, args) })
	case "unlock":
		a.lockOf(args[0]).Unlock(ctx)
	case "check":
		s.note("%s %s: %v", a.name, args[0], a.lockOf(args[0]).Err())
	case "freeze":
		a.freeze()
	case "thaw":
		a.thaw(ctx, s)
	case "close":
		a.freeze()
		err := a.m.Close(ctx)
		synctest.Wait()
		s.note("%s closed: %v", a.name, err)
	default:
		s.t.Fatalf("unknown: %s", verb)
	}
}

func (a *actor) lockOf(name string) *locks.Lock {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.held[name]
}

func (a *actor) lock(ctx context.Context, s *scene, args []string) {
	w := locks.Wants{Who: "test"}
	for _, arg := range args[1:] {
		if arg == "again" {
			w.Again = func(r locks.Record) bool { return r.Process[0] == a.name[0] }
		} else {
			w.Wait = must.Get(time.ParseDuration(arg))(s.t)
		}
	}
	l, err := a.m.Lock(ctx, args[0], "to test", w)
	if context.Cause(ctx) != nil {
		return
	}
	if err != nil {
		s.note("%s: %v", a.name, err)
		return
	}
	a.mu.Lock()
	a.held[args[0]] = l
	a.mu.Unlock()
	s.note("%s has %s in term %d", a.name, args[0], l.Record().Term)
	held := l.Context()
	s.running.Go(func() {
		<-held.Done()
		if ctx.Err() == nil {
			s.note("%s lost %s: %v", a.name, args[0], context.Cause(held))
		}
	})
}

var errReply = fmt.Errorf("the reply was lost: %w", locks.ErrUnavailable)

func (s *scene) onStore(verb string, args []string) {
	fail := func(fault func(ctx context.Context) (bool, error)) {
		s.store.Fail(func(ctx context.Context, call string) (bool, error) {
			if call == args[0] || args[0] == "all" {
				return fault(ctx)
			}
			return true, nil
		})
	}
	switch verb {
	case "skew":
		s.store.Skew(must.Get(time.ParseDuration(args[0]))(s.t))
	case "elect":
		s.store.Elect(must.Get(time.ParseDuration(args[0]))(s.t))
	case "down":
		fail(func(context.Context) (bool, error) { return false, errReply })
	case "lost":
		fail(func(context.Context) (bool, error) { return true, errReply })
	case "hang":
		fail(func(ctx context.Context) (bool, error) {
			<-ctx.Done()
			return false, fmt.Errorf("%w: %w", locks.ErrUnavailable, ctx.Err())
		})
	case "up":
		s.store.Fail(nil)
	case "show":
		r := s.store.Record(args[0])
		s.note("%s: state %d, process %s, term %d", r.Name, r.State, r.Process, r.Term)
	case "pings":
		s.note("%s has a ping: %t", args[0], s.store.HasPing(args[0]))
	default:
		s.t.Fatalf("unknown: %s", verb)
	}
}
