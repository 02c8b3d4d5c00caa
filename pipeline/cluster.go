package pipeline

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/mongo"
)

// The sides of a link, as waits name them.
const (
	sideSource = "source"
	sideTarget = "target"
)

// observed is a Cluster whose commands waits tracks.
type observed struct {
	Cluster
	primary mongo.Caller
	waits   *mongo.Waits
	side    string
}

// pipelined is an observed whose Cluster is a mongo.Pipeliner.
type pipelined struct {
	observed
	mongo.Pipeliner
}

func observe(c Cluster, waits *mongo.Waits, side string) Cluster {
	o := observed{c, waits.Watch(c, side, ""), waits, side}
	if p, ok := o.primary.(mongo.Pipeliner); ok {
		return pipelined{o, p}
	}
	return o
}

// Call implements mongo.Caller.
func (o observed) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	return o.primary.Call(ctx, cmd)
}

// Call implements mongo.Caller.
func (p pipelined) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	return p.observed.Call(ctx, cmd)
}

// Member implements Cluster.
func (o observed) Member(host string) mongo.Caller {
	return o.waits.Watch(o.Cluster.Member(host), o.side, host)
}

// gated is a Cluster that announces the commands that change collections: see guard.Gate.
type gated struct {
	Cluster
	gate *guard.Gate
}

// gatedPipeliner is a gated whose Cluster is a mongo.Pipeliner.
type gatedPipeliner struct {
	gated
	mongo.Pipeliner
}

func announce(c Cluster, db, link string) Cluster {
	g := gated{c, &guard.Gate{Target: c, DB: db, Link: link}}
	if p, ok := c.(mongo.Pipeliner); ok {
		return gatedPipeliner{g, p}
	}
	return g
}

// Call implements mongo.Caller.
func (g gated) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	return g.gate.Call(ctx, cmd)
}

// Call implements mongo.Caller.
func (g gatedPipeliner) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	return g.gated.Call(ctx, cmd)
}
