package repl

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

func TestTwoInitiatesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, nil)
		c.delay = 10 * time.Millisecond
		first := c.node(c.hosts[0])
		var calls sync.WaitGroup
		var faults [3]error
		for i := range faults {
			calls.Go(func() { faults[i] = first.Initiate(c.ctx, configDoc(1, 2, nil, nil)) })
		}
		calls.Wait()
		refused := 0
		for _, err := range faults {
			if err != nil {
				refused++
				wantCode(t, err, servererr.AlreadyInitialized)
			}
		}
		if refused != len(faults)-1 {
			t.Errorf("%d of %d calls are refused", refused, len(faults))
		}
		c.settled()
		notes := 0
		_ = first.store.Read(func(r *storage.Reader) error {
			for e := range r.Oplog().From(bson.Timestamp{}) {
				if msg, ok := e.Raw.Lookup("o", "msg").StringValueOK(); ok && msg == noopInitiate {
					notes++
				}
			}
			return nil
		})
		if notes != 1 {
			t.Errorf("the set is initiated %d times in the oplog", notes)
		}
	})
}

// TestInitiateAfterARefusal begins again after a call that has failed half-way.
func TestInitiateAfterARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		wantCode(t, c.node(c.hosts[0]).Initiate(c.ctx, configDoc(1, 2, nil, nil)), servererr.NodeNotFound)
		c.initiate(nil, nil)
	})
}

func TestReconfigThatNobodyWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		p := c.initiate(nil, nil)
		other := c.hosts[:0:0]
		for _, h := range c.hosts {
			if h != p.host {
				other = append(other, h)
			}
		}
		// A configuration that only the primary has.
		c.split([]string{p.host}, other)
		p.Node.mu.Lock()
		p.install(p.conf.with(p.conf.version+1, p.conf.term, p.cfg.Dialect.Version))
		p.Node.mu.Unlock()
		version := int32(p.View().ConfigVersion + 1)

		late, done := context.WithTimeout(c.ctx, time.Second)
		defer done()
		wantCode(t, p.Reconfig(late, configDoc(version, 3, nil, nil), false), servererr.CurrentConfigNotCommittedYet)
		gone, leave := context.WithCancelCause(c.ctx)
		why := errors.New("the client has gone")
		time.AfterFunc(time.Second, func() { leave(why) })
		if err := p.Reconfig(gone, configDoc(version, 3, nil, nil), false); !errors.Is(err, why) {
			t.Errorf("error %v, want %v", err, why)
		}
	})
}

// preparing is an applier that has a prepared transaction.
type preparing struct {
	applier
	unit *storage.Unit
}

func (p preparing) Prepared() []opwrite.Prepared {
	return []opwrite.Prepared{{Unit: p.unit, At: oplog.OpTime{TS: bson.Timestamp{T: 1, I: 1}}}}
}

// TestStepUpThatFailsLetsGo makes the configuration impossible to store when a
// primary begins: prepared transactions must not block it.
func TestStepUpThatFailsLetsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		tn := c.initiate(nil, nil)
		store := c.kill(tn.host)
		var prepared, obstacle *storage.Unit
		err := store.Write(func(w *storage.Writer) error {
			prepared, obstacle = w.Begin(bson.Timestamp{}), w.Begin(bson.Timestamp{})
			prepared.Keep()
			obstacle.Keep()
			coll, _ := obstacle.View().Collection(localNamespace(collConfig))
			for rec := range coll.Natural(0) {
				return obstacle.Delete(coll.UUID, rec.ID)
			}
			return errors.New("no configuration is stored")
		})
		if err != nil {
			t.Fatal(err)
		}
		tn = c.make(tn.host, store)
		open := tn.newApplier
		tn.newApplier = func(s *storage.Store) (applier, error) {
			a, err := open(s)
			return preparing{a, prepared}, err
		}
		ctx, stop := context.WithCancelCause(c.ctx)
		go func() {
			defer close(tn.done)
			_ = tn.Run(ctx)
		}()
		c.until("the member gives up", func() bool { return tn.Fatal() != "" })
		stop(nil)
		<-tn.done
		if prepared.Open() {
			t.Error("the prepared transaction is still open")
		}
		if len(tn.hooks) != 0 && tn.hooks[0] != "down" {
			t.Errorf("hooks %q", tn.hooks)
		}
		_ = store.Write(func(*storage.Writer) error { obstacle.Abort(); return nil })
	})
}
