package update

import (
	"bytes"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// IsInsertOnly reports whether servers before 5.0 accept a document in inserts only: they refuse an update that leaves a name
// below the top level that starts with a dollar, at any depth, but for those of a reference to a document.
func IsInsertOnly(doc bson.Raw) bool { return bytes.IndexByte(doc, '$') >= 0 && isInsertOnly(doc) }

func isInsertOnly(doc []byte) bool {
	accepted := referenceNames(doc)
	for it, i := rawbson.NewIter(doc), 0; it.Next(); i++ {
		nests := it.Type == bson.TypeEmbeddedDocument || it.Type == bson.TypeArray
		if i >= accepted && strings.HasPrefix(it.Name(), "$") || nests && isInsertOnly(it.Value) {
			return true
		}
	}
	return false
}

// referenceNames returns how many of the first names of a document are those of a reference: $ref, $id, and maybe $db.
func referenceNames(doc []byte) int {
	it := rawbson.NewIter(doc)
	if !it.Next() || it.Name() != "$ref" || it.Type != bson.TypeString || !it.Next() || it.Name() != "$id" {
		return 0
	}
	if it.Next() && it.Name() == "$db" && it.Type == bson.TypeString {
		return 3
	}
	return 2
}

// WritesInsertOnly reports whether an update writes such a name, as far as its entry shows. It may be below one, too.
func WritesInsertOnly(o bson.Raw) bool {
	if form, err := Classify(o); err != nil || form == FormReplacement {
		return IsInsertOnly(o)
	}
	for it := rawbson.NewIter(o); it.Next(); { // $v, and diff, or $set and $unset
		if it.Type == bson.TypeEmbeddedDocument && IsInsertOnly(it.Value) {
			return true
		}
	}
	return false
}
