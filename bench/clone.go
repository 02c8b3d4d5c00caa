package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/bench/ends"
	"github.com/oplogrep/replicator/bench/meter"
	"github.com/oplogrep/replicator/bench/plain"
	"github.com/oplogrep/replicator/bench/result"
	"github.com/oplogrep/replicator/bench/workload"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync/clone"
	"github.com/oplogrep/replicator/initialsync/progress"
	"github.com/oplogrep/replicator/oplog"
)

// copying is a source with the documents of a workload, and a target.
type copying struct {
	cfg            Config
	source, target *place
	// from and to are clients of theirs.
	from, to *plain.Client
	// collections are without their documents, which are at the source. docs and
	// bytes are their numbers per collection.
	collections []workload.Collection
	docs, bytes []int64
}

// Clone measures a copy of the workload's documents, and the same by as many bare
// loops of the driver, in turns.
func Clone(ctx context.Context, c Config) (ours, bare *result.Run, err error) {
	c.setDefaults()
	if err := errors.Join(c.validate(), setsOnly(c)); err != nil {
		return nil, nil, fmt.Errorf("measure a copy: %w", err)
	}
	p := &copying{cfg: c}
	defer p.close(ctx)
	defer func() {
		err = errors.Join(err, p.tidy(ctx))
	}()
	if err := p.open(ctx); err != nil {
		return nil, nil, fmt.Errorf("measure a copy: %w", err)
	}
	ours, bare = p.newRun("a link's copy"), p.newRun("bare loops")
	bare.Notes = []string{fmt.Sprintf("%d loops of the plain driver that read a cursor and insert what it gives", c.CloneWorkers)}
	var our, their rounds
	for i := range c.Rounds {
		say(c, "copy %d of %d: %d documents", i+1, c.Rounds, ours.Ops)
		usage, err := p.ours(ctx, c.CloneWorkers, c.profiles(i))
		if err != nil {
			return nil, nil, fmt.Errorf("measure a copy, round %d: %w", i+1, err)
		}
		our = append(our, usage)
		if usage, err = p.bare(ctx, c.CloneWorkers); err != nil {
			return nil, nil, fmt.Errorf("measure bare loops, round %d: %w", i+1, err)
		}
		their = append(their, usage)
	}
	our.into(ours)
	their.into(bare)
	return ours, bare, nil
}

func (p *copying) newRun(who string) *result.Run {
	run := newRun("clone", p.cfg)
	delete(run.Settings, "batch")
	delete(run.Settings, "flush")
	run.Name += "/" + who
	run.Settings["writers"] = float64(p.cfg.CloneWorkers)
	run.Source, run.Target = p.source.Is, p.target.Is
	run.Ops, run.Bytes = sum(p.docs), sum(p.bytes)
	return run
}

// open makes both ends, and fills the source.
func (p *copying) open(ctx context.Context) error {
	var err error
	if p.collections, err = collectionsOf(p.cfg.Workload); err != nil {
		return err
	}
	for i := range p.collections {
		docs := p.collections[i].Documents
		p.docs = append(p.docs, int64(len(docs)))
		bytes := 0
		for _, doc := range docs {
			bytes += len(doc)
		}
		p.bytes = append(p.bytes, int64(bytes))
	}
	if sum(p.docs) == 0 {
		return &ConfigError{errors.New("the workload begins with no documents")}
	}
	if p.source, p.target, err = openBoth(ctx, p.cfg, 1, p.collections); err != nil {
		return err
	}
	if err := p.source.prepare(ctx, p.cfg.Overwrite, p.collections); err != nil {
		return err
	}
	for i := range p.collections { // a copy has the index on _id alone; others are built after it
		p.collections[i].Documents, p.collections[i].Indexes = nil, nil
	}
	if p.from, err = plain.Connect(ctx, p.source.URI); err != nil {
		return err
	}
	p.to, err = plain.Connect(ctx, p.target.URI)
	return err
}

// ours copies as a link does, from the division into ranges to the record that the
// copy is complete.
func (p *copying) ours(ctx context.Context, workers int, profiled bool) (usage meter.Usage, err error) {
	link, err := p.link(ctx)
	if err != nil {
		return usage, err
	}
	list, err := p.listed(ctx)
	if err != nil {
		return usage, err
	}
	if err := p.target.prepare(ctx, p.cfg.Overwrite, p.collections); err != nil {
		return usage, err
	}
	cloner, err := clone.New(clone.Config{
		Source: p.source.Set, Target: p.target.Set,
		// Small enough ranges for all workers to have some.
		RangeBytes: max(1, sum(p.bytes)/int64(workers)),
	})
	if err != nil {
		return usage, err
	}
	if err := link.AddCollections(ctx, list); err != nil {
		return usage, err
	}
	usage, err = measure(p.cfg, profiled, func() error { return copyAll(ctx, cloner, link, list, workers) })
	if err != nil {
		return usage, err
	}
	return usage, p.check(ctx)
}

