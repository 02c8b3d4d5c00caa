package cutover_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/lease"
)

// crash is a set of which a process is cut off, at the command of that number: its reply is lost, or
// it is not sent; and from then on, or that once.
type crash struct {
	mongo.Caller
	at         int
	sent, once bool
	mu         sync.Mutex
	n          int // guarded by mu
}

var (
	errCrashed = errors.New("crashed")
	gone       = servererr.New(servererr.Unauthorized, "gone")
)

// Call implements mongo.Caller.
func (c *crash) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	c.mu.Lock()
	c.n++
	n := c.n
	c.mu.Unlock()
	if n > c.at && !c.once {
		return nil, gone // at once, where no answer would be waited for
	}
	if n == c.at && !c.sent {
		return nil, errCrashed
	}
	reply, err := c.Caller.Call(ctx, cmd)
	switch {
	case n == c.at && c.once:
		return nil, &mongo.LostError{Host: "a set", Err: errCrashed}
	case n == c.at:
		return nil, errCrashed
	}
	return reply, err
}

// never is a number that no command has.
const never = 1 << 30

// crashed is a cutover that was interrupted.
type crashed struct {
	*moved
	what   string
	cancel bool
	target *crash
	source *crash
	err    error
}

// TestCrashes: a process that is cut off from either side at any command, before or after it was
// executed, or that loses one reply, leaves nothing behind without a word; it never says that the
// link has ended if it has not. Whatever it leaves can be resumed or, before the commit point, be
// cancelled: then all is as it was. CUTOVER_CRASHES=all tries each command in each of the three ways.
func TestCrashes(t *testing.T) {
	t.Parallel()
	target := open(t, "7.0")
	whole := newMoved(t, target, "whole")
	count := [2]*crash{{Caller: target, at: never}, {Caller: whole.source, at: never}}
	must.Get(cutover.Run(t.Context(), whole.config(count[0], count[1]), byBlock))(t)
	whole.isDone("whole")
	var tries []*crashed
	for side, c := range count {
		for n := 1; n <= c.n; n++ {
			for i, how := range [][2]bool{{}, {true}, {true, true}} { // sent, once
				if os.Getenv("CUTOVER_CRASHES") != "all" && n%3 != i {
					continue
				}
				m := newMoved(t, target, fmt.Sprintf("dr%d-%d-%d", side, n, i))
				one := &crashed{
					moved: m, what: fmt.Sprintf("side %d, command %d, kind %d", side, n, i), cancel: (n+i)%2 == 0,
					target: &crash{Caller: target, at: never}, source: &crash{Caller: m.source, at: never},
				}
				at := []*crash{one.target, one.source}[side]
				at.at, at.sent, at.once = n, how[0], how[1]
				tries = append(tries, one)
			}
		}
	}
	outcomes := map[string]int{}
	var all sync.WaitGroup
	var mu sync.Mutex // guards outcomes
	few := make(chan struct{}, 16)
	for _, one := range tries {
		few <- struct{}{}
		all.Go(func() { // most of the time is spent waiting for replies that are lost
			defer func() { <-few }()
			_, one.err = cutover.Run(t.Context(), one.config(one.target, one.source), byBlock)
			how := one.settle(t)
			mu.Lock()
			defer mu.Unlock()
			outcomes[how]++
		})
	}
	all.Wait()
	t.Logf("%d crashes: %v", len(tries), outcomes)
	for _, want := range []string{"done", "resumed", "cancelled", "too late", "begun anew"} {
		if outcomes[want] == 0 {
			t.Errorf("none is %s: %v", want, outcomes)
		}
	}
}

