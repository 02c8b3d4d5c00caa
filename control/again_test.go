package control

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/request"
)

// calm is a target that shows no sign of pressure.
type calm struct{}

// Call implements mongo.Caller.
func (calm) Call(context.Context, mongo.Command) (bson.Raw, error) {
	return bson.Marshal(bson.D{{Key: "ok", Value: 1}})
}

// TestAdaptiveAgain: the limits shrink while the target is slow, also in a process that leads again.
func TestAdaptiveAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		c := New(Config{Requests: d, Target: calm{}})
		d.ask(request.Throttle, `{"applyOpsPerSecond": 1600, "adaptive": true}`)
		for n := range 2 {
			end := lead(c, term(n+1))
			pass(2 * lookEvery)
			h := c.Brake().For(t.Context())
			flushes := func(took time.Duration) {
				for range 60 {
					for range 10 {
						h.Took(took, 1000, func() int64 { return 1 << 20 })
					}
					pass(time.Second)
				}
			}
			flushes(10 * time.Millisecond)
			if f := c.Status().Factor; f != 1 {
				t.Errorf("leadership %d: %v of the limit while the target is as fast as usual", n, f)
			}
			if n == 1 {
				flushes(time.Second)
				if f := c.Status().Factor; f == 1 {
					t.Error("the whole limit while the target is slow")
				}
			}
			h.Release()
			end()
		}
	})
}

// stepped is a lock that counts its critical sections, and calls after with the number of each one that has ended.
type stepped struct {
	sync.Mutex
	ended int
	after func(n int)
}

// Unlock implements sync.Locker.
func (s *stepped) Unlock() {
	s.ended++
	n := s.ended
	s.Mutex.Unlock()
	s.after(n)
}

// TestSettledHolds: once a pause is settled nothing goes on before it ends, wherever in Hold or Enter it finds a worker.
func TestSettledHolds(t *testing.T) {
	t.Parallel()
	errStill := errors.New("the link is paused still")
	for name, goOn := range map[string]func(*Brake, *Handle, context.Context) error{
		"Hold": func(_ *Brake, h *Handle, ctx context.Context) error { return h.Hold(ctx) },
		"Enter": func(b *Brake, h *Handle, ctx context.Context) error {
			h.Release()
			_, err := b.Enter(ctx)
			return err
		},
	} {
		for at := 1; ; at++ { // the pause begins after that critical section
			b := newBrake()
			b.setPaused(false)
			h := b.For(t.Context())
			ctx, stop := context.WithCancelCause(t.Context())
			paused, settled := false, false
			b.mu = &stepped{after: func(n int) {
				if n == at {
					paused = true
					b.setPaused(true)
					settled = b.settled()
					stop(errStill)
				}
			}}
			err := goOn(b, h, ctx)
			stop(nil)
			switch {
			case paused && settled && err == nil:
				t.Errorf("%s goes on in a pause that was settled when it began, after critical section %d", name, at)
			case paused && !settled && err != nil:
				t.Errorf("%s stops for a pause (%v) and counts as going on when it began, after critical section %d", name, err, at)
			}
			if !paused {
				if at < 3 {
					t.Errorf("%s has %d critical sections", name, at-1)
				}
				break
			}
		}
	}
}

// TestOpenAmongMany: a request that is open is followed, and shown, however many newer ones there are.
func TestOpenAmongMany(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		p := newDesked(d, 1)
		becomes := d.becoming(t)
		d.ask(request.Again, `{"namespace": "d.c"}`)
		pass(listEvery)
		becomes(0, "working d.c waits to be copied")
		for range shown + 10 {
			d.ask(request.Resume, `{}`)
		}
		pass(listEvery)
		if s := p.Status(); len(s.Records) != shown+1 || s.Records[shown].ID != "0" || !s.Records[shown].Open() {
			t.Errorf("%d records are shown, the last one %+v", len(s.Records), s.Records[len(s.Records)-1])
		}
		d.set(func() { d.all.Resync[0].State = request.Done })
		becomes(0, "done 1 of 1 collections are the same as the source's again")
		pass(listEvery)
		if s := p.Status(); len(s.Records) != shown {
			t.Errorf("%d records are shown", len(s.Records))
		}
		p.end()
	})
}
