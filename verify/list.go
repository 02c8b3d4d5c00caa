package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// Types of collections, as servers name them.
const (
	typeCollection = "collection"
	typeView       = "view"
	typeSeries     = "timeseries"
)

const idIndex = "_id_"

// parallel is the number of concurrent requests of a listing.
const parallel = 8

// listed is a collection or view of one side.
type listed struct {
	ns      oplog.Namespace
	kind    string
	uuid    oplog.UUID // zero for views
	options bson.Raw
	// indexes are those that are not being built. hasID: one is on _id, of all documents.
	indexes []bson.Raw
	hasID   bool
	// docs and bytes are estimates; 0 if they are not known.
	docs, bytes int64
}

func (l *listed) has(option string) bool {
	e, ok := rawbson.Lookup(l.options, option)
	return ok && (e.Type != bson.TypeBoolean || e.Truth())
}

// uuidOf returns the UUID of a collection, zero if there is none.
func (l *listed) uuidOf() oplog.UUID {
	if l == nil {
		return oplog.UUID{}
	}
	return l.uuid
}

func (l *listed) collation() bson.Raw {
	e, _ := rawbson.Lookup(l.options, "collation")
	doc, _ := e.Document()
	return doc
}

// same reports whether nothing about a collection has changed between two listings.
func (l *listed) same(other *listed) bool {
	if l == nil || other == nil {
		return l == other
	}
	return l.kind == other.kind && l.uuid == other.uuid && bytes.Equal(l.options, other.options) &&
		slices.EqualFunc(l.indexes, other.indexes, func(a, b bson.Raw) bool { return bytes.Equal(a, b) })
}

// listing is the catalog of a side.
type listing struct {
	collections map[oplog.Namespace]*listed
	invalid     []string
}

// choice says what to list: everything, or some namespaces.
type choice struct {
	// wanted decides about namespaces of the side.
	wanted func(ns oplog.Namespace) bool
	// only, if not empty, are the ones to list.
	only map[oplog.Namespace]bool
}

// chosen returns a choice of some namespaces, or of everything.
func chosen(wanted func(ns oplog.Namespace) bool, only ...oplog.Namespace) choice {
	c := choice{wanted: wanted, only: make(map[oplog.Namespace]bool, len(only))}
	for _, ns := range only {
		c.only[ns] = true
	}
	return c
}

func (c *choice) has(ns oplog.Namespace) bool {
	return c.wanted(ns) && (len(c.only) == 0 || c.only[ns])
}

// databases returns those of the namespaces to list.
func (c *choice) databases() []string {
	var dbs []string
	for ns := range c.only {
		dbs = append(dbs, ns.DB())
	}
	slices.Sort(dbs)
	return slices.Compact(dbs)
}

// mostNames limits the filter of listCollections, in bytes. With more names a command may be larger than servers accept.
const mostNames = 4 << 20

// filter returns the filter of listCollections for a database, empty if it has to list everything.
func (c *choice) filter(db string) bsoncore.Document {
	var names []string
	size := 0
	for ns := range c.only {
		if ns.DB() == db {
			names = append(names, ns.Collection())
			size += len(ns)
		}
	}
	if size > mostNames || len(names) == 0 {
		return document().Build()
	}
	slices.Sort(names)
	if len(names) == 1 {
		return document().AppendString("name", names[0]).Build()
	}
	list := bsoncore.NewArrayBuilder()
	for _, name := range names {
		list.AppendString(name)
	}
	return document().AppendDocument("name", document().AppendArray("$in", list.Build()).Build()).Build()
}

