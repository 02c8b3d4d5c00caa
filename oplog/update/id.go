package update

import (
	"bytes"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// sameID reports whether the server considers two values the same _id: numbers of
// different types if they are equal, and a string and a symbol, also inside a
// document. So a replacement may turn the _id 1 into 1.0, and the server logs it
// that way. Numbers of different types are compared as doubles, which is enough for
// values that the server has compared already.
func sameID(a, b *rawbson.Elem) bool {
	if a.Type == bson.TypeInt64 && b.Type == bson.TypeInt64 {
		return bytes.Equal(a.Value, b.Value)
	}
	return bytes.Equal(oplog.AppendIDKey(nil, a.Raw()), oplog.AppendIDKey(nil, b.Raw()))
}
