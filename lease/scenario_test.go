package lease

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestScenarios: processes that want one lease, over a store whose clock differs from
// theirs. Lines are TIME WHO WHAT, where WHO is a process or the store:
//
//	a acquires, takes-over, stands-by, releases
//	a checks                  whether it may send a command
//	a hangs                   its commands do not arrive, and are not answered
//	a deaf                    they arrive, the replies do not
//	a loses-replies           every other update is executed, and its reply is lost
//	a recovers
//	store mark, rolls-back    to the mark, in an election
//	store clock=1h            an election; the new primary's clock is so far ahead
//	store ends                the scenario
//
// Every 100 ms it is verified that a process which uses the lease has it by the store's
// clock; the output says since when that is not so.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var out string
			synctest.Test(t, func(t *testing.T) { out = play(t, d) })
			return out
		})
	})
}

// stage is the processes of a scenario, and the store.
type stage struct {
	t       *testing.T
	store   *memory
	began   time.Time
	players map[string]*player
	group   sync.WaitGroup
	ctx     context.Context
	mark    bson.Raw

	mu  sync.Mutex // guards what follows
	out strings.Builder
	// fault says what happens to the commands of each process, strange which of them uses
	// a lease that is not its own.
	fault   map[string]string
	strange map[string]bool
}

// player is a process. It implements mongo.Caller.
type player struct {
	name   string
	stage  *stage
	keeper *Keeper
	watch  *Watch
	ctx    context.Context // of Lead
	end    func()
	lease  *Lease
	seen   int64 // the newest term
	lost   bool  // the reply to the last update; under stage.mu
}

func play(t *testing.T, d *datadriven.TestData) string {
	ctx, cancel := context.WithCancelCause(t.Context())
	s := &stage{t: t, store: newMemory(t), began: time.Now(), players: map[string]*player{}, ctx: ctx, fault: map[string]string{}, strange: map[string]bool{}}
	for _, arg := range d.CmdArgs {
		s.store.skew = must.Get(time.ParseDuration(arg.Vals[0]))(t)
	}
	for line := range strings.Lines(d.Input) {
		words := strings.Fields(line)
		until := must.Get(time.ParseDuration(words[0]))(t)
		for time.Since(s.began) < until {
			time.Sleep(min(100*time.Millisecond, until-time.Since(s.began)))
			synctest.Wait()
			s.look()
		}
		if words[1] == "store" {
			s.change(words[2])
		} else {
			s.player(words[1]).do(words[2])
		}
		synctest.Wait()
	}
	cancel(nil)
	for _, p := range s.players {
		p.end()
	}
	s.group.Wait()
	return s.out.String()
}

// say adds a line to the output. Times are those of the test, in seconds.
func (s *stage) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() == nil {
		fmt.Fprintf(&s.out, "%s %s\n", time.Since(s.began).Round(time.Second), fmt.Sprintf(format, args...))
	}
}

// look verifies that processes which use the lease have it.
func (s *stage) look() {
	now := s.store.record()
	for _, name := range []string{"a", "b", "c"} {
		p := s.players[name]
		if p == nil {
			continue
		}
		strange := !p.keeper.Until().IsZero() && p.keeper.Err() == nil && (now.Holder != name || now.Grant.Expires.Time().Before(s.store.now()))
		s.mu.Lock()
		was := s.strange[name]
		s.strange[name] = strange
		s.mu.Unlock()
		if strange && !was {
			s.say("%s uses a lease that is not its own by the store's clock", name)
		}
	}
}

// change changes the store.
func (s *stage) change(what string) {
	switch what {
	case "mark":
		s.mark = s.store.doc()
	case "rolls-back":
		s.store.elect(s.store.skew, s.mark)
	case "ends":
		r := s.store.record()
		s.say("the store: %s in term %d, released %t", r.Holder, r.Term, r.Grant.Released)
	default:
		by, ok := strings.CutPrefix(what, "clock=")
		if !ok {
			s.t.Fatalf("store %s", what)
		}
		s.store.elect(must.Get(time.ParseDuration(by))(s.t), nil)
	}
}

