package memstore

import (
	"encoding/binary"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/txn"
)

// TB is what the helpers need of a test; rapid has it too.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
}

// log makes entries with ascending timestamps.
type log struct {
	t TB
	n uint32
}

// uid returns the nth UUID of the tests, none for 0.
func uid(n int) oplog.UUID {
	var u oplog.UUID
	binary.BigEndian.PutUint64(u[8:], uint64(n))
	return u
}

// entry parses what a server would log; more holds further fields.
func (l *log) entry(op string, ns oplog.Namespace, u oplog.UUID, o any, more ...bson.E) *oplog.Entry {
	l.t.Helper()
	l.n++
	d := bson.D{{Key: "op", Value: op}, {Key: "ns", Value: string(ns)}}
	if !u.IsZero() {
		d = append(d, bson.E{Key: "ui", Value: u.Binary()})
	}
	d = append(d, bson.E{Key: "o", Value: o})
	d = append(d, more...)
	d = append(
		d, bson.E{Key: "ts", Value: bson.Timestamp{T: 1, I: l.n}}, bson.E{Key: "t", Value: int64(1)},
		bson.E{Key: "v", Value: int64(2)}, bson.E{Key: "wall", Value: bson.DateTime(1)},
	)
	e, err := oplog.ParseEntry(must.Marshal(l.t, d))
	if err != nil {
		l.t.Fatalf("parse %v: %v", d, err)
	}
	return &e
}

func (l *log) insert(ns oplog.Namespace, u int, doc any) *oplog.Entry {
	l.t.Helper()
	return l.entry("i", ns, uid(u), doc)
}

func (l *log) update(ns oplog.Namespace, u int, id, o any, more ...bson.E) *oplog.Entry {
	l.t.Helper()
	return l.entry("u", ns, uid(u), o, append(more, bson.E{Key: "o2", Value: bson.D{{Key: "_id", Value: id}}})...)
}

func (l *log) delete(ns oplog.Namespace, u int, id any) *oplog.Entry {
	l.t.Helper()
	return l.entry("d", ns, uid(u), bson.D{{Key: "_id", Value: id}})
}

func (l *log) command(db string, u int, o bson.D) *oplog.Entry {
	l.t.Helper()
	return l.entry("c", oplog.NewNamespace(db, "$cmd"), uid(u), o)
}

func indexSpec(name string, more ...bson.E) bson.D {
	return append(bson.D{{Key: "v", Value: 2}, {Key: "key", Value: bson.D{{Key: name, Value: 1}}}, {Key: "name", Value: name}}, more...)
}

var idSpec = bson.D{{Key: "v", Value: 2}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "name", Value: "_id_"}}

// create is a create as the server logs it: with the index on _id last.
func (l *log) create(ns oplog.Namespace, u int, options ...bson.E) *oplog.Entry {
	l.t.Helper()
	o := append(bson.D{{Key: "create", Value: ns.Collection()}}, options...)
	return l.command(ns.DB(), u, append(o, bson.E{Key: "idIndex", Value: idSpec}))
}

func (l *log) rename(from, to oplog.Namespace, u, dropTarget int) *oplog.Entry {
	l.t.Helper()
	o := bson.D{{Key: "renameCollection", Value: string(from)}, {Key: "to", Value: string(to)}, {Key: "stayTemp", Value: false}}
	if dropTarget != 0 {
		o = append(o, bson.E{Key: "dropTarget", Value: uid(dropTarget).Binary()})
	}
	return l.command(from.DB(), u, o)
}

func (l *log) drop(ns oplog.Namespace, u int) *oplog.Entry {
	l.t.Helper()
	return l.command(ns.DB(), u, bson.D{{Key: "drop", Value: ns.Collection()}})
}

func (l *log) createIndex(ns oplog.Namespace, u int, spec bson.D) *oplog.Entry {
	l.t.Helper()
	return l.command(ns.DB(), u, append(bson.D{{Key: "createIndexes", Value: ns.Collection()}}, spec...))
}

func (l *log) dropIndex(ns oplog.Namespace, u int, name string) *oplog.Entry {
	l.t.Helper()
	return l.command(ns.DB(), u, bson.D{{Key: "dropIndexes", Value: ns.Collection()}, {Key: "index", Value: name}})
}

func (l *log) build(what string, u, build int, specs ...bson.D) *oplog.Entry {
	l.t.Helper()
	return l.command("d", u, bson.D{
		{Key: what, Value: "c"}, {Key: "indexBuildUUID", Value: uid(build).Binary()}, {Key: "indexes", Value: specs},
	})
}

func (l *log) collMod(ns oplog.Namespace, u int, changes ...bson.E) *oplog.Entry {
	l.t.Helper()
	return l.command(ns.DB(), u, append(bson.D{{Key: "collMod", Value: ns.Collection()}}, changes...))
}

// apply applies entries, in one assembly of transactions, up to the first
// error.
func apply(t TB, s *Store, mode Mode, entries ...*oplog.Entry) error {
	t.Helper()
	a, err := NewApplier(s, mode, txn.Config{})
	if err != nil {
		t.Fatalf("new applier: %v", err)
	}
	defer a.Close() //nolint:errcheck // nothing is spilled
	for _, e := range entries {
		if err := a.Apply(e); err != nil {
			return err
		}
	}
	return nil
}

func mustApply(t TB, s *Store, mode Mode, entries ...*oplog.Entry) {
	t.Helper()
	if err := apply(t, s, mode, entries...); err != nil {
		t.Fatalf("%s: %v", mode, err)
	}
}

// docs returns a collection's documents in natural order, as JSON.
func docs(s *Store, ns oplog.Namespace) []string {
	c, ok := s.Collection(ns)
	if !ok {
		return []string{"no collection"}
	}
	all := []string{}
	for doc := range c.natural() {
		all = append(all, relaxed(doc))
	}
	return all
}

func relaxed(doc bson.Raw) string {
	text, err := bson.MarshalExtJSON(doc, false, false)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// names returns the names of all collections.
func names(s *Store) []string {
	all := []string{}
	for _, c := range s.Collections() {
		all = append(all, string(c.NS()))
	}
	return all
}

func wantEqual[T any](t testing.TB, what string, got, want T) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// wantIdempotent applies all entries, then every prefix, all, and every suffix
// again, in initial-sync mode: the state must stay the same.
func wantIdempotent(t TB, s *Store, entries ...*oplog.Entry) {
	t.Helper()
	mustApply(t, s, InitialSync, entries...)
	want := s.Snapshot()
	groups := group(t, entries)
	for i := range len(groups) + 1 {
		for _, part := range [][]Group{groups[:i], groups, groups[i:]} {
			for n := range part {
				if err := s.ApplyGroup(&part[n], InitialSync); err != nil {
					t.Fatalf("with prefix and suffix at %d: %v", i, err)
				}
			}
		}
		if diff := Diff(want, s.Snapshot()); len(diff) > 0 {
			t.Fatalf("with prefix and suffix at %d: %s", i, diff)
		}
	}
}

func group(t TB, entries []*oplog.Entry) []Group {
	t.Helper()
	g, err := NewGrouper(txn.Config{})
	if err != nil {
		t.Fatalf("new grouper: %v", err)
	}
	defer g.Close() //nolint:errcheck // nothing is spilled
	var groups []Group
	for _, e := range entries {
		made, err := g.Add(e)
		if err != nil {
			t.Fatalf("group: %v", err)
		}
		groups = append(groups, made)
	}
	return groups
}
