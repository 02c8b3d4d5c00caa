package cutover_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// outcome is the outcome of a command, and of the process that sends it.
type outcome int

const (
	answered outcome = iota
	diesBefore
	diesAfter
	lost    // executed, and not answered
	tooLate // not sent, as it should have been sent before
	delayed // not answered, and executed later, if at all
)

var errKilled = errors.New("killed")

// turn is a process before a command, or (may is nil) at its end.
type turn struct {
	p    *player
	cmd  mongo.Command
	side int
	may  chan outcome
	// wakes is the number of commands of all processes until which it is suspended.
	wakes int
}

// player is a process of which the test decides when each of its commands is sent.
type player struct {
	name string
	at   chan turn
	once sync.Once
	// killed is closed when it is killed.
	killed chan struct{}
	// seen is the number of commands of all processes when it had its last reply.
	seen int
	// id is that of the cutover that it works on.
	id string
}

func (p *player) kill() { p.once.Do(func() { close(p.killed) }) }

// played are the calls of a player to one of its sets.
type played struct {
	mongo.Caller
	p    *player
	side int
}

// Call implements mongo.Caller.
func (c played) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	w := turn{p: c.p, cmd: cmd, side: c.side, may: make(chan outcome, 1)}
	select {
	case c.p.at <- w:
	case <-c.p.killed:
		return nil, errKilled
	}
	var f outcome
	select {
	case f = <-w.may:
	case <-c.p.killed:
		return nil, errKilled
	}
	var reply bson.Raw
	var err error
	if f == answered || f == diesAfter || f == lost {
		reply, err = c.Caller.Call(ctx, cmd)
	}
	switch f {
	case diesBefore, diesAfter:
		c.p.kill()
		return nil, errKilled
	case tooLate:
		return nil, mongo.ErrTooLate
	case lost, delayed:
		return nil, &mongo.LostError{Host: "a set", Err: errCrashed}
	case answered:
	}
	return reply, err
}

const (
	// mostPlayers is how many processes work on a cutover, atOnce how many of them at a time.
	mostPlayers, atOnce = 8, 3
	// arrives is how long after its arrival the source executes a command that blocks writes at the latest.
	arrives = 700 * time.Millisecond
)

// stage is a link that several processes cut over, and do not, at the same time.
type stage struct {
	*moved
	rand *rand.Rand
	seed uint64

	at    chan turn
	held  []turn
	begun int
	live  int
	sent  int
	// blocks is when a command arrived that will block the source, zero if none does.
	blocks time.Time
	ended  bool
	// stray are the cutovers of which a process has blocked the source when they were being cancelled, or had been: if another one
	// has begun since, such a process says that the block may stay.
	stray []string
	fault string

	mu  sync.Mutex // guards out
	out []string
}

func (s *stage) log(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out = append(s.out, fmt.Sprintf(format, args...))
}

func (s *stage) fail(format string, args ...any) {
	if s.fault == "" {
		s.fault = fmt.Sprintf(format, args...)
	}
}

// begin begins a process. It waits at its first command.
func (s *stage) begin() {
	s.begun++
	s.live++
	p := &player{name: fmt.Sprintf("p%d", s.begun), at: s.at, killed: make(chan struct{})}
	cfg := s.config(played{s.target, p, 0}, played{s.source, p, 1})
	cfg.Process, cfg.Drain.By, cfg.Drain.Within = p.name, p.name, time.Minute
	cfg.Drain.OnWait = func(what string) { s.log("%s says: %s", p.name, what) }
	kind := []string{"run", "run", "resume", "cancel"}[s.rand.IntN(4)]
	if s.begun == 1 {
		kind = "run"
	}
	s.log("%s begins: %s", p.name, kind)
	go func() {
		var err error
		switch ctx := s.t.Context(); kind {
		case "run":
			_, err = cutover.Run(ctx, cfg, byBlock)
		case "resume":
			_, err = cutover.Resume(ctx, cfg)
		default:
			_, err = cutover.Cancel(ctx, cfg)
		}
		s.log("%s ends: %v", p.name, err)
		p.at <- turn{p: p}
	}()
	s.await(p)
}

// await waits until a process waits, or has ended.
func (s *stage) await(p *player) {
	for !slices.ContainsFunc(s.held, func(h turn) bool { return h.p == p }) {
		w := <-s.at
		if w.may == nil {
			s.live--
			s.held = slices.DeleteFunc(s.held, func(h turn) bool { return h.p == w.p })
		} else {
			if s.rand.IntN(20) == 0 {
				w.wakes = s.sent + s.rand.IntN(250)
			}
			s.held = append(s.held, w)
		}
		if w.may == nil && w.p == p {
			return
		}
	}
}

// isBlocking reports whether a command blocks the source.
func (w *turn) isBlocking() bool {
	return w.side == 1 && w.cmd.Body.Index(0).Key() == "setUserWriteBlockMode" && w.cmd.Body.Lookup("global").Boolean()
}

// release has one process send its command.
func (s *stage) release() {
	i := s.rand.IntN(len(s.held))
	for range 2 * len(s.held) {
		if s.held[i].wakes <= s.sent {
			break
		}
		i = s.rand.IntN(len(s.held))
	}
	w := s.held[i]
	s.held = slices.Delete(s.held, i, i+1)
	s.notes(&w)
	f := answered
	switch draw := s.rand.IntN(300); {
	case !w.cmd.SendBy.IsZero() && w.p.seen != s.sent: // each command of another process takes long
		f = tooLate
	case draw == 0:
		f = diesBefore
	case draw == 1:
		f = diesAfter
	case draw == 2:
		f = lost
	case w.isBlocking() && s.blocks.IsZero() && draw < 150:
		f, s.blocks = delayed, time.Now()
	}
	s.sent++
	w.p.seen = s.sent
	s.log("%s: %d: side %d: %.300s %.300s", w.p.name, f, w.side, w.cmd.Body, fmt.Sprint(w.cmd.Docs))
	if f == diesBefore || f == diesAfter {
		s.held = slices.DeleteFunc(s.held, func(h turn) bool { return h.p == w.p })
	}
	w.may <- f
	s.await(w.p)
}

