package bsongen

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// FromJSON turns relaxed or canonical extended JSON into a raw document. Field
// order and duplicate fields survive. It fails tb if that is not possible.
func FromJSON(tb testing.TB, json string) bson.Raw {
	tb.Helper()
	var d bson.D
	if err := bson.UnmarshalExtJSON([]byte(json), false, &d); err != nil {
		tb.Fatalf("%v: %s", err, json)
	}
	raw, err := bson.Marshal(d)
	if err != nil {
		tb.Fatal(err)
	}
	return raw
}

// Of turns a Go value into a raw value. It fails tb if that is not possible.
func Of(tb testing.TB, v any) bson.RawValue {
	tb.Helper()
	typ, data, err := bson.MarshalValue(v)
	if err != nil {
		tb.Fatal(err)
	}
	return bson.RawValue{Type: typ, Value: data}
}

// Decimal reads a decimal number. It fails tb if s is none.
func Decimal(tb testing.TB, s string) bson.Decimal128 {
	tb.Helper()
	d, err := bson.ParseDecimal128(s)
	if err != nil {
		tb.Fatal(err)
	}
	return d
}
