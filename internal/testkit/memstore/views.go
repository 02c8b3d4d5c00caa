package memstore

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// A view is a document in the collection system.views of its database:
//
//	{_id: "DB.VIEW", viewOn: COLLECTION, pipeline: [...], collation: {...}}
//
// A time-series collection is a view on its own buckets: DB.X on DB.system.buckets.X.

func (s *Store) view(ns oplog.Namespace) (bson.Raw, bool) {
	views, ok := s.byName[oplog.NewNamespace(ns.DB(), "system.views")]
	if !ok || views.Len() == 0 {
		return nil, false
	}
	return views.Get(stringValue(string(ns)))
}

func (s *Store) isView(ns oplog.Namespace) bool {
	_, ok := s.view(ns)
	return ok
}

// createView applies a create with viewOn, which servers before 3.6 logged.
func (s *Store) createView(entry oplog.Create) {
	ns := oplog.NewNamespace(entry.NS.DB(), "system.views")
	views, ok := s.byName[ns]
	if !ok {
		views = newCollection(ns, s.newUUID(), document())
		spec := []field{{"v", int32Value(2)}, {"key", documentValue(document(field{"_id", int32Value(1)}))}, {"name", stringValue("_id_")}}
		views.indexes = []index{newIndex(document(spec...))}
		s.add(views)
	}
	definition := []field{{"_id", stringValue(string(entry.NS))}}
	for _, f := range split(entry.Options) {
		switch f.name {
		case "viewOn", "pipeline", "collation":
			definition = append(definition, f)
		}
	}
	views.put(document(definition...))
}

// timeseriesOptions are the options of the buckets that a time-series
// collection shows as its own.
var timeseriesOptions = map[string]bool{
	"storageEngine": true, "indexOptionDefaults": true, "collation": true, "expireAfterSeconds": true, "timeseries": true,
}

// views returns the views of a database as listCollections shows them.
func (s *Store) views(db string) []CollectionState {
	definitions, ok := s.byName[oplog.NewNamespace(db, "system.views")]
	if !ok {
		return nil
	}
	var states []CollectionState
	for doc := range definitions.All() {
		id, _ := rawbson.Lookup(doc, "_id")
		ns, _ := id.Text()
		on, _ := rawbson.Lookup(doc, "viewOn")
		target, _ := on.Text()
		state := CollectionState{NS: oplog.Namespace(ns), Type: TypeView}
		buckets := oplog.NewNamespace(db, target)
		var options []field
		if buckets == state.NS.Buckets() {
			state.Type = TypeTimeseries
			if c, ok := s.byName[buckets]; ok {
				for _, f := range split(c.options) {
					if timeseriesOptions[f.name] {
						options = append(options, f)
					}
				}
			}
		} else {
			for _, f := range split(doc) {
				if f.name != "_id" && f.name != "timeseries" {
					options = append(options, f)
				}
			}
		}
		state.Options = document(options...)
		states = append(states, state)
	}
	return states
}