// player returns a process, which it starts at first.
func (s *stage) player(name string) *player {
	if p := s.players[name]; p != nil {
		return p
	}
	p := &player{name: name, stage: s, watch: NewWatch(name)}
	p.keeper = NewKeeper(KeeperConfig{Target: p, DB: "db", Collection: "c", ID: "a", Holder: name})
	s.group.Go(func() { p.keeper.Run(s.ctx) })
	p.lead()
	s.players[name] = p
	return p
}

func (p *player) lead() {
	ctx, end := p.keeper.Lead(p.stage.ctx)
	p.ctx, p.end = ctx, end
	p.stage.group.Go(func() {
		<-ctx.Done()
		if why := context.Cause(ctx); !errors.Is(why, context.Canceled) {
			p.stage.say("%s: its context ends: %s", p.name, reason(why))
		}
	})
}

// reason names an error.
func reason(err error) string {
	for _, known := range []error{ErrFenced, ErrHeld, ErrExpired, ErrRewound, ErrBehind, context.DeadlineExceeded} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	return err.Error()
}

// Call implements mongo.Caller.
func (p *player) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	p.stage.mu.Lock()
	fault := p.stage.fault[p.name]
	p.stage.mu.Unlock()
	if fault == "hangs" {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	reply, err := p.stage.store.Call(ctx, cmd)
	switch fault {
	case "deaf":
		<-ctx.Done()
		return nil, ctx.Err()
	case "loses-replies":
		if must.Get(cmd.Body.IndexErr(0))(p.stage.t).Key() != "update" {
			break
		}
		p.stage.mu.Lock()
		defer p.stage.mu.Unlock()
		if p.lost = !p.lost; p.lost {
			return nil, errLost
		}
	}
	return reply, err
}

// do does what a line says.
func (p *player) do(what string) {
	s := p.stage
	switch what {
	case "acquires":
		p.acquire(Claim{})
	case "takes-over":
		p.acquire(Claim{TakeOver: true})
	case "stands-by":
		s.group.Go(p.standBy)
	case "releases":
		p.end()
		must.Succeed(s.t, p.keeper.Release(s.ctx))
	case "checks":
		ctx, cancel := context.WithTimeout(s.ctx, time.Second)
		defer cancel()
		if err := p.lease.Check(ctx); err != nil {
			s.say("%s must not send: %s", p.name, reason(err))
		} else {
			s.say("%s may send", p.name)
		}
	case "hangs", "deaf", "loses-replies", "recovers":
		s.mu.Lock()
		defer s.mu.Unlock()
		s.fault[p.name] = what
	default:
		s.t.Fatalf("%s %s", p.name, what)
	}
}

func (p *player) acquire(claim Claim) {
	claim.TTL = DefaultTTL
	l, _, err := Acquire(p.ctx, Config{
		Target: p, Retry: mongo.Retry{Again: again}, DB: "db", Collection: "c", ID: "a", Holder: p.name, Keeper: p.keeper, Claim: claim,
	}, p.stage.store.record(), p.seen)
	if err != nil {
		p.stage.say("%s does not get it: %s", p.name, reason(err))
		return
	}
	p.lease, p.seen = l, l.Term()
	p.stage.say("%s has it, term %d", p.name, l.Term())
}

// standBy waits for the lease, and acquires it.
func (p *player) standBy() {
	p.end()
	p.lead()
	for p.stage.ctx.Err() == nil {
		found := p.stage.store.record()
		seen, err := p.watch.Look(p.stage.ctx, p, found)
		if err == nil {
			p.seen = max(p.seen, found.Term)
		}
		if err == nil && seen.Free {
			p.acquire(Claim{Unmoved: seen.Unmoved})
			return
		}
		select {
		case <-time.After(min(2*time.Second, max(seen.Wait, time.Millisecond))):
		case <-p.stage.ctx.Done():
		}
	}
}
