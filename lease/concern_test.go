package lease

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// defaulting is the memory of a set of 5.0 or later: an update without a write concern, as
// one with majority, is acknowledged when the secondaries have it, lag later. It records
// the updates, and holds back those that hold says.
type defaulting struct {
	*memory
	lag time.Duration

	mu      sync.Mutex
	sent    []mongo.Command
	lacking int
}

func (d *defaulting) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	name := must.Get(cmd.Body.IndexErr(0))(d.t).Key()
	reply, err := d.memory.Call(ctx, cmd)
	if name != "update" {
		return reply, err
	}
	w, concern := cmd.Body.Lookup("writeConcern", "w").AsInt64OK()
	_, majority := cmd.Body.Lookup("writeConcern", "w").StringValueOK()
	d.mu.Lock()
	d.sent = append(d.sent, cmd)
	if !concern && !majority {
		d.lacking++
	}
	d.mu.Unlock()
	if err != nil || concern && w == 1 {
		return reply, err
	}
	select {
	case <-time.After(d.lag):
		return reply, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// processOn is memory.process with another store for all that it sends.
func (d *defaulting) processOn(name string) *process {
	p := d.process(name)
	p.keeper.cfg.Target = d
	return p
}

func (d *defaulting) acquire(p *process) error {
	l, _, err := Acquire(p.ctx, Config{
		Target: d, Retry: mongo.Retry{Again: again}, DB: "db", Collection: "c", ID: "a", Holder: p.name, Keeper: p.keeper, Claim: Claim{TTL: DefaultTTL},
	}, d.record(), 0)
	if err == nil {
		p.lease = l
	}
	return err
}

// TestConcerns: no statement of a lease leaves its write concern to the default of the set.
func TestConcerns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &defaulting{memory: newMemory(t)}
		p := d.processOn("a")
		must.Succeed(t, d.acquire(p))
		time.Sleep(5 * time.Second)
		p.end()
		must.Succeed(t, p.keeper.Release(t.Context()))
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.lacking > 0 {
			t.Errorf("%d of %d updates have no write concern", d.lacking, len(d.sent))
		}
	})
}

// TestLaggingSecondaries: the secondaries lag. A lease is renewed, and can be got.
func TestLaggingSecondaries(t *testing.T) {
	for _, lag := range []time.Duration{4 * time.Second, 9 * time.Second} {
		t.Run(lag.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &defaulting{memory: newMemory(t), lag: lag}
				p := d.processOn("a")
				must.Succeed(t, d.acquire(p))
				time.Sleep(time.Minute)
				if err := context.Cause(p.ctx); err != nil {
					t.Errorf("it is lost: %v", err)
				}
			})
		})
	}
}
