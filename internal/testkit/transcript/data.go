package transcript

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/memstore"
	"github.com/oplogrep/replicator/internal/wire"
	"github.com/oplogrep/replicator/oplog"
)

// compareData compares the member's data with after/. It is read by commands, as
// after/ was.
func (p *player) compareData(ctx context.Context) error {
	got, err := p.data(ctx)
	if err != nil {
		return err
	}
	for _, what := range memstore.Diff(p.after, got) {
		p.found = append(p.found, Difference{Part: PartData, What: what})
	}
	for _, want := range p.after.Collections {
		i := slices.IndexFunc(got.Collections, func(c memstore.CollectionState) bool { return c.NS == want.NS })
		if i >= 0 && !p.pairs.match(kindUUID, uuidKey(want.UUID), uuidKey(got.Collections[i].UUID)) {
			p.found = append(p.found, Difference{Part: PartData, Path: string(want.NS), What: fmt.Sprintf("%s is not the UUID that stands for %s", got.Collections[i].UUID, want.UUID)})
		}
	}
	return nil
}

// uuidKey returns the bytes of a UUID as a BSON value.
func uuidKey(u oplog.UUID) string {
	return string(bsoncore.AppendBinary(nil, bson.TypeBinaryUUID, u[:]))
}

func (p *player) data(ctx context.Context) (memstore.State, error) {
	var state memstore.State
	reply, err := must(ctx, p.conn, "admin", bson.D{{Key: "listDatabases", Value: int32(1)}, {Key: "nameOnly", Value: true}})
	if err != nil {
		return state, err
	}
	e, _ := rawbson.Lookup(reply, "databases")
	dbs, _ := statements(&e)
	for _, doc := range dbs {
		e, _ := rawbson.Lookup(doc, "name")
		db, _ := e.Text()
		if db == "local" || db == "admin" || db == "config" {
			continue
		}
		listed, err := all(ctx, p.conn, db, bson.D{{Key: "listCollections", Value: int32(1)}})
		if err != nil {
			return state, err
		}
		for _, doc := range listed {
			c, err := p.collection(ctx, db, doc)
			if err != nil {
				return state, err
			}
			state.Collections = append(state.Collections, c)
		}
	}
	slices.SortFunc(state.Collections, func(a, b memstore.CollectionState) int { return strings.Compare(string(a.NS), string(b.NS)) })
	return state, nil
}

// collection reads one collection that listCollections shows.
func (p *player) collection(ctx context.Context, db string, shown bson.Raw) (memstore.CollectionState, error) {
	var c memstore.CollectionState
	it := rawbson.NewIter(shown)
	for it.Next() {
		switch it.Name() {
		case "name":
			name, _ := it.Text()
			c.NS = oplog.NewNamespace(db, name)
		case "type":
			c.Type, _ = it.Text()
		case "options":
			c.Options, _ = it.Document()
		case "info":
			info, _ := it.Document()
			e, _ := rawbson.Lookup(info, "uuid")
			_, id, _ := e.Binary()
			copy(c.UUID[:], id)
		}
	}
	capped, _ := rawbson.Lookup(c.Options, "capped")
	c.Capped, _ = capped.Bool()
	if c.Type != memstore.TypeCollection {
		return c, nil
	}
	name := c.NS.Collection()
	order := bson.D{{Key: "_id", Value: int32(1)}}
	if c.Capped {
		order = bson.D{{Key: "$natural", Value: int32(1)}}
	}
	var err error
	if c.Documents, err = all(ctx, p.conn, db, bson.D{{Key: "find", Value: name}, {Key: "sort", Value: order}}); err != nil {
		return c, err
	}
	for i, doc := range c.Documents {
		c.Documents[i] = p.restored(doc)
	}
	if c.NS.IsBuckets() {
		p.reorder(c.NS, c.Documents)
	}
	c.Indexes, err = all(ctx, p.conn, db, bson.D{{Key: "listIndexes", Value: name}})
	return c, err
}

// reorder puts the columns of buckets into the order that they have in after/: see
// ruleColumns.
func (p *player) reorder(ns oplog.Namespace, buckets []bson.Raw) {
	i := slices.IndexFunc(p.after.Collections, func(c memstore.CollectionState) bool { return c.NS == ns })
	if i < 0 {
		return
	}
	wanted := map[string]bson.Raw{}
	for _, doc := range p.after.Collections[i].Documents {
		id, _ := rawbson.Lookup(doc, "_id")
		wanted[string(id.Value)] = doc
	}
	for i, doc := range buckets {
		id, _ := rawbson.Lookup(doc, "_id")
		if want, ok := wanted[string(id.Value)]; ok {
			buckets[i] = reordered(doc, want)
		}
	}
}

// reordered returns a bucket with its columns in the order of another one, if they
// have the same.
func reordered(bucket, like bson.Raw) bson.Raw {
	at, b := bsoncore.AppendDocumentStart(nil)
	for it := rawbson.NewIter(bucket); it.Next(); {
		columns, ok := it.Document()
		if !ok || !it.Is("data") {
			b = appendElem(b, it.Key, it.Elem)
			continue
		}
		e, _ := rawbson.Lookup(like, "data")
		order, _ := e.Document()
		var data int32
		data, b = bsoncore.AppendDocumentElementStart(b, "data")
		for o := rawbson.NewIter(order); o.Next(); {
			if column, ok := rawbson.Lookup(columns, o.Name()); ok {
				b = appendElem(b, column.Key, column)
			}
		}
		b, _ = bsoncore.AppendDocumentEnd(b, data)
	}
	b, _ = bsoncore.AppendDocumentEnd(b, at)
	if len(b) != len(bucket) { // not the same columns
		return bucket
	}
	return b
}

// all runs a command that gives a cursor and returns all documents.
func all(ctx context.Context, conn *wire.Client, db string, cmd bson.D) ([]bson.Raw, error) {
	reply, err := must(ctx, conn, db, cmd)
	var docs []bson.Raw
	for {
		if err != nil {
			return nil, err
		}
		e, _ := rawbson.Lookup(reply, "cursor")
		cursor, _ := e.Document()
		var id int64
		var collection string
		it := rawbson.NewIter(cursor)
		for it.Next() {
			switch it.Name() {
			case "id":
				id, _ = it.Int64()
			case "ns":
				ns, _ := it.Text()
				collection = oplog.Namespace(ns).Collection()
			case "firstBatch", "nextBatch":
				batch, _ := statements(&it.Elem)
				docs = append(docs, batch...)
			}
		}
		if id == 0 {
			return docs, nil
		}
		reply, err = must(ctx, conn, db, bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: collection}})
	}
}

// restored returns a document with the values that were generated, by the server's
// clock or at random, as they were recorded.
func (p *player) restored(doc bson.Raw) bson.Raw {
	doc = slices.Clone(doc)
	p.restore(doc)
	return doc
}

// restore does so in place: the values have the same size.
func (p *player) restore(doc bson.Raw) {
	it := rawbson.NewIter(doc)
	for it.Next() {
		switch it.Type {
		case bson.TypeEmbeddedDocument, bson.TypeArray:
			p.restore(it.Value)
		case bson.TypeObjectID:
			if want, ok := p.pairs.original(kindID, string(it.Value)); ok {
				copy(it.Value, want)
			}
		case bson.TypeDateTime, bson.TypeTimestamp:
			if want, ok := p.pairs.original(kindClock, string(it.Value)); ok {
				copy(it.Value, want)
			}
		default:
		}
	}
}
