package compare

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/memstore"
	"github.com/oplogrep/replicator/oplog"
)

// Side is one of the two sides compared: a Cluster or a Recorded.
type Side interface {
	// collections returns all collections and views without documents, but for
	// the server's own databases.
	collections(ctx context.Context) ([]memstore.CollectionState, error)
	// documents yields the documents of a collection: in natural order if it is
	// capped, by _id if not. It ends with the first error.
	documents(ctx context.Context, c *memstore.CollectionState) iter.Seq2[bson.Raw, error]
	// plain reports whether catalogs went through extended JSON, which cannot tell
	// some values apart.
	plain() bool
}

// Options configure a comparison. The zero value compares everything by name.
type Options struct {
	// Map gives the name that a namespace of the first side has on the second,
	// false if it does not exist there: scope.Scope.Target. Nil means the same
	// name.
	Map func(ns oplog.Namespace) (oplog.Namespace, bool)
	// Deferred has the index options that the second side defers.
	Deferred ddl.Specs
	// MetaDB is the database of the link's own records, which is left out on both
	// sides. Default "replicator".
	MetaDB string
	// AnyFieldOrder ignores the order of fields in documents.
	AnyFieldOrder bool
	// PerCollection is the number of differences reported for each collection;
	// default 3. The rest is counted.
	PerCollection int
	// PendingBytes bounds the documents that wait for their counterpart in a
	// collection with a collation, default 64 MiB. Those beyond it count as
	// differences.
	PendingBytes int
}

func (o *Options) setDefaults() {
	if o.Map == nil {
		o.Map = func(ns oplog.Namespace) (oplog.Namespace, bool) { return ns, true }
	}
	o.MetaDB = cmp.Or(o.MetaDB, "replicator")
	o.PerCollection = cmp.Or(o.PerCollection, 3)
	o.PendingBytes = cmp.Or(o.PendingBytes, 64<<20)
}

// comparison is one call of Compare.
type comparison struct {
	opts   Options
	a, b   Side
	report Report
	// told counts the reported differences of each collection.
	told map[oplog.Namespace]int
}

// Compare returns how b differs from a. An error means that one of them could
// not be read to the end. What an election interrupts is compared again from the start.
func Compare(ctx context.Context, a, b Side, opts Options) (Report, error) {
	opts.setDefaults()
	var c comparison
	err := client.ThroughElections(ctx, func() error {
		c = comparison{opts: opts, a: a, b: b, told: map[oplog.Namespace]int{}}
		return c.run(ctx)
	})
	return c.report, err
}

// pair is a collection of both sides, nil where one does not have it.
type pair struct {
	want, got *memstore.CollectionState
	// ns is the name that the second side has for it, or should have.
	ns oplog.Namespace
}

func (c *comparison) run(ctx context.Context) error {
	pairs, err := c.pairs(ctx)
	if err != nil {
		return err
	}
	for i := range pairs {
		p := &pairs[i]
		switch {
		case p.got == nil:
			if empty, err := c.emptyViews(ctx, c.a, p.want); err != nil || empty {
				if err != nil {
					return err
				}
				continue
			}
			c.differ(p.ns, "missing, want a "+p.want.Type)
		case p.want == nil:
			if empty, err := c.emptyViews(ctx, c.b, p.got); err != nil || empty {
				if err != nil {
					return err
				}
				continue
			}
			c.differ(p.ns, "a "+p.got.Type+" that should not be there")
		default:
			if err := c.collection(ctx, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// pairs lists the collections of either side, by the names of the second.
func (c *comparison) pairs(ctx context.Context) ([]pair, error) {
	want, err := c.a.collections(ctx)
	if err != nil {
		return nil, fmt.Errorf("compare: read the first side: %w", err)
	}
	got, err := c.b.collections(ctx)
	if err != nil {
		return nil, fmt.Errorf("compare: read the second side: %w", err)
	}
	byName := map[oplog.Namespace]*pair{}
	at := func(ns oplog.Namespace) *pair {
		if byName[ns] == nil {
			byName[ns] = &pair{ns: ns}
		}
		return byName[ns]
	}
	for i := range want {
		if want[i].NS.DB() == c.opts.MetaDB {
			continue
		}
		if ns, ok := c.opts.Map(want[i].NS); ok {
			at(ns).want = &want[i]
		}
	}
	for i := range got {
		if got[i].NS.DB() != c.opts.MetaDB {
			at(got[i].NS).got = &got[i]
		}
	}
	all := make([]pair, 0, len(byName))
	for _, p := range byName {
		all = append(all, *p)
	}
	slices.SortFunc(all, func(p, q pair) int { return cmp.Compare(p.ns, q.ns) })
	return all, nil
}

// emptyViews reports whether a collection is a system.views without any views: a
// server leaves one behind, and one that never had any has none.
func (c *comparison) emptyViews(ctx context.Context, side Side, coll *memstore.CollectionState) (bool, error) {
	if !coll.NS.IsSystemViews() {
		return false, nil
	}
	for _, err := range side.documents(ctx, coll) {
		if err != nil {
			return false, fmt.Errorf("compare: read %s: %w", coll.NS, err)
		}
		return false, nil
	}
	return true, nil
}

// collection compares what both sides have.
func (c *comparison) collection(ctx context.Context, p *pair) error {
	c.report.Collections++
	c.catalog(p)
	if p.want.Type != memstore.TypeCollection || p.got.Type != memstore.TypeCollection {
		return nil
	}
	if p.ns.IsSystemViews() && p.want.NS != p.ns {
		return nil // full of names; the views were compared by what they show
	}
	next, stop := iter.Pull2(c.a.documents(ctx, p.want))
	defer stop()
	other, stopOther := iter.Pull2(c.b.documents(ctx, p.got))
	defer stopOther()
	m := merge{c: c, ns: p.ns, want: reader{next: next}, got: reader{next: other}}
	var err error
	switch {
	case p.want.Capped:
		err = m.natural()
	case hasCollation(p.want) || hasCollation(p.got):
		err = m.unordered()
	default:
		err = m.ordered()
	}
	if err != nil {
		return fmt.Errorf("compare: read the documents of %s: %w", p.ns, err)
	}
	return nil
}

func hasCollation(c *memstore.CollectionState) bool {
	_, ok := rawbson.Lookup(c.Options, "collation")
	return ok
}

// differ adds a difference of a collection.
func (c *comparison) differ(ns oplog.Namespace, what string) {
	if c.told[ns]++; c.told[ns] > c.opts.PerCollection {
		c.report.More++
		return
	}
	c.report.Differences = append(c.report.Differences, Difference{NS: ns, What: what})
}
