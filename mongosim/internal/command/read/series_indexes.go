package read

import (
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/arg"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
)

// seriesListing is what listIndexes shows of the indexes of a time series' buckets: their keys in terms of measurements.
// Those that have no such form are left out (timeseries_index_schema_conversion_functions.cpp).
func seriesListing(options bson.Raw, indexes []storage.Index) (docs []bson.Raw) {
	e, _ := rawbson.Lookup(options, "timeseries")
	series, _ := e.Document()
	meta, hasMeta := arg.Text(series, "metaField")
	for _, index := range indexes {
		key, ok := seriesKey(index.Spec, meta, hasMeta)
		if !ok {
			continue
		}
		start, doc := bsoncore.AppendDocumentStart(nil)
		for it := rawbson.NewIter(index.Spec); it.Next(); {
			value := bsoncore.Value{Type: bsoncore.Type(it.Type), Data: it.Value}
			if it.Is("key") {
				value.Data = key
			}
			doc = bsoncore.AppendValueElement(doc, it.Name(), value)
		}
		doc, _ = bsoncore.AppendDocumentEnd(doc, start)
		docs = append(docs, doc)
	}
	return docs
}

// seriesKey returns the key of an index of buckets in terms of measurements, if there is one: the meta field under its name, and
// other fields, which have two bounds each in a bucket, once.
func seriesKey(spec bson.Raw, meta string, hasMeta bool) (bson.Raw, bool) {
	const (
		stored  = "meta"
		lowest  = "control.min."
		highest = "control.max."
	)
	e, _ := rawbson.Lookup(spec, "key")
	key, ok := e.Document()
	if !ok {
		return nil, false
	}
	start, dst := bsoncore.AppendDocumentStart(nil)
	var pending string // the second bound that has to follow
	for it := rawbson.NewIter(key); it.Next(); {
		name, value := it.Name(), bsoncore.Value{Type: bsoncore.Type(it.Type), Data: slices.Clone(it.Value)}
		if pending != "" {
			if name != pending {
				return nil, false
			}
			pending = ""
			continue
		}
		rest, isLowest := strings.CutPrefix(name, lowest)
		if isLowest {
			pending = highest + rest
		} else if after, isHighest := strings.CutPrefix(name, highest); isHighest {
			rest, pending = after, lowest+after
		} else if after, isMeta := strings.CutPrefix(name, stored); isMeta && hasMeta && (after == "" || after[0] == '.') {
			rest = meta + after
		} else {
			return nil, false
		}
		dst = bsoncore.AppendValueElement(dst, rest, value)
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, start)
	return dst, pending == ""
}