// notes notes on which cutover a process works, and whether it blocks the source during another one.
func (s *stage) notes(w *turn) {
	if first := w.cmd.Body.Index(0); first.Key() == "update" && first.Value().StringValue() == "cutovers" {
		w.p.id = w.cmd.Docs[0].Lookup("u", "id").StringValue()
	}
	if w.isBlocking() {
		r := must.Get(s.records.Get(s.t.Context(), s.link))(s.t)
		if r.ID != w.p.id || r.State != record.Running {
			s.stray = append(s.stray, w.p.id)
		}
	}
}

// arrive executes, or forgets, a command that blocks the source.
func (s *stage) arrive() {
	switch {
	case s.blocks.IsZero():
	case time.Since(s.blocks) > arrives:
		s.blocks = time.Time{}
	case s.rand.IntN(4) == 0:
		s.log("the source is blocked late")
		s.blocks = time.Time{}
		s.source.mu.Lock()
		s.source.blocked = true
		s.source.mu.Unlock()
	}
}

// check checks what must always be so: the link ends only while nothing can be written to the source.
func (s *stage) check() {
	if over := must.Get(s.store.Over(s.t.Context()))(s.t); over != nil && !s.ended {
		if s.ended = true; !s.source.isBlocked() {
			s.fail("the link ends while the source takes writes")
		}
	}
	if s.ended && !s.source.isBlocked() {
		s.fail("the source of a link that has ended takes writes")
	}
}

// play has the processes work side by side: one command at a time, in a random order.
func (s *stage) play() {
	for s.begun < mostPlayers || s.live > 0 {
		if s.fault != "" {
			for _, w := range s.held {
				w.p.kill()
			}
			for s.live > 0 {
				if w := <-s.at; w.may == nil {
					s.live--
				} else {
					w.p.kill()
				}
			}
			return
		}
		if s.begun < mostPlayers && s.live < atOnce && (s.live == 0 || s.rand.IntN(25) == 0 || !slices.ContainsFunc(s.held, func(h turn) bool { return h.wakes <= s.sent })) {
			s.begin()
		} else {
			s.release()
		}
		s.arrive()
		s.check()
	}
}

// settle ends what the processes have left, and checks it.
func (s *stage) settle() {
	ctx := s.t.Context()
	for !s.blocks.IsZero() {
		s.arrive()
	}
	r := must.Get(s.records.Get(ctx, s.link))(s.t)
	s.log("left: %+v, blocked %t", r, s.source.isBlocked())
	if r != nil && slices.ContainsFunc(s.stray, func(id string) bool { return id != r.ID }) {
		return
	}
	s.isKnown(fmt.Sprintf("seed %d", s.seed))
	var err error
	switch {
	case r == nil:
		if s.source.isBlocked() {
			s.fail("nothing was begun, and the source is blocked")
		}
		return
	case r.State == record.Cancelled && s.source.isBlocked():
		if _, err = cutover.Cancel(ctx, s.whole()); err != nil {
			s.fail("cancelled again: %v", err)
			return
		}
	case r.Open() && (s.rand.IntN(2) == 0 || r.State == record.Cancelling):
		_, err = cutover.Cancel(ctx, s.whole())
		if !errors.Is(err, cutover.ErrCommitted) {
			break
		}
		fallthrough
	case r.Open():
		_, err = cutover.Resume(ctx, s.whole())
	}
	if err != nil {
		s.fail("settled: %v", err)
		return
	}
	if r = must.Get(s.records.Get(ctx, s.link))(s.t); r.State == record.Done {
		s.isDone(fmt.Sprintf("seed %d", s.seed))
	} else {
		s.isBack(fmt.Sprintf("seed %d", s.seed))
	}
}

// TestInterleaved: processes that begin, resume and cancel a cutover at the same time, without the lock, and die, leave nothing behind
// without a word, and no link that has ended while its source takes writes. Each command is sent in a random order. CUTOVER_INTERLEAVED
// is how many times, CUTOVER_FIRST the first seed.
func TestInterleaved(t *testing.T) {
	t.Parallel()
	target := open(t, "7.0")
	seeds, _ := strconv.Atoi(os.Getenv("CUTOVER_INTERLEAVED"))
	var all sync.WaitGroup
	few := make(chan struct{}, 8)
	first, _ := strconv.ParseUint(os.Getenv("CUTOVER_FIRST"), 10, 64)
	for seed := first; seed < first+uint64(cmp.Or(seeds, 30)); seed++ {
		few <- struct{}{}
		s := &stage{moved: newMoved(t, target, fmt.Sprintf("i%d", seed)), rand: rand.New(rand.NewPCG(1, seed)), seed: seed, at: make(chan turn)}
		all.Go(func() {
			defer func() { <-few }()
			if s.play(); s.fault == "" {
				s.settle()
			}
			if s.fault != "" {
				t.Errorf("seed %d: %s\n%s", seed, s.fault, strings.Join(s.out, "\n"))
			}
		})
	}
	all.Wait()
}
