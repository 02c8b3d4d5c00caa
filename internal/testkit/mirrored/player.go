package mirrored

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/pipeline/reading"
	"github.com/oplogrep/replicator/scope"
)

// player plays a source while it is copied: a few entries now and then, just before a command
// of the copy, or at one of its events. The caller waits until they are played.
type player struct {
	src *Source
	rng *rand.Rand
	// olderUpdates is true if updates are logged in the older form, which reorders
	// fields that a copy already has, as on the source's own members.
	olderUpdates bool

	mu sync.Mutex // guards the rest, rng and the playing
	// copying tells that not everything is copied.
	copying bool
	// often is the chance that something is played before a command, chunk the
	// largest part of the remaining entries played at once.
	often, chunk float64
	// meanwhile entries were played while it copied, in so many moments.
	meanwhile, moments int
	err                error
}

func newPlayer(src *Source, seed uint64) *player {
	p := &player{src: src, rng: rand.New(rand.NewPCG(seed, uint64(src.Entries())))} //nolint:gosec // a sample needs no secrets
	p.often = pick(p.rng, 0.02, 0.1, 0.3)
	p.chunk = pick(p.rng, 0.02, 0.1, 0.5)
	return p
}

func pick[T any](rng *rand.Rand, of ...T) T { return of[rng.IntN(len(of))] }

// begin plays the entries that must be there before the link is made.
func (p *player) begin() (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.copying = true
	n := p.rng.IntN(p.src.Entries() + 1)
	return n, p.src.Play(n)
}

// settings chooses how it is copied and applied.
func (p *player) settings() (pipeline.Config, error) {
	everything, err := scope.New(scope.Config{})
	return pipeline.Config{
		Link: linkName, Scope: everything,
		Writers:       pick(p.rng, 1, 3, 16),
		BatchOps:      pick(p.rng, 1, 7, 5000),
		FlushDocs:     pick(p.rng, 1, 3, 40, 0),
		Relaxed:       p.rng.IntN(2) == 0,
		UniqueIndexes: pick(p.rng, ddl.Serialized, ddl.Relaxed),
		Copy: initialsync.Options{
			Wanted:       true,
			Workers:      pick(p.rng, 1, 2, 8),
			IndexWorkers: pick(p.rng, 1, 2),
			IndexesFirst: p.rng.IntN(3) == 0,
			RangeBytes:   pick[int64](p.rng, 200, 2000, 50_000, 0),
		},
	}, err
}

// said is what settings has chosen, in a line.
func said(c *pipeline.Config) string {
	v := Variant{Writers: c.Writers, BatchOps: c.BatchOps, Relaxed: c.Relaxed, Unique: c.UniqueIndexes}
	return fmt.Sprintf("%s flush=%d workers=%d indexes=%d first=%t range=%d", v, c.FlushDocs,
		c.Copy.Workers, c.Copy.IndexWorkers, c.Copy.IndexesFirst, c.Copy.RangeBytes)
}

// told plays at an event of the copy.
func (p *player) told(e event.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := e.(type) {
	case initialsync.StepChanged:
		if e.Step == initialsync.StepDone && p.src.Moving {
			// Before its end the recording is of no moment, so that no client could be
			// consistent with it any sooner.
			p.play(p.src.Entries())
		}
	case initialsync.CopyEnded:
		p.copying = false
	case reading.Earlier:
		// Before it begins, a copy asks which transactions are open.
		p.fail(fmt.Errorf("a transaction of %s began before what a copy reads, at %s", e.For, e.From))
	case monitor.Consistent:
		p.some(p.chunk)
		p.play(p.src.Entries())
		return
	}
	if p.rng.Float64() < 0.5 {
		p.some(p.chunk)
	}
}

// asked plays before a command.
func (p *player) asked() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rng.Float64() < p.often {
		p.some(p.chunk)
	}
}

// some plays up to a part of the remaining entries, at least one.
func (p *player) some(part float64) {
	most := int(part * float64(p.src.Entries()))
	p.play(1 + p.rng.IntN(most+1))
}

func (p *player) play(n int) {
	n = min(n, p.src.Entries())
	if n == 0 || p.err != nil {
		return
	}
	if p.copying {
		p.meanwhile += n
		p.moments++
	}
	p.fail(p.src.Play(n))
}

func (p *player) fail(err error) {
	if p.err == nil {
		p.err = err
	}
}

func (p *player) failed() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// tapped is a cluster with a callback before each command on data.
type tapped struct {
	pipeline.Cluster
	before func()
}

// Member implements pipeline.Cluster.
func (c tapped) Member(host string) mongo.Caller {
	return tappedCaller{c.Cluster.Member(host), c.before}
}

// Call implements mongo.Caller.
func (c tapped) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	return tappedCaller{c.Cluster, c.before}.Call(ctx, cmd)
}

type tappedCaller struct {
	mongo.Caller
	before func()
}

// Call implements mongo.Caller.
func (c tappedCaller) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if cmd.DB != "local" && cmd.DB != "admin" {
		c.before()
	}
	return c.Caller.Call(ctx, cmd)
}
