package compare

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/memstore"
	"github.com/oplogrep/replicator/oplog"
)

// Cluster is a side read from servers. It only reads.
func Cluster(c mongo.Caller) Side { return cluster{c} }

// Recorded is a side in memory, such as the final state of a recording.
func Recorded(state memstore.State) Side { return recorded{state} }

type cluster struct{ mongo.Caller }

func (cluster) plain() bool { return false }

var errReply = errors.New("a reply without what it must have")

// collections implements Side.
func (s cluster) collections(ctx context.Context) ([]memstore.CollectionState, error) {
	cmd := bsoncore.NewDocumentBuilder().AppendInt32("listDatabases", 1).AppendBoolean("nameOnly", true).Build()
	reply, err := s.Call(ctx, mongo.Command{DB: "admin", Body: bson.Raw(cmd)})
	if err != nil {
		return nil, fmt.Errorf("list the databases: %w", err)
	}
	e, _ := rawbson.Lookup(reply, "databases")
	array, ok := e.Array()
	if !ok {
		return nil, fmt.Errorf("list the databases: %w: databases", errReply)
	}
	var all []memstore.CollectionState
	for it := rawbson.NewIter(array); it.Next(); {
		doc, _ := it.Document()
		name, _ := rawbson.Lookup(doc, "name")
		db, ok := name.Text()
		if !ok {
			return nil, fmt.Errorf("list the databases: %w: name", errReply)
		}
		if isSystem(db) {
			continue
		}
		if all, err = s.database(ctx, all, db); err != nil {
			return nil, fmt.Errorf("read the catalog of %s: %w", db, err)
		}
	}
	return all, nil
}

func isSystem(db string) bool { return db == "admin" || db == "config" || db == "local" }

// database appends what a database has.
func (s cluster) database(ctx context.Context, all []memstore.CollectionState, db string) ([]memstore.CollectionState, error) {
	docs, err := s.list(ctx, db)
	if err != nil {
		return nil, err
	}
	for _, doc := range docs {
		c, err := listed(db, doc)
		if err != nil {
			return nil, err
		}
		if c.Type == memstore.TypeCollection {
			list := bsoncore.NewDocumentBuilder().AppendString("listIndexes", c.NS.Collection()).
				AppendDocument("cursor", bsoncore.NewDocumentBuilder().Build()).AppendBoolean("includeBuildUUIDs", true).Build()
			for spec, err := range s.read(ctx, db, bson.Raw(list)) {
				if err != nil {
					return nil, err
				}
				if _, building := rawbson.Lookup(spec, "buildUUID"); building {
					continue // it may still be aborted
				}
				c.Indexes = append(c.Indexes, spec)
			}
		}
		all = append(all, c)
	}
	return all, nil
}

// list returns what listCollections shows of a database. If one of its views is
// invalid, which makes a server refuse the command, the others are listed.
func (s cluster) list(ctx context.Context, db string) ([]bson.Raw, error) {
	run := func(cmd *bsoncore.DocumentBuilder) (docs []bson.Raw, err error) {
		for doc, err := range s.read(ctx, db, bson.Raw(cmd.Build())) {
			if err != nil {
				return nil, err
			}
			docs = append(docs, bytes.Clone(doc))
		}
		return docs, nil
	}
	docs, err := run(bsoncore.NewDocumentBuilder().AppendInt32("listCollections", 1).
		AppendDocument("cursor", bsoncore.NewDocumentBuilder().Build()))
	if !mongo.InvalidViews(err) {
		return docs, err
	}
	docs, _, unreadable, err := mongo.ListDespite(db, run)
	return docs, errors.Join(err, unreadable)
}

// listed reads a document of listCollections.
func listed(db string, doc bson.Raw) (memstore.CollectionState, error) {
	var c memstore.CollectionState
	name, _ := rawbson.Lookup(doc, "name")
	text, hasName := name.Text()
	c.NS = oplog.NewNamespace(db, text)
	kind, _ := rawbson.Lookup(doc, "type")
	var hasType, hasOptions bool
	c.Type, hasType = kind.Text()
	options, _ := rawbson.Lookup(doc, "options")
	if c.Options, hasOptions = options.Document(); !hasName || !hasType || !hasOptions {
		return c, fmt.Errorf("%w: name, type or options of %s", errReply, doc)
	}
	capped, _ := rawbson.Lookup(c.Options, "capped")
	c.Capped = capped.Truth()
	return c, nil
}

