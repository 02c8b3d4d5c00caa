package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/oplogrep/replicator/initialsync/clone"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

// mostRestarts is how often a collection is compared again, because it was dropped, made or
// renamed meanwhile.
const mostRestarts = 5

// Verifier compares two clusters. Create one with New.
type Verifier struct {
	cfg            Config
	retrier        *retrier
	source, target *side
	cuts           *cutter // nil without cuts
	pace           pacing
	// ranges limits how many are read at a time.
	ranges *semaphore.Weighted

	// listed is when the collections were listed, and listing how long that took. They belong to Run.
	listed  time.Time
	listing time.Duration

	// ended is called before the stored progress is deleted; tests replace it.
	ended func() error

	mu      sync.Mutex // guards the rest, and the functions of cfg that take results
	moves   moves
	summary Summary
	used    span
	// found are the differences of collections, by their names at the source.
	found map[oplog.Namespace]*foundList
}

// New checks cfg. It does no I/O.
func New(cfg Config) (*Verifier, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	r := &retrier{limit: cfg.Patience, waits: cfg.Waits}
	v := &Verifier{
		cfg: cfg, found: map[oplog.Namespace]*foundList{}, retrier: r, source: newSide(r, clone.Source, cfg.Source), target: newSide(r, clone.Target, cfg.Target),
		pace: pacing{cfg.Pacer}, ended: func() error { return nil }, ranges: semaphore.NewWeighted(int64(cfg.workers())),
		moves: moves{left: map[oplog.UUID]bool{}, compared: map[oplog.UUID]bool{}},
	}
	if cfg.Cuts != nil {
		v.cuts = &cutter{cuts: cfg.Cuts}
	}
	return v, nil
}

// Run compares everything. It must be called once. A difference is not an error: an error means
// that the comparison did not end, and that the summary covers a part only. A collection that
// could not be compared has a Fault in the summary, and does not end the others.
func (v *Verifier) Run(ctx context.Context) (*Summary, error) {
	began := time.Now()
	err := v.run(ctx)
	v.source.end(ctx)
	v.target.end(ctx)
	v.summary.Took, v.summary.Sample = time.Since(began), v.cfg.Sample
	v.summary.First, v.summary.Last = v.used.first, v.used.last
	slices.SortFunc(v.summary.Collections, func(a, b Collection) int { return cmp.Compare(a.NS, b.NS) })
	if err != nil {
		return &v.summary, fmt.Errorf("verify: %w", err)
	}
	return &v.summary, nil
}

func (v *Verifier) run(ctx context.Context) error {
	for _, s := range []*side{v.source, v.target} {
		if err := s.open(ctx); err != nil {
			return err
		}
	}
	if v.cuts != nil {
		// Writes made before the verification began are included.
		v.cuts.need(v.source.heard.Time(), v.target.heard.Time())
	}
	all, err := v.start(ctx)
	if err != nil {
		return err
	}
	for n := 1; len(all) > 0; n++ {
		if err := v.compareAll(ctx, all); err != nil {
			return err
		}
		// Collections that were renamed meanwhile existed when the verification began.
		if all, err = v.moved(ctx); err != nil {
			return err
		}
		for i := range all {
			if n > mostRestarts {
				all[i].unsettled = errUnsettled
			}
		}
	}
	if err := v.ended(); err != nil {
		return err
	}
	if err := v.forgetGone(ctx); err != nil {
		return err
	}
	return v.end(ctx)
}

// compareAll compares collections.
func (v *Verifier) compareAll(ctx context.Context, all []settled) error {
	if v.cfg.Refresh > 0 {
		return v.oneByOne(ctx, all)
	}
	g, within := errgroup.WithContext(ctx)
	g.SetLimit(v.cfg.workers())
	for i := range all {
		g.Go(func() error {
			c, err := v.collection(within, &all[i])
			if err != nil {
				return err
			}
			return v.done(c)
		})
	}
	return g.Wait()
}

