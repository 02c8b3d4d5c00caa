package workload

import (
	"encoding/binary"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

var idTypes = []IDType{ObjectID, Int32, Int64, String, UUID, Decimal, Document}

func (t IDType) known() bool { return slices.Contains(idTypes, t) }

// idSpace is room for an _id of any type as an element, in bytes.
const idSpace = 48

// appendID appends the _id of the document of this number. No two numbers have the
// same, and all of one type have the same length.
func appendID(dst []byte, t IDType, seed uint64, number uint32) []byte {
	switch t {
	case Int32:
		return bsoncore.AppendInt32Element(dst, "_id", int32(number))
	case Int64:
		return bsoncore.AppendInt64Element(dst, "_id", 1<<40+int64(number))
	case String:
		return bsoncore.AppendStringElement(dst, "_id", userName(seed, number))
	case UUID:
		var u [16]byte
		binary.BigEndian.PutUint32(u[:], mix32(number))
		binary.BigEndian.PutUint64(u[8:], mix64(seed^uint64(number)))
		u[6], u[8] = 0x40, u[8]&0x3f|0x80
		return bsoncore.AppendBinaryElement(dst, "_id", bson.TypeBinaryUUID, u[:])
	case Decimal:
		// Two digits after the point.
		const exponent = (6176 - 2) << 49
		return bsoncore.AppendDecimal128Element(dst, "_id", exponent, uint64(number))
	case Document:
		start, dst := bsoncore.AppendDocumentElementStart(dst, "_id")
		dst = bsoncore.AppendInt32Element(dst, "shop", int32(number%97))
		dst = bsoncore.AppendInt64Element(dst, "n", int64(number))
		return endDocument(dst, start)
	default:
		var id bson.ObjectID
		binary.BigEndian.PutUint32(id[:], 1_690_000_000+number/1000)
		binary.BigEndian.PutUint32(id[4:], uint32(mix64(seed)))
		id[8], id[9], id[10], id[11] = 'b', byte(number>>16), byte(number>>8), byte(number)
		return bsoncore.AppendObjectIDElement(dst, "_id", id)
	}
}

// userName is a key as YCSB has them: 24 bytes, not in the order of the numbers.
func userName(seed uint64, number uint32) string {
	var b [24]byte
	copy(b[:], "user")
	n := mix64(seed ^ uint64(number))
	for i := len(b) - 1; i >= 4; i-- {
		b[i] = '0' + byte(n%10)
		n /= 10
	}
	return string(b[:])
}

// mix64 and mix32 give every number another one that looks random.
func mix64(x uint64) uint64 {
	x += 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

func mix32(x uint32) uint32 {
	x = (x ^ x>>16) * 0x7FEB352D
	x = (x ^ x>>15) * 0x846CA68B
	return x ^ x>>16
}
