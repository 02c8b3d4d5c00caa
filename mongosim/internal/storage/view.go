package storage

import (
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/oplog"
)

// View is the data at one time, or as a Unit sees it. It is valid within the
// Store.Read or Store.Write that it was made in.
type View struct{ v *view }

// Collection returns the collection with the name, if it exists at this time.
// Views and time-series collections are not collections here: the caller reads
// system.views.
func (v View) Collection(ns oplog.Namespace) (*Collection, bool) {
	tables, _ := v.v.s.names.Get(string(ns))
	return v.named(tables, ns)
}

func (v View) named(tables []*table, ns oplog.Namespace) (*Collection, bool) {
	for _, t := range tables {
		if m := seen(t.meta, v.v); m != nil && m.val.NS == ns {
			return &Collection{Meta: m.val.Meta, clustered: m.val.clustered, t: t, v: v}, true
		}
	}
	return nil, false
}

// NamedNow reports whether there is a collection of that name at present, and since when it has
// had it: the commit that created it, or renamed it to that. Uncommitted changes do not count.
func (v View) NamedNow(ns oplog.Namespace) (since bson.Timestamp, ok bool) {
	tables, _ := v.v.s.names.Get(string(ns))
	for _, t := range tables {
		x := committed(t.meta)
		if x == nil || x.gone || x.val.NS != ns {
			continue
		}
		for x.prev != nil && !x.prev.gone && x.prev.val.NS == ns {
			x = x.prev
		}
		return unpacked(x.ts), true
	}
	return bson.Timestamp{}, false
}

// ByUUID returns the collection with the UUID.
func (v View) ByUUID(u oplog.UUID) (*Collection, bool) {
	for _, t := range v.v.s.uuids[u] {
		if m := seen(t.meta, v.v); m != nil {
			return &Collection{Meta: m.val.Meta, clustered: m.val.clustered, t: t, v: v}, true
		}
	}
	return nil, false
}

// Collections returns the collections of a database, by name in byte order; of
// all databases if db is empty.
func (v View) Collections(db string) []*Collection {
	prefix := db
	if prefix != "" {
		prefix += "."
	}
	var all []*Collection
	v.v.s.names.Ascend(prefix, func(ns string, tables []*table) bool {
		if !strings.HasPrefix(ns, prefix) {
			return false
		}
		if c, ok := v.named(tables, oplog.Namespace(ns)); ok {
			all = append(all, c)
		}
		return true
	})
	return all
}

// Databases returns the names of databases that hold a collection, in byte order.
func (v View) Databases() []string {
	var all []string
	v.v.s.names.Scan(func(ns string, tables []*table) bool {
		db := oplog.Namespace(ns).DB()
		if len(all) > 0 && all[len(all)-1] == db {
			return true
		}
		if _, ok := v.named(tables, oplog.Namespace(ns)); ok {
			all = append(all, db)
		}
		return true
	})
	// The names of one database need not stand together: "a-b.c" is before "a.c".
	slices.Sort(all)
	return slices.Compact(all)
}
