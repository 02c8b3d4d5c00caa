package workload_test

import (
	"bytes"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/bench/workload"
	"github.com/oplogrep/replicator/internal/serverupdate"
	"github.com/oplogrep/replicator/internal/testkit/memstore"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/txn"
	"github.com/oplogrep/replicator/oplog/update"
)

// tb is a test, or a check of a property.
type tb interface {
	Helper()
	Error(args ...any)
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// reduced is a preset with fewer operations: enough to meet all that it does.
func reduced(w workload.Workload) workload.Workload {
	w.Seed = 7
	ratio := float64(w.Documents) / float64(w.Ops)
	w.Ops = min(w.Ops, 3_000)
	if w.Size > 1<<14 {
		w.Ops = 200
	}
	w.Documents = int(float64(w.Ops) * ratio)
	w.Namespaces = min(w.Namespaces, 500)
	return w
}

func ops(t tb, w workload.Workload) (*workload.Generator, []workload.Op) {
	t.Helper()
	g, err := workload.New(w)
	if err != nil {
		t.Fatal(err)
	}
	var all []workload.Op
	for {
		op, ok, err := g.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return g, all
		}
		all = append(all, op)
	}
}

func collections(t tb, g *workload.Generator) []workload.Collection {
	t.Helper()
	all, err := g.Collections()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// state is what a server holds that has the collections.
func state(all []workload.Collection) memstore.State {
	var s memstore.State
	for _, c := range all {
		s.Collections = append(s.Collections, memstore.CollectionState{
			NS: c.NS, UUID: c.UUID, Type: memstore.TypeCollection, Options: bson.Raw{5, 0, 0, 0, 0},
			Indexes: c.Indexes, Documents: c.Documents,
		})
	}
	return s
}

func load(t tb, s memstore.State) *memstore.Store {
	t.Helper()
	store, err := memstore.Load(s, memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

type entry struct {
	raw bson.Raw
	ops int
}

func entries(t tb, w workload.Workload, first oplog.OpTime) []entry {
	t.Helper()
	l, err := workload.NewLog(w, first)
	if err != nil {
		t.Fatal(err)
	}
	var all []entry
	for last := first; ; {
		raw, n, ok, err := l.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return all
		}
		e, err := oplog.ParseEntry(raw)
		if err != nil {
			t.Fatalf("entry %d: %v", len(all), err)
		}
		if !e.OpTime.After(last) || e.OpTime != l.Last() {
			t.Fatalf("entry %d has %v after %v, and Last is %v", len(all), e.OpTime, last, l.Last())
		}
		last = e.OpTime
		all = append(all, entry{raw, n})
	}
}

// replay applies entries as a member in steady state does, and returns what it had
// to tolerate.
func replay(t tb, store *memstore.Store, all []entry) memstore.Counters {
	t.Helper()
	a, err := memstore.NewApplier(store, memstore.Steady, txn.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close() //nolint:errcheck // nothing was spilled
	for i := range all {
		e, err := oplog.ParseEntry(all[i].raw)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Apply(&e); err != nil {
			t.Fatalf("entry %d: %v", i, err)
		}
	}
	return store.Counters()
}

// client carries operations out as a server does for a client, and fails where one of
// them meets what it must not, or where the server would log something else for it.
type client struct {
	t    tb
	docs map[oplog.Namespace]map[string]bson.Raw
}

func newClient(t tb, all []workload.Collection) *client {
	t.Helper()
	c := &client{t: t, docs: map[oplog.Namespace]map[string]bson.Raw{}}
	for _, coll := range all {
		c.docs[coll.NS] = map[string]bson.Raw{}
		for _, doc := range coll.Documents {
			c.docs[coll.NS][keyOf(doc.Lookup("_id"))] = doc
		}
	}
	return c
}

func keyOf(id bson.RawValue) string { return string(append([]byte{byte(id.Type)}, id.Value...)) }

func (c *client) do(i int, op *workload.Op) {
	c.t.Helper()
	docs, ok := c.docs[op.NS]
	if !ok {
		c.t.Fatalf("operation %d: no collection %s", i, op.NS)
	}
	key := keyOf(op.ID)
	doc, found := docs[key]
	switch op.Kind {
	case oplog.KindInsert:
		if found {
			c.t.Fatalf("operation %d: insert of %s, which is there", i, op.ID)
		}
		docs[key] = op.Doc
	case oplog.KindDelete, oplog.KindUpdate:
		if !found {
			c.t.Fatalf("operation %d: %s of %s, which is not there", i, op.Kind, op.ID)
		}
		delete(docs, key)
		if op.Kind == oplog.KindUpdate {
			docs[key] = c.update(i, doc, op)
		}
	default:
		c.t.Fatalf("operation %d: kind %v", i, op.Kind)
	}
}

func (c *client) update(i int, doc bson.Raw, op *workload.Op) bson.Raw {
	c.t.Helper()
	if op.Doc != nil {
		if op.Doc.Lookup("_id").String() != op.ID.String() || bytes.Equal(op.Doc, doc) {
			c.t.Fatalf("operation %d: replacement of %v by %v", i, doc, op.Doc)
		}
		return op.Doc
	}
	u := bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: op.Modifier}
	if op.IsPipeline {
		u.Type = bson.TypeArray
	}
	s, err := serverupdate.Compile(u, serverupdate.Options{Log: serverupdate.LogDelta})
	if err != nil {
		c.t.Fatalf("operation %d: %v: %v", i, op.Modifier, err)
	}
	r, err := s.Apply(doc, serverupdate.NoMatch)
	if err != nil {
		c.t.Fatalf("operation %d: %v: %v", i, op.Modifier, err)
	}
	logged := r.Delta
	if op.IsPipeline {
		logged, _ = update.Diff(doc, r.Doc, update.EnvelopePadding)
	}
	if r.NoOp || !bytes.Equal(logged, op.Diff) {
		c.t.Fatalf("operation %d: for %v a server logs %v, and not %v, of %v", i, u, logged, op.Diff, doc)
	}
	applied, err := update.ApplyDelta(doc, op.Diff)
	if err != nil || !bytes.Equal(applied, r.Doc) {
		c.t.Fatalf("operation %d: %v makes %v (%v), and %v makes %v", i, op.Diff, applied, err, u, r.Doc)
	}
	return r.Doc
}

// state is what the client's operations have made.
func (c *client) state(all []workload.Collection) memstore.State {
	var after []workload.Collection
	for _, coll := range all {
		coll.Documents = nil
		for _, doc := range c.docs[coll.NS] {
			coll.Documents = append(coll.Documents, doc)
		}
		after = append(after, coll)
	}
	return state(after)
}
