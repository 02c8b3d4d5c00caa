package pipeline

import (
	"context"
	"log/slog"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
)

const (
	// waitsAfter is how long a command waits before that is announced.
	waitsAfter = 5 * time.Second
	// waitsEvery is how often waits are looked for.
	waitsEvery = time.Second
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

// waitsLoop announces commands that wait for long, until ctx is done.
func (p *Pipeline) waitsLoop(ctx context.Context) {
	tick := time.NewTicker(waitsEvery)
	defer tick.Stop()
	told := map[waitKey]mongo.Wait{}
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		now := map[waitKey]mongo.Wait{}
		for _, w := range p.waiting() {
			key := waitKey{w.Side, w.Host, w.Command, w.Namespace, w.Since}
			now[key] = w
			if _, known := told[key]; !known {
				p.cfg.Observer.Log(slog.LevelWarn, "waiting", slog.String(keyReason, w.String()))
			}
		}
		for key, w := range told {
			if _, still := now[key]; !still {
				p.cfg.Observer.Log(slog.LevelInfo, "waiting no more", slog.String(keyReason, w.String()),
					slog.Duration(keyFor, time.Since(w.Since).Round(time.Millisecond)))
			}
		}
		told = now
	}
}

// waiting returns the commands that have waited for long, the longest first.
func (p *Pipeline) waiting() []mongo.Wait {
	all := p.waits.Longer(waitsAfter)
	for i := range all {
		w := &all[i]
		side := p.direct.target
		if w.Side == sideSource {
			side = p.direct.source
		}
		set, ok := side.(interface {
			Primary() (string, bson.ObjectID)
		})
		if !ok || w.Host != "" || w.Noted || side.Direct() {
			continue
		}
		if host, _ := set.Primary(); host == "" {
			w.For = "no primary of it is known"
		}
	}
	return all
}

// waitKey identifies a wait.
type waitKey struct {
	side, host, command, namespace string
	since                          time.Time
}