// copyAll copies collections, by so many workers.
func copyAll(ctx context.Context, cloner *clone.Cloner, link *progress.Link, list []progress.Collection, workers int) error {
	type todo struct {
		coll *progress.Collection
		part progress.Range
	}
	var all []todo
	for i := range list {
		coll := &list[i]
		ranges, err := cloner.Split(ctx, coll, coll.NS, clone.Since{})
		if err != nil {
			return err
		}
		if err := link.Lane(0).SaveCollection(ctx, coll, ranges); err != nil {
			return err
		}
		for _, r := range ranges {
			all = append(all, todo{coll, r})
		}
	}
	next := make(chan todo, len(all))
	for _, t := range all {
		next <- t
	}
	close(next)
	g, within := errgroup.WithContext(ctx)
	for i := range workers {
		g.Go(func() error {
			for t := range next {
				if _, err := cloner.Copy(within, link.Lane(i), t.coll, t.coll.NS, t.part); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for i := range list {
		list[i].State = progress.Filled
		if err := link.Lane(0).SaveCollection(ctx, &list[i], nil); err != nil {
			return err
		}
	}
	return nil
}

// link makes a link whose copy has started, and acquires its lease.
func (p *copying) link(ctx context.Context) (*progress.Link, error) {
	store, err := checkpoint.New(checkpoint.Config{Target: p.target.Set, DB: ends.MetaDB, Link: linkName("clone", 0)})
	if err != nil {
		return nil, err
	}
	at, host := ends.First, "bench:1" // the copy is never resumed
	err = store.Create(ctx, checkpoint.State{
		Source: checkpoint.Source{
			SetName: "bench", RBID: 1, Host: host,
			ReplicaSetID: bson.RawValue{Type: bson.TypeObjectID, Value: make([]byte, 12)},
		},
		Writers: max(p.cfg.Writers, p.cfg.CloneWorkers), Fingerprint: "bench",
		Applied: at, AppliedWall: int64(at.TS.T) * 1000, FetchFrom: at,
		Copy: &checkpoint.Copy{
			Number: 1, Phase: checkpoint.Copying, Host: host, RBID: 1, FetchFrom: at, Begin: at,
			Started: time.Unix(int64(at.TS.T), 0),
		},
	})
	if err != nil {
		return nil, err
	}
	link, err := store.Acquire(ctx, 0)
	if err != nil {
		return nil, err
	}
	return progress.Of(link), nil
}

// listed returns the collections as a copy lists them.
func (p *copying) listed(ctx context.Context) ([]progress.Collection, error) {
	list := make([]progress.Collection, 0, len(p.collections))
	for i := range p.collections {
		ns := p.collections[i].NS
		reply, err := ask(ctx, p.source.Set, ns.DB(), bson.D{
			{Key: "listCollections", Value: 1}, {Key: "filter", Value: bson.D{{Key: "name", Value: ns.Collection()}}},
		})
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", ns, err)
		}
		doc, ok := reply.Lookup("cursor", "firstBatch", "0").DocumentOK()
		if !ok {
			return nil, fmt.Errorf("list %s: it is not there", ns)
		}
		_, id, ok := doc.Lookup("info", "uuid").BinaryOK()
		if !ok || len(id) != len(oplog.UUID{}) {
			return nil, fmt.Errorf("list %s: it has no UUID", ns)
		}
		options, _ := doc.Lookup("options").DocumentOK()
		index, _ := doc.Lookup("idIndex").DocumentOK()
		list = append(list, progress.Collection{
			UUID: oplog.UUID(id), NS: ns, Options: options, IDIndex: index,
			Docs: p.docs[i], Bytes: p.bytes[i], State: progress.Created,
		})
	}
	return list, nil
}

// bare copies by loops of the driver.
func (p *copying) bare(ctx context.Context, loops int) (usage meter.Usage, err error) {
	if err := p.target.prepare(ctx, p.cfg.Overwrite, p.collections); err != nil {
		return usage, err
	}
	pieces, err := p.from.Divide(ctx, p.names(), loops)
	if err != nil {
		return usage, err
	}
	usage, err = measure(p.cfg, false, func() error { return p.from.Copy(ctx, p.to, pieces, loops) })
	if err != nil {
		return usage, err
	}
	return usage, p.check(ctx)
}

// names are those of the collections that have documents.
func (p *copying) names() []oplog.Namespace {
	var names []oplog.Namespace
	for i := range p.collections {
		if p.docs[i] > 0 {
			names = append(names, p.collections[i].NS)
		}
	}
	return names
}

// check counts the target's documents.
func (p *copying) check(ctx context.Context) error {
	var faults []error
	for i := range p.collections {
		ns := p.collections[i].NS
		n, err := count(ctx, p.target.Set, ns)
		if err != nil {
			return err
		}
		if n != p.docs[i] {
			faults = append(faults, fmt.Errorf("%d documents of %s were copied of %d", n, ns, p.docs[i]))
		}
	}
	return errors.Join(faults...)
}

func (p *copying) close(ctx context.Context) {
	for _, c := range []*plain.Client{p.to, p.from} {
		if c != nil {
			c.Close(ctx)
		}
	}
	for _, e := range []*place{p.target, p.source} {
		if e != nil {
			e.close()
		}
	}
}

func (p *copying) tidy(ctx context.Context) error {
	return errors.Join(p.source.tidy(ctx, p.collections), p.target.tidy(ctx, p.collections))
}

func sum(list []int64) int64 {
	total := int64(0)
	for _, n := range list {
		total += n
	}
	return total
}
