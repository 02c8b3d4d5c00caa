package ddl

import (
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/arg"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/oplog"
)

// innerKind is the type of the indexes on buckets that stand for one of type 2dsphere on measurements.
const innerKind = "2dsphere_bucket"

// isInner reports whether a specification has a key of that type.
func isInner(spec bson.Raw) bool {
	e, _ := rawbson.Lookup(spec, "key")
	key, _ := e.Document()
	for it := rawbson.NewIter(key); it.Next(); {
		if kind, _ := it.Text(); kind == innerKind {
			return true
		}
	}
	return false
}

// createSeriesIndexes creates indexes of a time series: those of its buckets (timeseries_index_schema_conversion_functions.cpp).
func createSeriesIndexes(r *dispatch.Request, ops opwrite.Ops, ns oplog.Namespace, given []bson.Raw, out *dispatch.Reply) error {
	buckets, ok := ops.View().Collection(ns.Buckets())
	if !ok {
		return servererr.New(servererr.NamespaceNotFound, "ns does not exist: %s", ns.Buckets())
	}
	e, _ := rawbson.Lookup(buckets.Options, "timeseries")
	series, _ := e.Document()
	specs := make([]bson.Raw, len(given))
	for i, spec := range given {
		var err error
		if specs[i], err = ofBuckets(r, series, spec); err != nil {
			return err
		}
	}
	return createStored(r, ops, ns.Buckets(), specs, out)
}

// ofBuckets returns the specification of the index of buckets that stands for one of the time series.
func ofBuckets(r *dispatch.Request, series, spec bson.Raw) (bson.Raw, error) {
	timeField, _ := arg.Text(series, "timeField")
	metaField, _ := arg.Text(series, "metaField")
	e, _ := rawbson.Lookup(spec, "key")
	pattern, _ := e.Document()
	measured := false
	key := bsoncore.NewDocumentBuilder()
	for it := rawbson.NewIter(pattern); it.Next(); {
		name, v := it.Name(), bsoncore.Value{Type: bsoncore.Type(it.Type), Data: it.Value}
		kind, special := it.Text()
		top, rest, _ := strings.Cut(name, ".")
		switch {
		case metaField != "" && top == metaField:
			key.AppendValue(strings.TrimSuffix("meta."+rest, "."), v)
			continue
		case special && kind == "2dsphere" && r.Server.AtLeast(6, 0):
			measured = true
			key.AppendString("data."+name, innerKind)
			continue
		case special:
			return nil, servererr.New(servererr.CannotCreateIndex, "Indexes on measurement fields must be ascending or descending or 2dsphere: %s", name)
		case name != timeField && !r.Server.AtLeast(6, 0):
			return nil, servererr.New(servererr.CannotCreateIndex, "Indexes are only supported on the time and meta fields: %s", name)
		}
		measured = measured || name != timeField
		bounds := []string{"control.min.", "control.max."}
		if n := arg.Int64(it.Raw()); n < 0 {
			bounds[0], bounds[1] = bounds[1], bounds[0]
		}
		key.AppendValue(bounds[0]+name, v).AppendValue(bounds[1]+name, v)
	}
	doc := bsoncore.NewDocumentBuilder()
	for it := rawbson.NewIter(spec); it.Next(); {
		if it.Is("key") {
			doc.AppendDocument("key", key.Build())
			continue
		}
		doc.AppendValue(it.Name(), bsoncore.Value{Type: bsoncore.Type(it.Type), Data: it.Value})
	}
	if measured {
		doc.AppendDocument("originalSpec", bsoncore.Document(spec))
	}
	return bson.Raw(doc.Build()), nil
}
