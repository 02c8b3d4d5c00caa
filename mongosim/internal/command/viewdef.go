package command

import (
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// maxViewDepth is how many views may stand on one another.
const maxViewDepth = 20

// viewDef is a view, or a time-series collection, as system.views defines it.
type viewDef struct {
	// on is the collection or view that it shows, of the same database.
	on string
	// pipeline is the array of stages as stored.
	pipeline bson.Raw
	// collation as stored; nil for the simple one.
	collation bson.Raw
	// timeseries is true if on holds the buckets of a time-series collection.
	timeseries bool
}

// lookupView returns the view with the name, if there is one. One definition that
// is invalid makes all views of its database unusable, and the names that no
// collection has (ViewCatalog::lookup, jstests/core/views/invalid_system_views.js).
func lookupView(v storage.View, ns oplog.Namespace) (viewDef, bool, error) {
	if ns.IsSystemViews() {
		return viewDef{}, false, nil
	}
	if _, exists := v.Collection(ns); !exists {
		if err := checkViews(v, ns.DB()); err != nil {
			return viewDef{}, false, err
		}
	}
	return lookupUnchecked(v, ns)
}

// lookupUnchecked is lookupView for a command that does not care about other
// definitions: drop.
func lookupUnchecked(v storage.View, ns oplog.Namespace) (viewDef, bool, error) {
	coll, ok := v.Collection(oplog.NewNamespace(ns.DB(), "system.views"))
	if !ok || ns.IsSystemViews() {
		return viewDef{}, false, nil
	}
	rec, ok := coll.Get(bson.RawValue{Type: bson.TypeString, Value: bsoncore.AppendString(nil, string(ns))})
	if !ok {
		return viewDef{}, false, nil
	}
	def, err := parseViewDef(ns, rec.Doc)
	return def, err == nil, err
}

// parseViewDef reads a definition, and refuses what the server does not read past
// (validateViewDefinitionBSON of durable_view_catalog.cpp, ViewCatalog::_reload).
func parseViewDef(ns oplog.Namespace, doc bson.Raw) (viewDef, error) {
	var def viewDef
	it := rawbson.NewIter(doc)
	for it.Next() {
		ok := true
		switch it.Name() {
		case "_id":
		case "viewOn":
			def.on, ok = it.Text()
			def.on = strings.Clone(def.on)
			ok = ok && validCollectionName(def.on)
		case "pipeline":
			def.pipeline, ok = it.Array()
			if _, err := arrayOfDocuments(def.pipeline); ok && err != nil {
				ok = false
			}
		case "collation":
			def.collation, ok = it.Document()
		case "timeseries": // as 4.9 wrote it
		default:
			ok = false
		}
		if !ok {
			return viewDef{}, errInvalidView()
		}
	}
	if it.Err() != nil || def.on == "" || def.pipeline == nil || !validCollectionName(ns.Collection()) {
		return viewDef{}, errInvalidView()
	}
	def.timeseries = oplog.NewNamespace(ns.DB(), def.on) == ns.Buckets()
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
	_, err := viewsOf(v, db)
	return err
}

// namedView is a view with its name.
type namedView struct {
	ns oplog.Namespace
	viewDef
}

// viewsOf returns the views of a database, by name in byte order.
func viewsOf(v storage.View, db string) ([]namedView, error) {
	coll, ok := v.Collection(oplog.NewNamespace(db, "system.views"))
	if !ok {
		return nil, nil
	}
	var views []namedView
	for rec := range coll.ByID(storage.Bound{}, storage.Bound{}, false) {
		id, _ := rawbson.Lookup(rec.Doc, "_id")
		name, ok := id.Text()
		ns := oplog.Namespace(strings.Clone(name))
		if !ok || ns.DB() != db {
			return nil, errInvalidView()
		}
		def, err := parseViewDef(ns, rec.Doc)
		if err != nil {
			return nil, err
		}
		views = append(views, namedView{ns, def})
	}
	return views, nil
}

// resolved is what a view comes to in the end.
type resolved struct {
	// ns is the collection, which need not exist.
	ns oplog.Namespace
	// stages turn its documents into those of the view.
	stages []bson.Raw
	// collation is that of the outermost view.
	collation bson.Raw
	isView    bool
	// timeseries is true for a time-series collection.
	timeseries bool
}

// resolveView follows ns through the views that it stands on. A name that is no
// view is returned as it is.
func resolveView(v storage.View, ns oplog.Namespace) (resolved, error) {
	res := resolved{ns: ns}
	for depth := 0; ; depth++ {
		if _, ok := v.Collection(res.ns); ok {
			return res, nil
		}
		def, ok, err := lookupView(v, res.ns)
		if err != nil || !ok {
			return res, err
		}
		if depth == maxViewDepth {
			return res, viewTooDeep()
		}
		if depth == 0 {
			res.collation, res.isView, res.timeseries = def.collation, true, def.timeseries
		}
		stages, err := arrayOfDocuments(def.pipeline)
		if err != nil {
			return res, err
		}
		res.stages = append(stages, res.stages...)
		res.ns = oplog.NewNamespace(ns.DB(), def.on)
	}
}

func viewTooDeep() error {
	return servererr.New(servererr.ViewDepthLimitExceeded,
		"View depth too deep or view cycle detected; maximum depth is %d", maxViewDepth)
}

// arrayOfDocuments takes a pipeline apart.
func arrayOfDocuments(array bson.Raw) ([]bson.Raw, error) {
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

// notOnView is the refusal of a command that does not work on views.
func notOnView(ns oplog.Namespace) error {
	return servererr.New(servererr.CommandNotSupportedOnView, "Namespace %s is a view, not a collection", ns)
}