// settle ends a cutover that was interrupted, and says how.
func (c *crashed) settle(t *testing.T) string {
	t.Helper()
	c.isKnown(c.what)
	if c.err == nil {
		c.isDone(c.what)
		return "done"
	}
	if c.source.once || c.target.once {
		t.Errorf("%s: one reply was lost: %v", c.what, c.err)
	}
	if r := must.Get(c.records.Get(t.Context(), c.link))(t); !r.Open() {
		if r == nil {
			if _, err := cutover.Run(t.Context(), c.whole(), byBlock); err != nil {
				t.Errorf("%s: begun anew: %v", c.what, err)
			}
		} else if over := must.Get(c.store.Over(t.Context()))(t); over == nil {
			t.Errorf("%s: done, and the link goes on", c.what)
		}
		c.isDone(c.what)
		return "begun anew"
	}
	if c.cancel {
		err := insist(func() error { _, err := cutover.Cancel(t.Context(), c.whole()); return err })
		if err == nil {
			c.isBack(c.what)
			return "cancelled"
		}
		if over := must.Get(c.store.Over(t.Context()))(t); !errors.Is(err, cutover.ErrCommitted) || over == nil {
			t.Errorf("%s: cancelled: %v, and the end is %+v", c.what, err, over)
		}
	}
	if err := insist(func() error { _, err := cutover.Resume(t.Context(), c.whole()); return err }); err != nil {
		t.Errorf("%s: resumed: %v", c.what, err)
	}
	c.isDone(c.what)
	if c.cancel {
		return "too late"
	}
	return "resumed"
}

// insist does something again whose process has lost its lease, which a busy machine may do to it.
func insist(do func() error) (err error) {
	for range 10 {
		if err = do(); !lease.Lost(err) {
			break
		}
	}
	return err
}

// TestCancelCrashes: a cancellation that is cut off at any command can be gone on with.
func TestCancelCrashes(t *testing.T) {
	t.Parallel()
	target := open(t, "7.0")
	half := func(name string) *moved {
		m := newMoved(t, target, name)
		cfg := m.whole()
		ctx, stop := context.WithCancelCause(t.Context())
		cfg.Armed = func(context.Context) { stop(errBroken) }
		if _, err := cutover.Run(ctx, cfg, byBlock); err == nil {
			t.Fatal("it goes on although it was interrupted")
		}
		if got := m.indexes(); got != "_id_, at_1, email_1 unique, late_1 unique" {
			t.Fatalf("converted: %s", got)
		}
		return m
	}
	whole := half("whole")
	c := &crash{Caller: target, at: never}
	must.Get(cutover.Cancel(t.Context(), whole.config(c, whole.source)))(t)
	whole.isBack("whole")
	for n := 1; n <= c.n; n++ {
		if !race.One(n) {
			continue
		}
		for _, sent := range []bool{false, true} {
			m := half(fmt.Sprintf("dr%d-%v", n, sent))
			_, _ = cutover.Cancel(t.Context(), m.config(&crash{Caller: target, at: n, sent: sent}, m.source))
			m.isKnown(m.link)
			if r := must.Get(m.records.Get(t.Context(), m.link))(t); r.Open() {
				do := cutover.Cancel
				if r.State == record.Cancelling && n%2 == 0 {
					do = cutover.Resume
				}
				if _, err := do(t.Context(), m.whole()); err != nil {
					t.Errorf("%s: %v", m.link, err)
				}
			}
			m.isBack(m.link)
		}
	}
}

// TestResumeTooLate: a cancellation that is cut off before it has found that the link has ended leaves a cutover that one Resume completes.
func TestResumeTooLate(t *testing.T) {
	t.Parallel()
	target := open(t, "7.0")
	for _, sent := range []bool{false, true} {
		tried, whole := 0, false
		for at := 1; !whole && at < 50; at++ {
			m := newMoved(t, target, fmt.Sprintf("late%d-%t", at, sent))
			cfg := m.whole()
			ctx, stop := context.WithCancelCause(t.Context())
			cfg.Told = func(step record.Taken) {
				if step.Step == record.Commit && !step.Ended.IsZero() {
					stop(errBroken)
				}
			}
			if _, err := cutover.Run(ctx, cfg, byBlock); err == nil {
				t.Fatal("it is done although the process ended at the commit")
			}
			if over := must.Get(m.store.Over(t.Context()))(t); over == nil {
				t.Fatal("the link has not ended")
			}
			_, err := cutover.Cancel(t.Context(), m.config(&crash{Caller: target, at: at, sent: sent}, m.source))
			r := must.Get(m.records.Get(t.Context(), m.link))(t)
			if r.State == record.Cancelling {
				tried++
			}
			whole = errors.Is(err, cutover.ErrCommitted) && r.State == record.Running && tried > 0
			if r, err := cutover.Resume(t.Context(), m.whole()); err != nil || r.State != record.Done {
				t.Errorf("command %d, sent %t: resumed: %v, %s", at, sent, err, r)
			}
			m.isDone(m.link)
		}
		if !whole {
			t.Errorf("sent %t: no cancellation was cut off before, and none was whole", sent)
		}
	}
}
