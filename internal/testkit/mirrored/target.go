package mirrored

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/memstore"
)

// writtenTogether is how many bytes of documents go into one command, about.
const writtenTogether = 4 << 20

// Fill writes data to a cluster by commands, as a copy would.
func Fill(ctx context.Context, target mongo.Caller, state memstore.State) error {
	// Collections before the views over them.
	for _, views := range []bool{false, true} {
		for i := range state.Collections {
			c := &state.Collections[i]
			switch {
			case c.NS.IsSystemViews(), (c.Type == memstore.TypeView) != views:
				continue
			case c.NS.IsBuckets():
				continue // made with the collection over them, and filled below
			}
			if err := fillCollection(ctx, target, c); err != nil {
				return fmt.Errorf("fill %s: %w", c.NS, err)
			}
		}
	}
	for i := range state.Collections {
		if c := &state.Collections[i]; c.NS.IsBuckets() {
			if err := fillDocuments(ctx, target, c); err != nil {
				return fmt.Errorf("fill %s: %w", c.NS, err)
			}
		}
	}
	return nil
}

func fillCollection(ctx context.Context, target mongo.Caller, c *memstore.CollectionState) error {
	create := bsoncore.NewDocumentBuilder().AppendString("create", c.NS.Collection())
	for it := rawbson.NewIter(c.Options); it.Next(); {
		create = create.AppendValue(it.Name(), bsoncore.Value{Type: bsoncore.Type(it.Type), Data: it.Value})
	}
	if err := run(ctx, target, c.NS.DB(), create.Build()); err != nil {
		return err
	}
	if c.Type != memstore.TypeCollection {
		return nil
	}
	specs, n := bsoncore.NewArrayBuilder(), 0
	for _, spec := range c.Indexes {
		name, _ := rawbson.Lookup(spec, "name")
		clustered, _ := rawbson.Lookup(spec, "clustered")
		if text, _ := name.Text(); text == "_id_" || clustered.Truth() {
			continue
		}
		specs, n = specs.AppendDocument(bsoncore.Document(spec)), n+1
	}
	if n > 0 {
		cmd := bsoncore.NewDocumentBuilder().AppendString("createIndexes", c.NS.Collection()).AppendArray("indexes", specs.Build())
		if err := run(ctx, target, c.NS.DB(), cmd.Build()); err != nil {
			return err
		}
	}
	return fillDocuments(ctx, target, c)
}

// fillDocuments writes the documents. A moving copy may have two with one _id, of
// which the last counts.
func fillDocuments(ctx context.Context, target mongo.Caller, c *memstore.CollectionState) error {
	seen := map[string]int{}
	var docs []bson.Raw
	for _, doc := range c.Documents {
		id, _ := rawbson.Lookup(doc, "_id")
		key := string(byte(id.Type)) + string(id.Value)
		if at, twice := seen[key]; twice {
			docs[at] = doc
			continue
		}
		seen[key] = len(docs)
		docs = append(docs, doc)
	}
	for len(docs) > 0 {
		n, size := 0, 0
		for n < len(docs) && n < 1000 && (n == 0 || size+len(docs[n]) <= writtenTogether) {
			size += len(docs[n])
			n++
		}
		body := bsoncore.NewDocumentBuilder().AppendString("insert", c.NS.Collection()).AppendBoolean("ordered", true).Build()
		reply, err := target.Call(ctx, mongo.Command{DB: c.NS.DB(), Body: bson.Raw(body), Sequence: "documents", Docs: docs[:n]})
		if err != nil {
			return err
		}
		if faults, err := mongo.WriteErrors(reply); err != nil || len(faults) > 0 {
			return fmt.Errorf("insert: refused: %s", reply)
		}
		docs = docs[n:]
	}
	return nil
}

func run(ctx context.Context, target mongo.Caller, db string, cmd bsoncore.Document) error {
	_, err := target.Call(ctx, mongo.Command{DB: db, Body: bson.Raw(cmd)})
	return err
}
