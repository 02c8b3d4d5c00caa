package transcript

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// ruleColumns excepts the order of a bucket's columns, in the recordings of
// time-series collections: the recorded server takes the columns out of a hash
// table, and the order changes within one run of it, at the 28th entry. Ours stays
// as it was at first. The contents of the columns are compared. If orders differ, the
// report says so.
var ruleColumns = rule{"columns", func(c *comparer, path string, want, got bson.RawValue) bool {
	if want.Type != bson.TypeEmbeddedDocument || got.Type != want.Type {
		return false
	}
	if !sameOrder(want.Value, got.Value) {
		c.pairs.reordered = true
	}
	c.unordered(path+".", want.Value, got.Value)
	return true
}}

// sameOrder reports whether two documents have the same names in the same order.
func sameOrder(a, b bson.Raw) bool {
	x, y := rawbson.NewIter(a), rawbson.NewIter(b)
	for x.Next() {
		if !y.Next() || !x.Is(y.Name()) {
			return false
		}
	}
	return !y.Next()
}
