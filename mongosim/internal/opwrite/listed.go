package opwrite

import (
	"math"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// listedFields are the fields of an index in the order in which listIndexes shows
// them since 5.0, whatever order the catalog has, with the type that it gives
// them: zero for those shown unchanged.
var listedFields = []struct {
	name string
	as   bson.Type
}{
	{"v", bson.TypeInt32},
	{"key", 0},
	{"name", 0},
	{"background", bson.TypeBoolean},
	{"unique", bson.TypeBoolean},
	{"hidden", bson.TypeBoolean},
	{"partialFilterExpression", 0},
	{"sparse", bson.TypeBoolean},
	{"expireAfterSeconds", bson.TypeInt32},
	{"storageEngine", 0},
	{"weights", 0},
	{"default_language", 0},
	{"language_override", 0},
	{"textIndexVersion", bson.TypeInt32},
	{"2dsphereIndexVersion", bson.TypeInt32},
	{"bits", bson.TypeInt32},
	{"min", bson.TypeDouble},
	{"max", bson.TypeDouble},
	{"bucketSize", bson.TypeDouble},
	{"collation", 0},
	{"wildcardProjection", 0},
	{"columnstoreProjection", 0},
	{"columnstoreCompressor", 0},
	{"coarsestIndexedLevel", bson.TypeInt32},
	{"finestIndexedLevel", bson.TypeInt32},
	{"dropDups", bson.TypeBoolean},
	{"originalSpec", 0},
	{"clustered", bson.TypeBoolean},
	{"prepareUnique", bson.TypeBoolean},
}

// ListedIndex returns the specification of an index as listIndexes shows it: the
// catalog, and the log, keep fields in another order and numbers in other types.
func ListedIndex(spec bson.Raw) bson.Raw {
	type field struct {
		place int
		value bsoncore.Value
		name  string
	}
	var fields []field
	it := rawbson.NewIter(spec)
	for it.Next() {
		if it.Is("ns") {
			continue // versions up to 4.2 wrote it, none shows it
		}
		f := field{len(listedFields), bsoncore.Value{Type: bsoncore.Type(it.Type), Data: it.Value}, it.Name()}
		for i := range listedFields {
			if listedFields[i].name == f.name {
				f.place, f.value = i, converted(f.value, listedFields[i].as)
			}
		}
		fields = append(fields, f)
	}
	slices.SortStableFunc(fields, func(a, b field) int { return a.place - b.place })
	start, dst := bsoncore.AppendDocumentStart(make([]byte, 0, len(spec)))
	for _, f := range fields {
		dst = bsoncore.AppendValueElement(dst, f.name, f.value)
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, start)
	return dst
}

// converted turns a number or boolean into the type, and leaves all else.
func converted(v bsoncore.Value, as bson.Type) bsoncore.Value {
	if as == 0 || v.Type == bsoncore.Type(as) {
		return v
	}
	var n float64
	if on, ok := v.BooleanOK(); ok {
		if on {
			n = 1
		}
	} else if f, ok := v.AsFloat64OK(); ok {
		n = f
	} else {
		return v
	}
	data := []byte(nil)
	switch as {
	case bson.TypeInt32:
		if math.IsNaN(n) {
			n = 0
		}
		data = bsoncore.AppendInt32(nil, int32(min(max(n, math.MinInt32), math.MaxInt32)))
	case bson.TypeDouble:
		data = bsoncore.AppendDouble(nil, n)
	case bson.TypeBoolean:
		data = bsoncore.AppendBoolean(nil, n != 0)
	default:
		return v
	}
	return bsoncore.Value{Type: bsoncore.Type(as), Data: data}
}
