package catalog

import (
	"context"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// Type is the type of a namespace.
type Type uint8

// The types of a namespace.
const (
	TypeCollection Type = iota + 1
	TypeView
	TypeTimeseries // the view over a time-series collection's buckets
)

// String returns the type as listCollections names it.
func (t Type) String() string {
	switch t {
	case TypeCollection:
		return "collection"
	case TypeView:
		return "view"
	case TypeTimeseries:
		return "timeseries"
	}
	return fmt.Sprintf("Type(%d)", uint8(t))
}

// Collection is one namespace of the target. It is immutable: a change creates a new one.
type Collection struct {
	NS   oplog.Namespace
	Type Type
	// Ordered is set if operations should be applied in the log's order, all through one
	// writer, if the record says so too (see package applier): the collection is capped,
	// has a collation under which different _ids may be equal, or has a unique index
	// other than that on _id.
	Ordered bool
	// Capped is set if it is capped.
	Capped bool
	// Direct is set if transactions cannot write to it: capped collections, buckets of
	// time-series collections, system collections.
	Direct bool
	// UUID is the target's UUID, zero for a view.
	UUID oplog.UUID
	// Options are those of listCollections.
	Options bson.Raw
}

// read builds a Collection from a document of listCollections, and reads its indexes if
// it has any. It returns nil for a collection that was dropped meanwhile.
func (c *Catalog) read(ctx context.Context, db string, doc bson.Raw) (*Collection, error) {
	coll, err := listed(db, doc)
	// The collection of view definitions has only the index on _id, and none of the roles
	// for writing to any database may list it.
	if err != nil || coll.Type != TypeCollection || coll.Ordered || coll.NS.IsSystemViews() {
		return coll, err
	}
	specs, err := Indexes(ctx, c.target, coll.NS)
	if servererr.IsNoNamespace(err) || servererr.IsInvalidView(err) {
		// The server then looks for a view of that name, and cannot read all views.
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, spec := range specs {
		if constrains(spec) {
			coll.Ordered = true
		}
	}
	return coll, nil
}

// listed parses one document of listCollections. Ordered does not consider the indexes
// yet.
func listed(db string, doc bson.Raw) (*Collection, error) {
	fault := func(field string) error {
		return fmt.Errorf("read the collections of %s: one without a usable %s: %s", db, field, doc)
	}
	name, _ := rawbson.Lookup(doc, "name")
	text, ok := name.Text()
	if !ok || text == "" {
		return nil, fault("name")
	}
	coll := &Collection{NS: oplog.NewNamespace(db, text)}
	kind, _ := rawbson.Lookup(doc, "type")
	switch t, _ := kind.Text(); t {
	case "collection":
		coll.Type = TypeCollection
	case "view":
		coll.Type = TypeView
	case "timeseries":
		coll.Type = TypeTimeseries
	default:
		return nil, fault("type")
	}
	options, _ := rawbson.Lookup(doc, "options")
	if coll.Options, ok = options.Document(); !ok {
		return nil, fault("options")
	}
	if coll.Type != TypeCollection {
		return coll, nil
	}
	info, _ := rawbson.Lookup(doc, "info")
	inner, _ := info.Document()
	uuid, _ := rawbson.Lookup(inner, "uuid")
	subtype, data, ok := uuid.Binary()
	if !ok || subtype != bson.TypeBinaryUUID || len(data) != len(coll.UUID) {
		return nil, fault("info.uuid")
	}
	coll.UUID = oplog.UUID(data)
	capped, _ := rawbson.Lookup(coll.Options, "capped")
	coll.Capped = capped.Truth()
	coll.Ordered = coll.Capped || collated(coll.Options)
	coll.Direct = coll.Capped || system(coll.NS)
	return coll, nil
}

// Collated reports whether the collection's collation is not the simple one.
func (c *Collection) Collated() bool { return collated(c.Options) }

// collated reports whether a collection's collation is not the simple one. For the simple
// one the server lists none.
func collated(options bson.Raw) bool {
	e, ok := rawbson.Lookup(options, "collation")
	if !ok {
		return false
	}
	collation, _ := e.Document()
	locale, _ := rawbson.Lookup(collation, "locale")
	name, isText := locale.Text()
	return !isText || name != "simple"
}

// system reports whether the name of a collection excludes it from transactions.
func system(ns oplog.Namespace) bool {
	return oplog.IsServerDB(ns.DB()) || strings.HasPrefix(ns.Collection(), "system.")
}

// constrains reports whether an index makes the server refuse documents because of
// others: a unique one other than that on _id, or one that is about to become unique.
func constrains(spec bson.Raw) bool {
	unique, _ := rawbson.Lookup(spec, "unique")
	prepare, _ := rawbson.Lookup(spec, "prepareUnique")
	if !unique.Truth() && !prepare.Truth() {
		return false
	}
	key, _ := rawbson.Lookup(spec, "key")
	fields, _ := key.Document()
	it := rawbson.NewIter(fields)
	return !it.Next() || !it.Is("_id") || it.Next()
}
