package storage

import (
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// idPattern is {_id: 1}.
var idPattern = bson.Raw("\x0e\x00\x00\x00\x10_id\x00\x01\x00\x00\x00\x00")

// IDIndex returns the specification of the index on _id that the server makes by
// itself: {v, key: {_id: 1}, name: "_id_"}, with the collation unless it is nil.
func IDIndex(version int32, collation bson.Raw) bson.Raw {
	i, doc := bsoncore.AppendDocumentStart(nil)
	doc = bsoncore.AppendInt32Element(doc, "v", version)
	doc = bsoncore.AppendDocumentElement(doc, "key", idPattern)
	doc = bsoncore.AppendStringElement(doc, "name", "_id_")
	if collation != nil {
		doc = bsoncore.AppendDocumentElement(doc, "collation", collation)
	}
	doc, _ = bsoncore.AppendDocumentEnd(doc, i)
	return doc
}

// IDDocument returns {_id: id}.
func IDDocument(id bson.RawValue) bson.Raw {
	i, doc := bsoncore.AppendDocumentStart(make([]byte, 0, 10+len(id.Value)))
	doc = bsoncore.AppendHeader(doc, bsoncore.Type(id.Type), "_id")
	doc = append(doc, id.Value...)
	doc, _ = bsoncore.AppendDocumentEnd(doc, i)
	return doc
}
