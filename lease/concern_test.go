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
	// committed is when the secondaries have what waits for them first.
	committed time.Time
	// unanswered are the updates, by their number from 0, that are not answered.
	unanswered map[int]bool
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
	if (!concern || w != 1) && d.committed.IsZero() {
		d.committed = time.Now().Add(d.lag)
	}
	wait := time.Until(d.committed)
	silent := d.unanswered[len(d.sent)-1]
	d.mu.Unlock()
	if silent {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if err != nil || concern && w == 1 {
		return reply, err
	}
	if limit, ok := cmd.Body.Lookup("writeConcern", "wtimeout").AsInt64OK(); ok && time.Duration(limit)*time.Millisecond < wait {
		wait = time.Duration(limit) * time.Millisecond
		reply = must.Get(bson.Marshal(bson.D{{Key: "n", Value: 1}, {Key: "ok", Value: 1}, {Key: "writeConcernError", Value: bson.D{
			{Key: "code", Value: 64}, {Key: "errmsg", Value: "waiting for replication timed out"}, {Key: "errInfo", Value: bson.D{{Key: "wtimeout", Value: true}}},
		}}}))(d.t)
	}
	select {
	case <-time.After(wait):
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

// TestLaggingSecondaries: the secondaries lag. A lease is renewed, and can be got, however long
// that takes.
func TestLaggingSecondaries(t *testing.T) {
	for _, lag := range []time.Duration{4 * time.Second, 9 * time.Second, 20 * time.Minute} {
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
