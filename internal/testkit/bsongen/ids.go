package bsongen

import (
	"bytes"
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"
)

func mustDecimal(s string) bson.Decimal128 {
	d, err := bson.ParseDecimal128(s)
	if err != nil {
		panic(err)
	}
	return d
}

// IDs returns values for _id of every type except arrays, including unusual ones. Some are
// equal to a server.
func IDs() []any {
	return []any{
		bson.MinKey{},
		bson.Undefined{},
		nil,
		bson.MaxKey{},
		math.NaN(), mustDecimal("NaN"), math.Inf(-1), math.Inf(1), mustDecimal("-Infinity"), mustDecimal("Infinity"),
		0.0, math.Copysign(0, -1), int32(0), int64(0), mustDecimal("0"), int32(1), int64(1), 1.0, mustDecimal("1.00"), int32(-1), 1.5, mustDecimal("1.5"),
		int64(math.MaxInt64), int64(math.MinInt64), math.MaxFloat64, float64(1 << 53), int64(1<<53 + 1), int32(7), int64(8), 9.0, mustDecimal("10"),
		"", "a", "A", "aa", "b", "ä", "\x00", bson.Symbol("a"), bson.Symbol("aaa"), bson.Symbol(""),
		bson.D{},
		bson.D{{Key: "a", Value: 1}},
		bson.D{{Key: "a", Value: int64(2)}},
		bson.D{{Key: "b", Value: 1}},
		bson.D{{Key: "a", Value: math.NaN()}},
		bson.D{{Key: "$gt", Value: 1}},
		bson.D{{Key: "a", Value: bson.A{1, 2}}},
		bson.D{{Key: "$ref", Value: "c"}, {Key: "$id", Value: 1}},
		bson.Binary{},
		bson.Binary{Data: []byte("a")},
		bson.Binary{Data: []byte("bb")},
		bson.Binary{Subtype: 4, Data: bytes.Repeat([]byte("u"), 16)},
		bson.Binary{Subtype: 2, Data: []byte("old")},
		bson.ObjectID{},
		bson.ObjectID{1},
		bson.ObjectID{2},
		bson.ObjectID{0xff, 11: 0xff},
		true, false,
		bson.DateTime(0), bson.DateTime(-1), bson.DateTime(math.MaxInt64), bson.DateTime(1_600_000_000_000),
		bson.Timestamp{},
		bson.Timestamp{T: 1},
		bson.Timestamp{T: 1, I: 1},
		bson.Timestamp{T: math.MaxUint32, I: math.MaxUint32},
		bson.Regex{Pattern: "a"},
		bson.Regex{Pattern: "a", Options: "i"},
		bson.DBPointer{DB: "d", Pointer: bson.ObjectID{1}},
		bson.JavaScript("a"), bson.JavaScript("b"),
		bson.CodeWithScope{Code: "a", Scope: bson.D{}},
		bson.CodeWithScope{Code: "a", Scope: bson.D{{Key: "x", Value: 1}}},
	}
}