// documents implements Side.
func (s cluster) documents(ctx context.Context, c *memstore.CollectionState) iter.Seq2[bson.Raw, error] {
	cmd := bsoncore.NewDocumentBuilder().AppendString("find", c.NS.Collection())
	ascending := bsoncore.NewDocumentBuilder().AppendInt32("_id", 1).Build()
	if !c.Capped {
		cmd = cmd.AppendDocument("sort", ascending)
	}
	hinted := slices.ContainsFunc(c.Indexes, func(spec bson.Raw) bool {
		e, _ := rawbson.Lookup(spec, "name")
		name, _ := e.Text()
		return name == "_id_"
	})
	if hinted && !c.Capped {
		// Of two indexes that give the order this one has every document.
		cmd = cmd.AppendDocument("hint", ascending)
	}
	docs := s.read(ctx, c.NS.DB(), bson.Raw(cmd.Build()))
	if !c.NS.IsSystemViews() {
		return docs
	}
	return func(yield func(bson.Raw, error) bool) {
		for doc, err := range docs {
			// A link ignores views that are invalid to the server.
			if (err != nil || mongo.IsView(c.NS.DB(), doc)) && !yield(doc, err) {
				return
			}
		}
	}
}

// read runs a command that answers with a cursor and yields its documents, which
// are views into the replies.
func (s cluster) read(ctx context.Context, db string, cmd bson.Raw) iter.Seq2[bson.Raw, error] {
	return func(yield func(bson.Raw, error) bool) {
		reply, err := s.Call(ctx, mongo.Command{DB: db, Body: cmd})
		for batch := "firstBatch"; ; batch = "nextBatch" {
			if err != nil {
				yield(nil, err)
				return
			}
			id, ns, docs, err2 := cursorOf(reply, batch)
			if err2 != nil {
				yield(nil, err2)
				return
			}
			it := rawbson.NewIter(docs)
			for it.Next() {
				doc, ok := it.Document()
				if !ok {
					yield(nil, fmt.Errorf("%w: %s.%s is no document", errReply, batch, it.Name()))
					return
				}
				if !yield(doc, nil) {
					s.kill(ctx, id, ns)
					return
				}
			}
			if it.Err() != nil {
				yield(nil, it.Err())
				return
			}
			if id == 0 {
				return
			}
			more := bsoncore.NewDocumentBuilder().AppendInt64("getMore", id).AppendString("collection", ns.Collection()).Build()
			reply, err = s.Call(ctx, mongo.Command{DB: ns.DB(), Body: bson.Raw(more)})
		}
	}
}

// kill ends a cursor that was not read to its end. If that fails, the server
// ends it some time later.
func (s cluster) kill(ctx context.Context, id int64, ns oplog.Namespace) {
	if id == 0 {
		return
	}
	cmd := bsoncore.NewDocumentBuilder().AppendString("killCursors", ns.Collection()).
		AppendArray("cursors", bsoncore.NewArrayBuilder().AppendInt64(id).Build()).Build()
	_, _ = s.Call(ctx, mongo.Command{DB: ns.DB(), Body: bson.Raw(cmd)})
}

func cursorOf(reply bson.Raw, batch string) (id int64, ns oplog.Namespace, docs bson.Raw, err error) {
	e, _ := rawbson.Lookup(reply, "cursor")
	cursor, _ := e.Document()
	idElem, _ := rawbson.Lookup(cursor, "id")
	id, hasID := idElem.Int64()
	nsElem, _ := rawbson.Lookup(cursor, "ns")
	name, hasNS := nsElem.Text()
	batchElem, _ := rawbson.Lookup(cursor, batch)
	docs, hasBatch := batchElem.Array()
	if !hasID || !hasNS || !hasBatch {
		return 0, "", nil, fmt.Errorf("%w: cursor with id, ns and %s", errReply, batch)
	}
	return id, oplog.Namespace(name), docs, nil
}

type recorded struct{ state memstore.State }

func (recorded) plain() bool { return true }

// collections implements Side.
func (s recorded) collections(context.Context) ([]memstore.CollectionState, error) {
	return slices.DeleteFunc(slices.Clone(s.state.Collections), func(c memstore.CollectionState) bool { return isSystem(c.NS.DB()) }), nil
}

// documents implements Side.
func (recorded) documents(_ context.Context, c *memstore.CollectionState) iter.Seq2[bson.Raw, error] {
	docs := c.Documents
	if !c.Capped {
		docs = slices.SortedStableFunc(slices.Values(docs), byID)
	}
	return func(yield func(bson.Raw, error) bool) {
		for _, doc := range docs {
			if !yield(doc, nil) {
				return
			}
		}
	}
}
