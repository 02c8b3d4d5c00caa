package catalog

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// Catalog caches the target's collections. It is safe for concurrent use. A Get
// concurrent with a Refresh of its namespace may return the state before or after it.
type Catalog struct {
	target mongo.Caller

	// mu guards the fields below. No I/O is done while it is held.
	mu sync.RWMutex
	// dbs are the databases that were read.
	dbs map[string]bool
	// known are their collections. A namespace of such a database that is not in known
	// does not exist, unless it is in stale: then it must be read first. The result of a
	// read counts only if the number in stale has not changed: otherwise it may be older
	// than the last Refresh.
	known map[oplog.Namespace]*Collection
	stale map[oplog.Namespace]uint64
	// refreshed counts calls of Refresh.
	refreshed uint64
}

// Load reads the collections of the given databases, and whether they have unique
// indexes.
func Load(ctx context.Context, target mongo.Caller, dbs []string) (*Catalog, error) {
	c := &Catalog{
		target: target, dbs: map[string]bool{},
		known: map[oplog.Namespace]*Collection{}, stale: map[oplog.Namespace]uint64{},
	}
	for _, db := range dbs {
		if err := c.load(ctx, db); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Get returns a collection; false where it does not exist. The first Get of a database
// that was not loaded reads it.
func (c *Catalog) Get(ctx context.Context, ns oplog.Namespace) (*Collection, bool, error) {
	c.mu.RLock()
	_, stale := c.stale[ns]
	loaded, coll := c.dbs[ns.DB()], c.known[ns]
	c.mu.RUnlock()
	if !loaded {
		if err := c.load(ctx, ns.DB()); err != nil {
			return nil, false, err
		}
		c.mu.RLock()
		_, stale = c.stale[ns]
		coll = c.known[ns]
		c.mu.RUnlock()
	}
	if stale {
		if err := c.reread(ctx, ns); err != nil {
			return nil, false, err
		}
		c.mu.RLock()
		coll = c.known[ns]
		c.mu.RUnlock()
	}
	return coll, coll != nil, nil
}

// Refresh reads namespaces again, after a command that created, changed, renamed or
// dropped them. After an error the next Get reads them.
func (c *Catalog) Refresh(ctx context.Context, names ...oplog.Namespace) error {
	c.mu.Lock()
	c.refreshed++
	for _, ns := range names {
		c.stale[ns.Clone()] = c.refreshed
	}
	c.mu.Unlock()
	for _, ns := range names {
		if err := c.reread(ctx, ns); err != nil {
			return err
		}
	}
	return nil
}

// Database returns all namespaces of a database, by name. It reads the database if
// necessary.
func (c *Catalog) Database(ctx context.Context, db string) ([]*Collection, error) {
	// No collection has an empty name: this only makes sure that db is read.
	if _, _, err := c.Get(ctx, oplog.NewNamespace(db, "")); err != nil {
		return nil, err
	}
	return c.all(func(ns oplog.Namespace) bool { return ns.DB() == db }), nil
}

// Known returns all known namespaces, in no order, and the databases that were read:
// other namespaces of those do not exist. The caller may change both results.
func (c *Catalog) Known() (colls []*Collection, dbs []string) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.Collect(maps.Values(c.known)), slices.Collect(maps.Keys(c.dbs))
}

func (c *Catalog) all(want func(oplog.Namespace) bool) []*Collection {
	c.mu.RLock()
	defer c.mu.RUnlock()
	var list []*Collection
	for ns, coll := range c.known {
		if want(ns) {
			list = append(list, coll)
		}
	}
	slices.SortFunc(list, func(a, b *Collection) int { return cmp.Compare(a.NS, b.NS) })
	return list
}

// parallel is the number of concurrent reads: thousands of collections one by one would
// take long at a high latency.
const parallel = 16

// adminDB is the database of which only users and roles are ever mirrored.
const adminDB = "admin"

// isServers reports whether a listed collection of admin is the server's own: signing
// keys, its version. No role but __system may list their indexes, and nothing is written
// to them.
func isServers(doc bson.Raw) bool {
	name, _ := doc.Lookup("name").StringValueOK()
	return !oplog.NewNamespace(adminDB, name).IsPrivileges()
}

// load reads a database. If another goroutine has read it first, its result counts: it
// may have been refreshed since.
func (c *Catalog) load(ctx context.Context, db string) error {
	db = strings.Clone(db) // db may be a view
	docs, err := List(ctx, c.target, db, "")
	if err != nil {
		return err
	}
	if db == adminDB {
		docs = slices.DeleteFunc(docs, isServers)
	}
	found := make([]*Collection, len(docs))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for i, doc := range docs {
		g.Go(func() (err error) {
			found[i], err = c.read(ctx, db, doc)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dbs[db] {
		return nil
	}
	c.dbs[db] = true
	for _, coll := range found {
		if coll == nil {
			continue
		}
		if _, stale := c.stale[coll.NS]; !stale {
			c.known[coll.NS] = coll
		}
	}
	return nil
}

// reread reads one namespace.
func (c *Catalog) reread(ctx context.Context, ns oplog.Namespace) error {
	ns = ns.Clone()
	c.mu.RLock()
	of := c.stale[ns]
	c.mu.RUnlock()
	docs, err := List(ctx, c.target, ns.DB(), ns.Collection())
	if err != nil {
		return err
	}
	var coll *Collection
	for _, doc := range docs {
		if coll, err = c.read(ctx, ns.DB(), doc); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stale[ns] != of {
		return nil // another Refresh was concurrent; its own read counts
	}
	if c.dbs[ns.DB()] {
		delete(c.stale, ns)
	}
	if coll == nil {
		delete(c.known, ns)
	} else {
		c.known[ns] = coll
	}
	return nil
}
