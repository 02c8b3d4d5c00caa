package pipeline_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/scope"
)

// losing is a target that loses the connection as its oplog is opened, so many times, or, as in an election, then names no primary.
type losing struct {
	pipeline.Cluster
	mongo.Pipeliner
	times  atomic.Int64
	elects bool
}

// Call implements mongo.Caller.
func (l *losing) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	reply, err := l.Cluster.Call(ctx, cmd)
	if l.elects && cmd.Body.Index(0).Key() == "hello" && err == nil && l.times.Add(-1) >= 0 {
		var hello bson.D
		if err = bson.Unmarshal(reply, &hello); err == nil {
			hello = slices.DeleteFunc(hello, func(e bson.E) bool { return e.Key == "primary" })
			reply, err = bson.Marshal(hello)
		}
	}
	return reply, err
}

func (l *losing) Member(host string) mongo.Caller { return losingMember{l.Cluster.Member(host), l} }

type losingMember struct {
	mongo.Caller
	of *losing
}

// Call implements mongo.Caller.
func (m losingMember) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if _, opens := rawbson.Lookup(cmd.Body, "tailable"); opens && cmd.DB == "local" && !m.of.elects && m.of.times.Add(-1) >= 0 {
		return nil, &mongo.LostError{Host: "target", Err: errors.New("reset")}
	}
	return m.Caller.Call(ctx, cmd)
}

// TestGuardLostAtStart: with guard.Stop, a link whose target is lost as the writes made while no process ran are examined
// writes nothing before they have been.
func TestGuardLostAtStart(t *testing.T) {
	t.Parallel()
	for name, elects := range map[string]bool{"connection": false, "primary": true} {
		t.Run(name, func(t *testing.T) { testGuardLostAtStart(t, &losing{elects: elects}) })
	}
}

func testGuardLostAtStart(t *testing.T, to *losing) {
	t.Parallel()
	sc := scope.Config{Include: []string{"shop"}}
	g := newGuarded(t, mongosim.Options{Members: 1, TTLInterval: -1}, sc, pipeline.Config{})
	must.Succeed(t, g.source.write(t.Context(), "shop", bson.D{{Key: "insert", Value: "a"}, docs(1)}))
	must.Succeed(t, g.caughtUp(g.l))
	g.l.drain(nil)
	must.Succeed(t, g.until("the end", func() bool { return isClosed(g.l.done) }))
	must.Succeed(t, g.target.write(t.Context(), "shop", bson.D{{Key: "insert", Value: "a"}, docs(2)}))
	must.Succeed(t, g.source.write(t.Context(), "shop", bson.D{{Key: "insert", Value: "a"}, docs(3)}))

	to.times.Store(12)
	g.asTarget = func(c pipeline.Cluster) pipeline.Cluster {
		to.Cluster, to.Pipeliner = c, c.(mongo.Pipeliner)
		return to
	}
	must.Succeed(t, g.world.start("a", pipeline.Config{Writers: 4, RetryMax: 100 * time.Millisecond, Guard: guard.Stop}, sc))
	l := g.links["a"]
	must.Succeed(t, g.until("the end", func() bool { return isClosed(l.done) }))
	if _, foreign := errors.AsType[*guard.ForeignError](l.err); !foreign || to.times.Load() >= 0 {
		t.Errorf("it ended with %v", l.err)
	}
	if n := must.Get(g.target.count(t.Context(), "shop.a"))(t); n != 2 {
		t.Errorf("%d documents in shop.a: it has written something itself", n)
	}
}