// done adds a collection to the summary, unless neither side has it any more.
func (v *Verifier) done(c *Collection) error {
	if c.Type == "" {
		return nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.summary.Collections = append(v.summary.Collections, *c)
	v.cfg.Checked(c)
	return nil
}

// collection compares a collection, again if it was dropped, made or renamed meanwhile.
func (v *Verifier) collection(ctx context.Context, s *settled) (*Collection, error) {
	c := &Collection{NS: s.ns, SourceNS: s.sourceNS}
	if err := v.replaced(ctx, s); err != nil { // since it was listed
		return nil, err
	}
	for {
		err := v.once(ctx, s, c)
		switch {
		case err == nil:
			v.arrive(s.want)
			return c, v.record(ctx, s, c)
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case !isFault(err) && !errors.Is(err, errChanged):
			return nil, err
		case !errors.Is(err, errChanged) || c.Restarts == mostRestarts:
			c.Fault = err.Error()
			v.arrive(s.want)
			return c, v.record(ctx, s, c)
		}
		restarts := c.Restarts + 1
		list, err := v.settle(ctx, s.sourceNS)
		if err != nil {
			return nil, err
		}
		v.leave(s.want, list)
		*c = Collection{NS: s.ns, SourceNS: s.sourceNS, Restarts: restarts}
		v.lose(s.sourceNS, false)
		if len(list) == 0 {
			return c, v.record(ctx, s, c) // both sides have dropped it
		}
		s = &list[0]
		if err := v.replaced(ctx, s); err != nil {
			return nil, err
		}
	}
}

// isFault reports whether an error is of one collection, and does not end the others.
func isFault(err error) bool {
	return errors.Is(err, errStale) || errors.Is(err, errCrowded) || errors.Is(err, errDisorder) ||
		errors.Is(err, errUnsettled) || errors.Is(err, errOverwritten) || errors.Is(err, errDisplaced) || errors.Is(err, errRefused) || errors.Is(err, errUnrecorded) ||
		errors.Is(err, oplog.ErrUnsupported) || servererr.IsSnapshotUnavailable(err)
}

// once compares a collection as it was listed.
func (v *Verifier) once(ctx context.Context, s *settled, c *Collection) error {
	c.Type = s.kind()
	if s.unsettled != nil {
		return s.unsettled
	}
	c.Catalog += len(s.found)
	if err := v.report(ctx, s.sourceNS, s.found); err != nil {
		return err
	}
	if s.want == nil || s.got == nil || s.want.kind != typeCollection || s.got.kind != typeCollection {
		return nil
	}
	if r := v.already(&s.pair); r != nil {
		v.hasFound(s.sourceNS, r.Found, 0)
		c.How, c.Tally = r.How, r.Tally
		v.settleCuts(c, &span{first: unsaved(&r.First), last: unsaved(&r.Last)}, nil)
		return nil
	}
	return v.documents(ctx, &s.pair, c)
}

// documents compares the documents of a collection. What a server refuses may be due to another collection, or a view, that
// has the name by then.
func (v *Verifier) documents(ctx context.Context, p *pair, c *Collection) error {
	err := v.documentsAsListed(ctx, p, c)
	if servererr.IsOtherCollection(err) { // It had another name at that time.
		if v.cuts != nil { // both sides have it since they were listed
			v.cuts.need(v.source.heard.Time(), v.target.heard.Time())
		}
		return fmt.Errorf("%w: %w", errChanged, err)
	}
	if servererr.IsRefusal(err) && !servererr.IsDenied(err) {
		if now := v.unchanged(ctx, p); errors.Is(now, errChanged) {
			return now
		}
		if servererr.Classify(err) == servererr.Isolate {
			why := errUnrecorded
			if _, ofSide := errors.AsType[*sideError](err); ofSide {
				why = errRefused
			}
			return fmt.Errorf("%w: %w", why, err)
		}
	}
	return err
}

// documentsAsListed compares the documents of a collection in one way after the other, until one is possible.
func (v *Verifier) documentsAsListed(ctx context.Context, p *pair, c *Collection) error {
	how := orderOf(p)
	snapshots := v.cuts != nil && how != inserted
	err := v.read(ctx, p, c, how, snapshots)
	if errors.Is(err, errDisorder) || errors.Is(err, errCrowded) && how != sorted {
		// Servers can sort by the binary order whatever their indexes are.
		if how == byID {
			how = joined
		} else {
			how = sorted
		}
		v.again(c)
		err = v.read(ctx, p, c, how, snapshots)
	}
	if snapshots && (v.unreadable(err) || errors.Is(err, errStale) && how != byID) {
		v.again(c)
		return v.read(ctx, p, c, how, false)
	}
	return err
}

// again forgets the results of a collection whose documents are read in another way.
func (v *Verifier) again(c *Collection) {
	*c = Collection{NS: c.NS, SourceNS: c.SourceNS, Type: c.Type, Catalog: c.Catalog, Restarts: c.Restarts}
	v.lose(c.SourceNS, true)
}

// unreadable reports whether documents cannot be read at cuts, and have to be read as they are.
func (v *Verifier) unreadable(err error) bool {
	return servererr.IsSnapshotUnavailable(err) || servererr.IsOptionRefused(err) || servererr.IsNotInTransaction(err) ||
		errors.Is(err, errStale) && v.inTxn() // before 5.0 the history that a server keeps may be of seconds
}

// inTxn reports whether a side is read in transactions.
func (v *Verifier) inTxn() bool { return v.source.inTxn.Load() || v.target.inTxn.Load() }

// orderOf returns how a collection is read.
func orderOf(p *pair) order {
	byIndex := func(l *listed) bool { return l.hasID || l.has("clusteredIndex") || l.ns.IsBuckets() }
	switch {
	case p.want.has("capped") && p.got.has("capped"):
		return inserted
	case !byIndex(p.want) || !byIndex(p.got) || p.want.has("capped") || p.got.has("capped"):
		return sorted
	case len(p.want.collation()) == 0 && len(p.got.collation()) == 0:
		return byID
	case len(compareFields(p.want.collation(), p.got.collation(), false, func(_ string, a, b bson.RawValue) bool { return sameNumber(a, b) })) == 0:
		return joined
	default:
		return sorted
	}
}

// inTxn is added to how a collection was read.
const inTxn = ", in transactions"

// read compares the documents in one order.
func (v *Verifier) read(ctx context.Context, p *pair, c *Collection, how order, snapshots bool) error {
	c.How = string(how)
	if v.cuts != nil && !snapshots {
		c.How += ", differences read again"
	}
	if p.want.ns.IsBuckets() {
		c.How += ", buckets"
	}
	if v.cfg.Sample > 0 && how == byID && p.want.docs > leastSampled {
		if sampled, err := v.sample(ctx, p, c, snapshots); sampled || err != nil {
			return err
		}
	}
	pl, err := v.plan(ctx, p, how)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var used, confirmed span
	g, within := errgroup.WithContext(ctx)
	for i, pieces := range pl.ranges {
		if r, done := pl.done[i]; done {
			mu.Lock()
			c.Add(&r.Tally)
			used.add(unsaved(r.First))
			used.add(unsaved(r.Last))
			mu.Unlock()
			continue
		}
		if err := v.ranges.Acquire(within, 1); err != nil {
			break // the error is that of a range, or the cause of ctx
		}
		g.Go(func() error {
			defer v.ranges.Release(1)
			s := scan{v: v, p: p, pieces: pieces, order: how, snapshots: snapshots}
			err := s.run(within)
			if err == nil {
				err = v.compared(within, &pl, i, &s)
			}
			mu.Lock()
			defer mu.Unlock()
			c.Add(&s.tally)
			used.add(s.used.first)
			used.add(s.used.last)
			confirmed.add(s.until)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if ctx.Err() != nil { // some ranges may not have been read
		return context.Cause(ctx)
	}
	if snapshots && v.inTxn() {
		c.How += inTxn
	}
	v.settleCuts(c, &used, confirmed.last)
	return nil
}

// settleCuts records the cuts at which a collection was read, and one after the differences that were confirmed without them, nil for none.
func (v *Verifier) settleCuts(c *Collection, used *span, confirmed *Cut) {
	c.First, c.Last, c.used = used.first.Times(), used.last.Times(), *used
	c.used.add(confirmed)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.used.add(used.first)
	v.used.add(used.last)
}
