package viewdef

import (
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// MaxDepth is the maximum depth of nested views.
const MaxDepth = 20

// Def is a view, or a time-series collection, as system.views defines it.
type Def struct {
	// On is the collection or view that it shows, of the same database.
	On string
	// Pipeline is the array of stages as stored.
	Pipeline bson.Raw
	// Collation as stored; nil for the simple one.
	Collation bson.Raw
	// Timeseries is true if On has the buckets of a time-series collection.
	Timeseries bool
}

// Lookup returns the view with the name, if there is one. One definition that
// is invalid makes all views of its database unusable, and the names that no
// collection has (ViewCatalog::lookup, jstests/core/views/invalid_system_views.js).
func Lookup(v storage.View, ns oplog.Namespace) (Def, bool, error) {
	if ns.IsSystemViews() {
		return Def{}, false, nil
	}
	if _, exists := v.Collection(ns); !exists {
		if err := checkViews(v, ns.DB()); err != nil {
			return Def{}, false, err
		}
	}
	return LookupUnchecked(v, ns)
}

// LookupUnchecked is Lookup for a command that does not care about other
// definitions: drop.
func LookupUnchecked(v storage.View, ns oplog.Namespace) (Def, bool, error) {
	coll, ok := v.Collection(oplog.NewNamespace(ns.DB(), "system.views"))
	if !ok || ns.IsSystemViews() {
		return Def{}, false, nil
	}
	rec, ok := coll.Get(bson.RawValue{Type: bson.TypeString, Value: bsoncore.AppendString(nil, string(ns))})
	if !ok {
		return Def{}, false, nil
	}
	def, err := parse(ns, rec.Doc)
	return def, err == nil, err
}

// parse reads a definition, and refuses the errors that the server does not skip
// (validateViewDefinitionBSON of durable_view_catalog.cpp, ViewCatalog::_reload).
func parse(ns oplog.Namespace, doc bson.Raw) (Def, error) {
	var def Def
	it := rawbson.NewIter(doc)
	for it.Next() {
		ok := true
		switch it.Name() {
		case "_id":
		case "viewOn":
			def.On, ok = it.Text()
			def.On = strings.Clone(def.On)
			ok = ok && validCollectionName(def.On)
		case "pipeline":
			def.Pipeline, ok = it.Array()
			if _, err := Stages(def.Pipeline); ok && err != nil {
				ok = false
			}
		case "collation":
			def.Collation, ok = it.Document()
		case "timeseries": // as 4.9 wrote it
		default:
			ok = false
		}
		if !ok {
			return Def{}, errInvalidView()
		}
	}
	if it.Err() != nil || def.On == "" || def.Pipeline == nil || !validCollectionName(ns.Collection()) {
		return Def{}, errInvalidView()
	}
	def.Timeseries = oplog.NewNamespace(ns.DB(), def.On) == ns.Buckets()
	return def, nil
}

// validCollectionName is NamespaceString::validCollectionName.
func validCollectionName(name string) bool {
	return name != "" && name[0] != '.' && !strings.Contains(name, "\x00")
}

func errInvalidView() error {
	return servererr.New(servererr.InvalidViewDefinition, "Invalid view definition detected in the view catalog. "+
		"Remove the invalid view manually to prevent disallowing any further usage of the view catalog.")
}

// checkViews refuses a database in which a definition is invalid.
func checkViews(v storage.View, db string) error {
	_, err := All(v, db)
	return err
}

// Named is a view with its name.
type Named struct {
	NS oplog.Namespace
	Def
}

// All returns the views of a database, by name in byte order.
func All(v storage.View, db string) ([]Named, error) {
	coll, ok := v.Collection(oplog.NewNamespace(db, "system.views"))
	if !ok {
		return nil, nil
	}
	var views []Named
	for rec := range coll.ByID(storage.Bound{}, storage.Bound{}, false) {
		id, _ := rawbson.Lookup(rec.Doc, "_id")
		name, ok := id.Text()
		ns := oplog.Namespace(strings.Clone(name))
		if !ok || ns.DB() != db {
			return nil, errInvalidView()
		}
		def, err := parse(ns, rec.Doc)
		if err != nil {
			return nil, err
		}
		views = append(views, Named{ns, def})
	}
	return views, nil
}

// Resolved is a resolved view.
type Resolved struct {
	// NS is the collection, which need not exist.
	NS oplog.Namespace
	// Stages turn its documents into those of the view.
	Stages []bson.Raw
	// Collation is that of the outermost view.
	Collation bson.Raw
	IsView    bool
	// Timeseries is true for a time-series collection.
	Timeseries bool
}

// Resolve resolves ns through nested views. A name that is not a view is
// returned as it is.
func Resolve(v storage.View, ns oplog.Namespace) (Resolved, error) {
	res := Resolved{NS: ns}
	for depth := 0; ; depth++ {
		if _, ok := v.Collection(res.NS); ok {
			return res, nil
		}
		def, ok, err := Lookup(v, res.NS)
		if err != nil || !ok {
			return res, err
		}
		if depth == MaxDepth {
			return res, viewTooDeep()
		}
		if depth == 0 {
			res.Collation, res.IsView, res.Timeseries = def.Collation, true, def.Timeseries
		}
		stages, err := Stages(def.Pipeline)
		if err != nil {
			return res, err
		}
		res.Stages = append(stages, res.Stages...)
		res.NS = oplog.NewNamespace(ns.DB(), def.On)
	}
}

func viewTooDeep() error {
	return servererr.New(servererr.ViewDepthLimitExceeded,
		"View depth too deep or view cycle detected; maximum depth is %d", MaxDepth)
}

// Stages takes a pipeline apart.
func Stages(array bson.Raw) ([]bson.Raw, error) {
	var docs []bson.Raw
	it := rawbson.NewIter(array)
	for it.Next() {
		doc, ok := it.Document()
		if !ok {
			return nil, servererr.New(servererr.TypeMismatch, "Each element of the 'pipeline' array must be an object")
		}
		docs = append(docs, doc)
	}
	return docs, it.Err()
}
