package control

import (
	"context"
	"runtime"
	"sync/atomic"
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

// TestSettledHolds: once a pause is settled nothing goes on before it ends, however short the time before it was.
func TestSettledHolds(t *testing.T) {
	t.Parallel()
	b := newBrake()
	h := b.For(t.Context())
	var going atomic.Bool
	ctx, stop := context.WithCancelCause(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer h.Release()
		for h.Hold(ctx) == nil {
			going.Store(true)
			runtime.Gosched()
			going.Store(false)
		}
	}()
	for n, began := 0, time.Now(); time.Since(began) < time.Second && !t.Failed(); n++ {
		b.setPaused(false)
		for range n % 64 {
			runtime.Gosched()
		}
		b.setPaused(true)
		for !b.settled() {
			runtime.Gosched()
		}
		for range 50 {
			runtime.Gosched()
			if going.Load() {
				t.Errorf("something goes on in pause %d", n)
				break
			}
		}
	}
	stop(nil)
	<-ended
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
