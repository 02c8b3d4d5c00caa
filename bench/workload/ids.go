package workload

import (
	"encoding/binary"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// idSpace is room for an _id as an element, in bytes.
const idSpace = 24

// appendID appends the _id of the document of this number. No two numbers have the
// same.
func appendID(dst []byte, seed uint64, number uint32) []byte {
	var id bson.ObjectID
	binary.BigEndian.PutUint32(id[:], 1_690_000_000+number/1000)
	binary.BigEndian.PutUint32(id[4:], uint32(mix64(seed)))
	id[8], id[9], id[10], id[11] = 'b', byte(number>>16), byte(number>>8), byte(number)
	return bsoncore.AppendObjectIDElement(dst, "_id", id)
}

// mix64 gives every number another one that looks random.
func mix64(x uint64) uint64 {
	x += 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}
