package replay_test

import (
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/memstore"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// begun is the timestamp of the data that a test starts with.
var begun = bson.Timestamp{T: 1, I: 1}

// load puts a state into a store. The collections in extra, by name, are made
// empty.
func load(t *testing.T, store *storage.Store, state memstore.State, extra map[oplog.Namespace]oplog.UUID) {
	t.Helper()
	write(t, store, func(w *storage.Writer) error {
		u := w.Begin(bson.Timestamp{})
		for ns, id := range extra {
			if err := u.Create(ns, id, document(t, bson.D{}), idIndex(t)); err != nil {
				return err
			}
		}
		for i := range state.Collections {
			c := &state.Collections[i]
			if c.Type == memstore.TypeCollection {
				loadCollection(t, u, c)
			}
		}
		u.Commit(begun)
		return nil
	})
}

func loadCollection(t *testing.T, u *storage.Unit, c *memstore.CollectionState) {
	t.Helper()
	u.Relax() // a copy that was taken while writes went on
	var id bson.Raw
	for _, spec := range c.Indexes {
		if indexName(spec) == "_id_" {
			id = spec
		}
	}
	check(t, u.Create(c.NS, c.UUID, c.Options, id))
	for _, doc := range c.Documents {
		key, _ := rawbson.Lookup(doc, "_id")
		coll, _ := u.View().ByUUID(c.UUID)
		if old, ok := coll.Get(key.Raw()); ok {
			check(t, u.Update(c.UUID, old.ID, doc))
			continue
		}
		if _, err := u.Insert(c.UUID, doc); err != nil {
			t.Fatalf("load %s into %s: %v", doc, c.NS, err)
		}
	}
	for _, spec := range c.Indexes {
		if name := indexName(spec); name != "_id_" && !isClustered(spec) {
			check(t, u.AddIndex(c.UUID, spec, oplog.UUID{}))
		}
	}
}

// snapshot is what a view shows of users' databases, views included.
func snapshot(t *testing.T, v storage.View) memstore.State {
	t.Helper()
	var state memstore.State
	for _, c := range v.Collections("") {
		if memstore.IgnoreSystemDatabases(c.NS) {
			continue
		}
		shown := memstore.CollectionState{
			NS: c.NS, Type: memstore.TypeCollection, Options: c.Options, UUID: c.UUID, Capped: c.CappedBytes > 0,
		}
		for _, i := range c.Indexes {
			if !i.Building {
				shown.Indexes = append(shown.Indexes, opwrite.ListedIndex(i.Spec))
			}
		}
		for r := range c.Natural(0) {
			shown.Documents = append(shown.Documents, r.Doc)
		}
		state.Collections = append(state.Collections, shown)
	}
	// The oracle knows how views are shown, and sorts.
	store, err := memstore.Load(state, memstore.Config{})
	check(t, err)
	return store.Snapshot()
}

// throughJSON takes a state's catalog through extended JSON, as that of a
// recording was.
func throughJSON(t *testing.T, state memstore.State) memstore.State {
	t.Helper()
	again := func(doc bson.Raw) bson.Raw {
		text, err := bson.MarshalExtJSON(doc, true, false)
		check(t, err)
		var d bson.D
		check(t, bson.UnmarshalExtJSON(text, true, &d))
		return document(t, d)
	}
	state.Collections = slices.Clone(state.Collections)
	for i := range state.Collections {
		c := &state.Collections[i]
		c.Options = again(c.Options)
		c.Indexes = slices.Clone(c.Indexes)
		for n := range c.Indexes {
			c.Indexes[n] = again(c.Indexes[n])
		}
	}
	return state
}

func indexName(spec bson.Raw) string {
	e, _ := rawbson.Lookup(spec, "name")
	name, _ := e.Text()
	return name
}

func isClustered(spec bson.Raw) bool {
	e, ok := rawbson.Lookup(spec, "clustered")
	on, _ := e.Bool()
	return ok && on
}

func idIndex(t *testing.T) bson.Raw {
	return document(t, bson.D{{Key: "v", Value: int32(2)}, {Key: "key", Value: bson.D{{Key: "_id", Value: int32(1)}}}, {Key: "name", Value: "_id_"}})
}

func document(t *testing.T, d bson.D) bson.Raw {
	t.Helper()
	doc, err := bson.Marshal(d)
	check(t, err)
	return doc
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, store *storage.Store, fn func(w *storage.Writer) error) {
	t.Helper()
	check(t, store.Write(fn))
}

func read(t *testing.T, store *storage.Store, fn func(r *storage.Reader)) {
	t.Helper()
	check(t, store.Read(func(r *storage.Reader) error {
		fn(r)
		return nil
	}))
}
