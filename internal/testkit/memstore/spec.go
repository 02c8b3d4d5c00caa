package memstore

import (
	"math"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// optionNames are the options of a collection, in the order in which
// listCollections shows them whatever order they were given in.
var optionNames = []string{
	"capped", "size", "max", "autoIndexId", "temp", "recordPreImages", "changeStreamPreAndPostImages",
	"storageEngine", "indexOptionDefaults", "validator", "validationLevel", "validationAction", "collation",
	"clusteredIndex", "expireAfterSeconds", "viewOn", "pipeline", "timeseries", "encryptedFields", "recordIdsReplicated",
}

// indexNames are the fields of an index, in the order in which listIndexes
// shows them since 5.0, with the type that it gives them: nothing for those
// shown unchanged.
var indexNames = []struct {
	name string
	as   bson.Type
}{
	{name: "v", as: bson.TypeInt32},
	{name: "key"},
	{name: "name"},
	{name: "background", as: bson.TypeBoolean},
	{name: "unique", as: bson.TypeBoolean},
	{name: "hidden", as: bson.TypeBoolean},
	{name: "partialFilterExpression"},
	{name: "sparse", as: bson.TypeBoolean},
	{name: "expireAfterSeconds", as: bson.TypeInt32},
	{name: "storageEngine"},
	{name: "weights"},
	{name: "default_language"},
	{name: "language_override"},
	{name: "textIndexVersion", as: bson.TypeInt32},
	{name: "2dsphereIndexVersion", as: bson.TypeInt32},
	{name: "bits", as: bson.TypeInt32},
	{name: "min", as: bson.TypeDouble},
	{name: "max", as: bson.TypeDouble},
	{name: "bucketSize", as: bson.TypeDouble},
	{name: "collation"},
	{name: "wildcardProjection"},
	{name: "columnstoreProjection"},
	{name: "columnstoreCompressor"},
	{name: "coarsestIndexedLevel", as: bson.TypeInt32},
	{name: "finestIndexedLevel", as: bson.TypeInt32},
	{name: "dropDups", as: bson.TypeBoolean},
	{name: "originalSpec"},
	{name: "clustered", as: bson.TypeBoolean},
	{name: "prepareUnique", as: bson.TypeBoolean},
}

// isIndexField knows "ns" too, which versions up to 4.2 wrote and none shows.
func isIndexField(name string) bool {
	return name == "ns" || indexPlace(name) < len(indexNames)
}

func indexPlace(name string) int {
	for i := range indexNames {
		if indexNames[i].name == name {
			return i
		}
	}
	return len(indexNames)
}

func optionPlace(name string) int {
	if i := slices.Index(optionNames, name); i >= 0 {
		return i
	}
	return len(optionNames)
}

// split takes a document apart, as far as it is valid.
func split(doc bson.Raw) []field {
	var fields []field
	it := rawbson.NewIter(doc)
	for it.Next() {
		fields = append(fields, field{string(it.Key), it.Raw()})
	}
	return fields
}

// arrange puts fields in the order of their places, those that have none last.
func arrange(fields []field, place func(name string) int) bson.Raw {
	slices.SortStableFunc(fields, func(a, b field) int { return place(a.name) - place(b.name) })
	return document(fields...)
}

// listedIndex returns an index as listIndexes shows it.
func listedIndex(spec bson.Raw) bson.Raw {
	fields := slices.DeleteFunc(split(spec), func(f field) bool { return f.name == "ns" })
	for i := range fields {
		if at := indexPlace(fields[i].name); at < len(indexNames) {
			fields[i].value = convert(fields[i].value, indexNames[at].as)
		}
	}
	return arrange(fields, indexPlace)
}

// convert turns a number or boolean into another type, as the server does in
// replies. Other values stay.
func convert(v bson.RawValue, as bson.Type) bson.RawValue {
	var number float64
	switch v.Type {
	case as:
		return v
	case bson.TypeInt32:
		number = float64(v.Int32())
	case bson.TypeInt64:
		number = float64(v.Int64())
	case bson.TypeDouble:
		number = v.Double()
	case bson.TypeBoolean:
		if v.Boolean() {
			number = 1
		}
	default:
		return v
	}
	switch as {
	case bson.TypeInt32:
		if math.IsNaN(number) {
			number = 0
		}
		return int32Value(int32(min(max(number, math.MinInt32), math.MaxInt32)))
	case bson.TypeInt64:
		if v.Type == bson.TypeInt64 {
			return v
		}
		return int64Value(int64(number))
	case bson.TypeDouble:
		return bson.RawValue{Type: as, Value: bsoncore.AppendDouble(nil, number)}
	case bson.TypeBoolean:
		return boolValue(number != 0)
	default:
		return v
	}
}

// checkOptions reports whether the options of a create are known.
func checkOptions(options bson.Raw) error {
	it := rawbson.NewIter(options)
	for it.Next() {
		if it.Is("flags") { // of the storage engine before 4.2
			continue
		}
		if optionPlace(it.Name()) == len(optionNames) {
			return InvalidOptions.because("unknown collection option %q", it.Name())
		}
	}
	return it.Err()
}

// listedOptions returns the options of a create as listCollections shows them.
func listedOptions(options bson.Raw) bson.Raw {
	fields := split(options)
	capped := slices.ContainsFunc(fields, func(f field) bool { return f.name == "capped" && truth(f.value) })
	fields = slices.DeleteFunc(fields, func(f field) bool {
		switch f.name {
		case "capped", "temp", "recordPreImages":
			return !truth(f.value)
		case "size", "max":
			return !capped
		case "flags":
			return true
		case "changeStreamPreAndPostImages":
			return !enabled(f.value)
		}
		return false
	})
	for i := range fields {
		if fields[i].name == "expireAfterSeconds" {
			fields[i].value = convert(fields[i].value, bson.TypeInt64)
		}
	}
	return arrange(fields, optionPlace)
}

// enabled reads {enabled: true}.
func enabled(v bson.RawValue) bool {
	doc, _ := v.DocumentOK()
	e, ok := rawbson.Lookup(doc, "enabled")
	return ok && truth(e.Raw())
}

func withoutOption(options bson.Raw, name string) bson.Raw {
	return document(unset(split(options), name)...)
}

func set(fields []field, name string, v bson.RawValue) []field {
	for i := range fields {
		if fields[i].name == name {
			fields[i].value = v
			return fields
		}
	}
	return append(fields, field{name, v})
}

func unset(fields []field, name string) []field {
	return slices.DeleteFunc(fields, func(f field) bool { return f.name == name })
}

func get(fields []field, name string) (bson.RawValue, bool) {
	for _, f := range fields {
		if f.name == name {
			return f.value, true
		}
	}
	return bson.RawValue{}, false
}

func int32Value(n int32) bson.RawValue {
	return bson.RawValue{Type: bson.TypeInt32, Value: bsoncore.AppendInt32(nil, n)}
}

func int64Value(n int64) bson.RawValue {
	return bson.RawValue{Type: bson.TypeInt64, Value: bsoncore.AppendInt64(nil, n)}
}

func boolValue(b bool) bson.RawValue {
	return bson.RawValue{Type: bson.TypeBoolean, Value: bsoncore.AppendBoolean(nil, b)}
}

func stringValue(s string) bson.RawValue {
	return bson.RawValue{Type: bson.TypeString, Value: bsoncore.AppendString(nil, s)}
}
