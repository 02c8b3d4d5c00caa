package standing

import (
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/oplog"
)

// mending returns the statements that remove damaged marks from the documents that a filter matches. A later mark does not replace such a
// one: for $max, values of some other types are greater. And a document with one cannot be read, whatever comparisons store in it. The first
// is for the field mark, the second for differed.
func mending(which func([]byte) []byte) []metadata.Statement {
	damaged := func(field string, kinds ...[2]string) metadata.Statement {
		st := unsetting(func(dst []byte) []byte {
			list, dst := bsoncore.AppendArrayElementStart(existing(which(dst), field), "$or")
			for i, k := range kinds {
				path, kind := k[0], k[1]
				dst = metadata.AppendDoc(dst, strconv.Itoa(2*i), func(dst []byte) []byte { return metadata.AppendDoc(dst, path, isArray) }) // also of that kind
				dst = metadata.AppendDoc(dst, strconv.Itoa(2*i+1), func(dst []byte) []byte {
					return metadata.AppendDoc(dst, path, func(dst []byte) []byte {
						return metadata.AppendDoc(dst, "$not", func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, "$type", kind) })
					})
				})
			}
			return metadata.CloseDoc(dst, list)
		}, field)
		st.Multi = true
		return st
	}
	return []metadata.Statement{
		damaged("mark", [2]string{"mark", "object"}, [2]string{"mark.target", "timestamp"}, [2]string{"mark.why", "string"}, [2]string{"mark.at", "date"}),
		damaged("differed", [2]string{"differed", "timestamp"}),
	}
}

// mended returns a statement that makes a collection join, and before and after that those that mend its document if that was not
// understood.
func (s *Store) mended(sourceNS oplog.Namespace, was *document, joins metadata.Statement) []metadata.Statement {
	if was == nil || !isUnread(was.raw) {
		return []metadata.Statement{joins}
	}
	mend := mending(metadata.ByID(s.id(sourceNS)))
	return []metadata.Statement{mend[0], joins, mend[1]} // joins has the condition that the other field is as it was read
}

// existing appends the condition that a field exists.
func existing(dst []byte, field string) []byte {
	return metadata.AppendDoc(dst, field, func(dst []byte) []byte { return bsoncore.AppendBooleanElement(dst, "$exists", true) })
}

// isUnread reports whether a document that was read can not be understood.
func isUnread(raw bson.Raw) bool {
	var d document
	return raw != nil && bson.Unmarshal(raw, &d) != nil
}
