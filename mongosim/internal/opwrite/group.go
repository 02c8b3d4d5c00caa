package opwrite

import (
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// applyOpsDocument is the payload of a group of operations; tail appends the
// fields after the operations.
func applyOpsDocument(ops [][]byte, tail func(dst []byte) []byte) bson.Raw {
	size := 64
	for _, op := range ops {
		size += len(op) + 8
	}
	start, o := bsoncore.AppendDocumentStart(make([]byte, 0, size))
	array, o := bsoncore.AppendArrayElementStart(o, "applyOps")
	for i, op := range ops {
		o = bsoncore.AppendDocumentElement(o, index(i), op)
	}
	o, _ = bsoncore.AppendArrayEnd(o, array)
	if tail != nil {
		o = tail(o)
	}
	o, _ = bsoncore.AppendDocumentEnd(o, start)
	return o
}

// pack cuts operations into groups that fit into one entry each, by the size of
// the array that holds them, in bytes. A larger operation is a group by itself.
func pack(ops [][]byte, limit int) [][][]byte {
	var groups [][][]byte
	from, size := 0, 4
	for i, op := range ops {
		if i > from && size+len(op) > limit {
			groups = append(groups, ops[from:i])
			from, size = i, 4
		}
		size += 2 + len(index(i-from)) + len(op)
	}
	return append(groups, ops[from:])
}
