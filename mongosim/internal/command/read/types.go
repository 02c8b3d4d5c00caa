package read

import (
	"iter"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/mongosim/internal/storage"
)

// place is where values of some types are in an index: from first on, up to the first of the next
// place.
type place struct {
	types []bson.Type
	first bson.RawValue
}

// places are in the order of an index.
var places = []place{
	at(nil, bson.TypeMinKey),
	at(nil, bson.TypeUndefined),
	at(nil, bson.TypeNull),
	at([]byte{0, 0, 0, 0, 0, 0, 0xf8, 0x7f}, bson.TypeDouble, bson.TypeInt32, bson.TypeInt64, bson.TypeDecimal128), // NaN
	at(bsoncore.AppendString(nil, ""), bson.TypeString, bson.TypeSymbol),
	at(bsoncore.BuildDocument(nil), bson.TypeEmbeddedDocument),
	at(bsoncore.BuildDocument(nil), bson.TypeArray),
	at([]byte{0, 0, 0, 0, 0}, bson.TypeBinary),
	at(make([]byte, 12), bson.TypeObjectID),
	at([]byte{0}, bson.TypeBoolean),
	at([]byte{0, 0, 0, 0, 0, 0, 0, 0x80}, bson.TypeDateTime),
	at(make([]byte, 8), bson.TypeTimestamp),
	at([]byte{0, 0}, bson.TypeRegex),
	at(append(bsoncore.AppendString(nil, ""), make([]byte, 12)...), bson.TypeDBPointer),
	at(bsoncore.AppendString(nil, ""), bson.TypeJavaScript),
	at(bsoncore.AppendCodeWithScope(nil, "", bsoncore.BuildDocument(nil)), bson.TypeCodeWithScope),
	at(nil, bson.TypeMaxKey),
}

func at(first []byte, types ...bson.Type) place {
	return place{types, bson.RawValue{Type: types[0], Value: first}}
}

// ofTypes yields the documents between bounds whose _ids are of some types, and others at the same
// places, in the order of _id. It reads no other places.
func ofTypes(coll *storage.Collection, lo, hi storage.Bound, types []bson.Type) iter.Seq[storage.Record] {
	wanted := func(p place) bool {
		return slices.ContainsFunc(p.types, func(t bson.Type) bool { return slices.Contains(types, t) })
	}
	return func(yield func(storage.Record) bool) {
		for {
			next := len(places)
			for rec := range coll.ByID(lo, hi, false) {
				of := rec.Doc.Lookup("_id").Type
				i := slices.IndexFunc(places, func(p place) bool { return slices.Contains(p.types, of) })
				if i >= 0 && !wanted(places[i]) {
					next = i + 1
					break
				}
				if !yield(rec) {
					return
				}
			}
			for next < len(places) && !wanted(places[next]) {
				next++
			}
			if next >= len(places) {
				return
			}
			lo = storage.Bound{Value: places[next].first, Inclusive: true}
		}
	}
}
