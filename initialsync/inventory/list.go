package inventory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/initialsync/progress"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// parallel is the number of concurrent requests: thousands of collections, one by one,
// take long on a connection with high latency.
const parallel = 16

// listed is a collection, or a view, as it is listed.
type listed struct {
	ns      oplog.Namespace
	options bson.Raw
	isView  bool
	// uuid is a collection's; atBegin is the name that it had at Begin.
	uuid    oplog.UUID
	atBegin oplog.Namespace
}

// The users and roles of a source, if they are mirrored.
const (
	usersNS oplog.Namespace = "admin.system.users"
	rolesNS oplog.Namespace = "admin.system.roles"
)

// list lists all databases that have anything that may be mirrored. Which collections
// are mirrored is known only with their names at Begin, but a rename does not move a
// collection to another database.
func (s *source) list(ctx context.Context, scope Scope) ([]listed, error) {
	dbs, err := s.databases(ctx)
	if err != nil {
		return nil, err
	}
	lists := make([][]listed, len(dbs))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for i, db := range dbs {
		if !wanted(scope, db) {
			continue
		}
		g.Go(func() (err error) {
			lists[i], err = s.listDB(ctx, db)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	var all []listed
	for _, list := range lists {
		all = append(all, list...)
	}
	return all, nil
}

// wanted reports whether anything of a database may be mirrored.
func wanted(scope Scope, db string) bool {
	switch db {
	case "local", "config":
		return false
	case usersNS.DB():
		_, users := scope.Target(usersNS)
		_, roles := scope.Target(rolesNS)
		return users || roles
	default:
		return len(scope.TargetDBs(db)) > 0
	}
}

func (s *source) databases(ctx context.Context) ([]string, error) {
	// Without authorizedDatabases, a user without the privilege to list them would see only some.
	reply, err := s.run(ctx, "admin", document().
		AppendInt32("listDatabases", 1).AppendBoolean("nameOnly", true).AppendBoolean("authorizedDatabases", false))
	if err != nil {
		return nil, fmt.Errorf("list the databases: %w", err)
	}
	names, err := mongo.DatabaseNames(reply)
	if err != nil {
		return nil, fmt.Errorf("list the databases: %w", err)
	}
	return names, nil
}

// listDB lists the collections and views of a database that may be copied.
func (s *source) listDB(ctx context.Context, db string) ([]listed, error) {
	docs, err := s.all(ctx, db, document().AppendInt32("listCollections", 1))
	if mongo.InvalidViews(err) {
		docs, err = s.listDespite(ctx, db)
	}
	if err != nil {
		return nil, fmt.Errorf("list the collections of %s: %w", db, err)
	}
	list := make([]listed, 0, len(docs))
	for _, doc := range docs {
		l, taken, err := readListed(db, doc)
		if err != nil {
			return nil, fmt.Errorf("list the collections of %s: %w: %s", db, err, doc)
		}
		if taken {
			list = append(list, l)
		}
	}
	return list, nil
}

// listDespite lists a database that has an invalid view, and records that. A view that
// may not be read would be left out without a fault of its own, so that is an error.
func (s *source) listDespite(ctx context.Context, db string) ([]bson.Raw, error) {
	docs, invalid, unreadable, err := mongo.ListDespite(db, func(cmd *builder) ([]bson.Raw, error) { return s.all(ctx, db, cmd) })
	switch {
	case err != nil:
		return nil, err
	case unreadable != nil:
		return nil, fmt.Errorf("a view in it is invalid; remove it from system.views, or grant find on that (role backup): %w", unreadable)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.invalid = append(s.invalid, invalid...)
	return docs, nil
}

// readListed parses an element of listCollections; it returns false for one that is
// never copied.
func readListed(db string, doc bson.Raw) (l listed, taken bool, err error) {
	text := func(name string) string {
		e, _ := rawbson.Lookup(doc, name)
		text, _ := e.Text()
		return text
	}
	l.ns = oplog.NewNamespace(db, text("name"))
	if !l.ns.IsCollection() {
		return l, false, errors.New("it has no name")
	}
	options, _ := rawbson.Lookup(doc, "options")
	given, ok := options.Document()
	if !ok {
		return l, false, errors.New("it has no options")
	}
	l.options = bytes.Clone(given)
	info, _ := rawbson.Lookup(doc, "info")
	inner, _ := info.Document()
	uuid, _ := rawbson.Lookup(inner, "uuid")
	subtype, id, ok := uuid.Binary()
	hasUUID := ok && subtype == bson.TypeBinaryUUID && len(id) == len(l.uuid)
	switch kind := text("type"); kind {
	case "view":
		l.isView = true
		return l, true, nil
	case "timeseries":
		if hasUUID {
			return l, false, fmt.Errorf("%w: a time-series collection without buckets of its own", oplog.ErrUnsupported)
		}
		return l, false, nil // its buckets are listed too
	case "collection":
	default:
		return l, false, fmt.Errorf("%w: it is of type %q", oplog.ErrUnsupported, kind)
	}
	if l.ns.IsSystemViews() || l.ns.Collection() == "system.profile" {
		return l, false, nil
	}
	if !hasUUID {
		return l, false, errNoUUID
	}
	l.uuid = oplog.UUID(id)
	return l, true, nil
}

// details reads the sizes and indexes of collections. Those that are gone are left out.
func (s *source) details(ctx context.Context, collections []listed) ([]progress.Collection, error) {
	found := make([]*progress.Collection, len(collections))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for i := range collections {
		g.Go(func() (err error) {
			found[i], err = s.detail(ctx, &collections[i])
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	list := make([]progress.Collection, 0, len(found))
	for _, c := range found {
		if c != nil {
			list = append(list, *c)
		}
	}
	return list, nil
}

func (s *source) detail(ctx context.Context, l *listed) (*progress.Collection, error) {
	c := &progress.Collection{UUID: l.uuid, NS: l.atBegin, Options: l.options, State: progress.Planned}
	indexes, err := s.indexes(ctx, l)
	if servererr.IsNoNamespace(err) {
		return nil, nil //nolint:nilnil // It is gone, and the log drops it.
	}
	if err != nil {
		return nil, fmt.Errorf("list the indexes of %s: %w", l.ns, err)
	}
	for _, doc := range indexes {
		if err := addIndex(c, doc); err != nil {
			return nil, fmt.Errorf("list the indexes of %s: %w: %s", l.ns, err, doc)
		}
	}
	c.Docs, c.Bytes, err = s.size(ctx, l.ns)
	if err != nil {
		return nil, fmt.Errorf("ask for the size of %s: %w", l.ns, err)
	}
	return c, nil
}

// indexes lists the indexes of a collection, whatever its present name. Those that are
// being built are marked as such.
func (s *source) indexes(ctx context.Context, l *listed) ([]bson.Raw, error) {
	command := func() *builder {
		return document().AppendBinary("listIndexes", bson.TypeBinaryUUID, l.uuid[:])
	}
	if s.unmarked.Load() {
		return s.all(ctx, l.ns.DB(), command())
	}
	docs, err := s.all(ctx, l.ns.DB(), command().AppendBoolean("includeBuildUUIDs", true))
	if servererr.IsNotUnderstood(err) {
		s.unmarked.Store(true)
		return s.all(ctx, l.ns.DB(), command())
	}
	return docs, err
}

// addIndex adds a listed index to a collection.
func addIndex(c *progress.Collection, doc bson.Raw) error {
	if _, building := rawbson.Lookup(doc, "buildUUID"); building {
		return nil // the oplog commits it
	}
	e, _ := rawbson.Lookup(doc, "name")
	name, ok := e.Text()
	key, _ := rawbson.Lookup(doc, "key")
	if _, isDoc := key.Document(); !ok || name == "" || !isDoc {
		return errors.New("an index without name or key")
	}
	if clustered, _ := rawbson.Lookup(doc, "clustered"); clustered.Truth() {
		return nil // it is the collection itself
	}
	spec := bson.Raw(bytes.Clone(doc))
	if name == "_id_" {
		c.IDIndex = spec
	} else {
		c.Indexes = append(c.Indexes, spec)
	}
	return nil
}

// sizesWithin is for how long, since the beginning of a listing, a member is asked again for the size of a collection that it
// does not tell at present: not once for each of thousands of collections.
const sizesWithin = 30 * time.Second

// size returns the number of documents and their bytes. It is an estimate, for display, for the order in which
// collections are copied, and for the number of ranges: a refusal does not matter. One that passes is worth another
// request, as a large collection without a size is copied last, by one worker.
func (s *source) size(ctx context.Context, ns oplog.Namespace) (docs, size int64, err error) {
	var reply bson.Raw
	passes := func(err error) bool { return servererr.IsRefusal(err) && servererr.Classify(err).Passes() }
	err = mongo.Retry{For: max(1, sizesWithin-time.Since(s.began)), Again: passes}.Last(ctx, func() (err error) {
		reply, err = s.run(ctx, ns.DB(), document().AppendString("collStats", ns.Collection()))
		return err
	})
	if servererr.IsRefusal(err) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, err
	}
	count, _ := rawbson.Lookup(reply, "count")
	docs, _ = count.Int64()
	total, _ := rawbson.Lookup(reply, "size")
	size, _ = total.Int64()
	return max(docs, 0), max(size, 0), nil
}
