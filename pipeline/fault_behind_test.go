package pipeline_test

import (
	"context"
	"os"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/request"
)

// gates is a target that executes certain commands, as "create db", only once their gate is open.
type gates struct {
	pipeline.Cluster
	shut map[string]*gate
}

// gate has reached, which is closed once a command waits for open.
type gate struct {
	reached, open chan struct{}
	once          sync.Once
}

func newGates(names ...string) *gates {
	g := &gates{shut: map[string]*gate{}}
	for _, name := range names {
		g.shut[name] = &gate{reached: make(chan struct{}), open: make(chan struct{})}
	}
	return g
}

// around makes c wait at the gates.
func (g *gates) around(c pipeline.Cluster) pipeline.Cluster {
	g.Cluster = c
	return g
}

// Call implements mongo.Caller.
func (g *gates) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	first := cmd.Body.Index(0)
	name, _ := first.Value().StringValueOK()
	if to := g.shut[first.Key()+" "+name]; to != nil {
		to.once.Do(func() { close(to.reached) })
		select {
		case <-to.open:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return g.Cluster.Call(ctx, cmd)
}

// CallAll implements mongo.Pipeliner: one after the other.
func (g *gates) CallAll(ctx context.Context, cmds []mongo.Command, each func(i int, reply bson.Raw) error) error {
	for i := range cmds {
		reply, err := g.Call(ctx, cmds[i])
		if err == nil {
			err = each(i, reply)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// TestResyncBehind: the link is far behind the source, and applies what it has on disk. A
// collection that is copied again does not wait until the link has left the disk, which one
// that cannot keep up never does.
func TestResyncBehind(t *testing.T) {
	if os.Getenv("REPLICATOR_BEHIND") == "" {
		t.Skip("it moves two hundred megabytes three times: make soak, or REPLICATOR_BEHIND=1")
	}
	t.Parallel()
	o := newOverflowing(t, 512)
	o.links["a"].stop(failure.ErrStopped)
	o.awaitEnd(o.links["a"])
	at := newGates("create late1", "create late2", "create late3")
	o.asTarget = at.around
	must.Succeed(t, o.start("a"))
	o.play("source insert db.r 1..50\nawait caught-up a")
	// The attempt that has begun to copy stands at the first gate, the next one at the second.
	o.hold("again: everything copied") // a part that is consistent would be merged
	o.play("resync db.r\nawait held")
	o.forget()
	create := func(name string) {
		must.Succeed(t, o.source.write(t.Context(), "db", bson.D{{Key: "create", Value: name}}))
	}
	create("late1")
	<-at.shut["create late1"].reached
	o.write(60)
	o.stored("a")
	create("late2")
	o.write(60)
	create("late3")
	o.stored("a")
	close(at.shut["create late1"].open)
	<-at.shut["create late2"].reached

	o.release()
	l := o.links["a"]
	if err := o.untilOf(l, "the attempt to be ended", func() bool { return o.told(endsForPart) }); err != nil {
		o.fail("behind", "", err)
	}
	close(at.shut["create late2"].open)
	if err := o.untilOf(l, "the part to be merged", func() bool { return o.requestOfR().State == request.Joining }); err != nil {
		o.fail("behind", "", err)
	}
	if l.p.Snapshot().Spool == nil {
		t.Error("the link reads from memory")
	}
	close(at.shut["create late3"].open)
	if err := o.untilOf(l, "the part to be merged", func() bool { return o.requestOfR().State == request.Done }); err != nil {
		o.fail("behind", "", err)
	}
	o.same("a")
}

// forget forgets the events up to now.
func (w *world) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = nil
}