// list lists the collections and views of a side, with indexes and sizes.
func (s *side) list(ctx context.Context, which choice) (*listing, error) {
	dbs := which.databases()
	if len(which.only) == 0 {
		var err error
		if dbs, err = s.databases(ctx); err != nil {
			return nil, err
		}
	}
	out := &listing{collections: map[oplog.Namespace]*listed{}}
	var found []*listed
	for _, db := range dbs {
		list, err := s.listDB(ctx, db, &which, out)
		if err != nil {
			return nil, s.wrap(err, "list the collections of %s", db)
		}
		found = append(found, list...)
	}
	g, detailed := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	gone := make([]bool, len(found))
	for i, l := range found {
		if l.kind != typeCollection {
			continue
		}
		g.Go(func() (err error) {
			gone[i], err = s.detail(detailed, l)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for i, l := range found {
		if !gone[i] {
			out.collections[l.ns] = l
		}
	}
	return out, nil
}

func (s *side) databases(ctx context.Context) ([]string, error) {
	// Without authorizedDatabases, a user without the privilege to list them would see only
	// some.
	reply, err := s.run(ctx, "admin", func() *builder {
		return document().AppendInt32("listDatabases", 1).AppendBoolean("nameOnly", true).AppendBoolean("authorizedDatabases", false)
	})
	if err != nil {
		return nil, s.wrap(err, "list the databases")
	}
	names, err := mongo.DatabaseNames(reply)
	if err != nil {
		return nil, s.wrap(err, "list the databases")
	}
	return slices.DeleteFunc(names, oplog.IsServerDB), nil
}

// listDB lists the collections of a database that are compared.
func (s *side) listDB(ctx context.Context, db string, which *choice, out *listing) ([]*listed, error) {
	docs, err := s.all(ctx, db, func() *builder {
		cmd := document().AppendInt32("listCollections", 1)
		if len(which.only) > 0 {
			cmd.AppendDocument("filter", which.filter(db))
		}
		return cmd
	})
	if mongo.InvalidViews(err) {
		var invalid []mongo.InvalidView
		var hidden error
		docs, invalid, hidden, err = mongo.ListDespite(db, func(cmd *builder) ([]bson.Raw, error) {
			body := cmd.Build()
			return s.all(ctx, db, func() *builder { return builderOf(body) })
		})
		if hidden != nil {
			err = fmt.Errorf("a view in it is invalid; remove it from system.views, or grant find on that (role backup): %w", hidden)
		}
		for i := range invalid {
			out.invalid = append(out.invalid, invalid[i].ID)
		}
	}
	if err != nil {
		return nil, err
	}
	var list []*listed
	for _, doc := range docs {
		l, taken, err := readListed(db, doc)
		if err != nil {
			return nil, err
		}
		if taken && which.has(l.ns) {
			list = append(list, l)
		}
	}
	return list, nil
}

// builderOf returns a builder with the fields of a document.
func builderOf(doc bsoncore.Document) *builder {
	b := document()
	for it := rawbson.NewIter(doc); it.Next(); {
		b.AppendValue(it.Name(), coreValue(it.Raw()))
	}
	return b
}

// readListed parses an element of listCollections. It returns false for one whose documents are
// not compared: views are compared by their definitions, and profiles are not data of clients.
func readListed(db string, doc bson.Raw) (l *listed, taken bool, err error) {
	text := func(name string) string {
		e, _ := rawbson.Lookup(doc, name)
		text, _ := e.Text()
		return text
	}
	l = &listed{ns: oplog.NewNamespace(db, text("name")), kind: strings.Clone(text("type"))}
	options, _ := rawbson.Lookup(doc, "options")
	given, ok := options.Document()
	switch {
	case !l.ns.IsCollection() || !ok:
		return nil, false, errors.New("an element of listCollections has no name or no options")
	case l.ns.IsSystemViews() || l.ns.Collection() == "system.profile":
		return nil, false, nil
	}
	l.options = bytes.Clone(given)
	info, _ := rawbson.Lookup(doc, "info")
	inner, _ := info.Document()
	uuid, _ := rawbson.Lookup(inner, "uuid")
	subtype, id, ok := uuid.Binary()
	hasUUID := ok && subtype == bson.TypeBinaryUUID && len(id) == len(l.uuid)
	switch {
	case l.kind == typeView || l.kind == typeSeries && !hasUUID:
		return l, true, nil
	case l.kind == typeSeries:
		return nil, false, fmt.Errorf("%w: %s is a time-series collection without buckets of its own", oplog.ErrUnsupported, l.ns)
	case l.kind != typeCollection:
		return nil, false, fmt.Errorf("%w: %s is of type %q", oplog.ErrUnsupported, l.ns, l.kind)
	case !hasUUID:
		return nil, false, fmt.Errorf("%s has no UUID", l.ns)
	}
	l.uuid = oplog.UUID(id)
	return l, true, nil
}

// detail reads indexes and sizes. It returns true if the collection is gone.
func (s *side) detail(ctx context.Context, l *listed) (gone bool, err error) {
	marked := true
	command := func() *builder {
		cmd := document().AppendString("listIndexes", l.ns.Collection())
		if marked {
			cmd.AppendBoolean("includeBuildUUIDs", true)
		}
		return cmd
	}
	docs, err := s.all(ctx, l.ns.DB(), command)
	if servererr.IsNotUnderstood(err) {
		marked = false
		docs, err = s.all(ctx, l.ns.DB(), command)
	}
	switch {
	case servererr.IsNoNamespace(err), servererr.IsOfView(err):
		return true, nil
	case err != nil:
		return false, s.wrap(err, "list the indexes of %s", l.ns)
	}
	for _, doc := range docs {
		if _, building := rawbson.Lookup(doc, "buildUUID"); building {
			continue
		}
		l.indexes = append(l.indexes, bytes.Clone(doc))
		l.hasID = l.hasID || indexName(doc) == idIndex
	}
	slices.SortFunc(l.indexes, func(a, b bson.Raw) int { return strings.Compare(indexName(a), indexName(b)) })
	reply, err := s.run(ctx, l.ns.DB(), func() *builder { return document().AppendString("collStats", l.ns.Collection()) })
	switch {
	case servererr.IsRefusal(err): // it is only an estimate
	case err != nil:
		return false, s.wrap(err, "ask for the size of %s", l.ns)
	default:
		count, _ := rawbson.Lookup(reply, "count")
		l.docs, _ = count.Int64()
		size, _ := rawbson.Lookup(reply, "size")
		l.bytes, _ = size.Int64()
	}
	return false, nil
}

func indexName(spec bson.Raw) string {
	e, _ := rawbson.Lookup(spec, "name")
	name, _ := e.Text()
	return name
}

// is returns whether a side has the same collection under its name as when it was listed.
func (s *side) is(ctx context.Context, l *listed) (bool, error) {
	which := chosen(func(oplog.Namespace) bool { return true }, l.ns)
	docs, err := s.listDB(ctx, l.ns.DB(), &which, &listing{})
	if err != nil {
		return false, s.wrap(err, "look for %s", l.ns)
	}
	return len(docs) == 1 && docs[0].uuid == l.uuid, nil
}
