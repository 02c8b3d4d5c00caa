package bsontext

import (
	"math"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/bsongen"
)

func TestValue(t *testing.T) {
	id := bson.ObjectID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 255}
	uuid := make([]byte, 16)
	uuid[0], uuid[15] = 0xab, 1
	for _, tt := range []struct {
		v    any
		want string
	}{
		{int32(-1), `-1`},
		{int64(4515884051393107712), `4515884051393107712`},
		{0.07248434017924854, `0.07248434017924854`},
		{0.5, `0.5`},
		{0.1 + 0.2, `0.3`}, // sixteen digits
		{1.0, `1.0`},
		{0.0, `0.0`},
		{math.Copysign(0, -1), `-0.0`},
		{100000.0, `100000.0`},
		{1e15, `1000000000000000.0`},
		{1e16, `1e+16.0`},
		{1.5e300, `1.5e+300`},
		{0.0001, `0.0001`},
		{0.00001, `1e-05.0`},
		{1.25e-7, `1.25e-07`},
		{123456789.125, `123456789.125`},
		{math.NaN(), `nan.0`},
		{math.Inf(1), `inf.0`},
		{math.Inf(-1), `-inf.0`},
		{bsongen.Decimal(t, "1.50"), `1.50`},
		{true, `true`},
		{false, `false`},
		{bson.Null{}, `null`},
		{bson.Undefined{}, `undefined`},
		{bson.MinKey{}, `MinKey`},
		{bson.MaxKey{}, `MaxKey`},
		{"a\"b\n", "\"a\"b\n\""},
		{bson.Symbol("s"), `"s"`},
		{strings.Repeat("x", 159), `"` + strings.Repeat("x", 159) + `"`},
		{strings.Repeat("x", 160), `"` + strings.Repeat("x", 150) + `..."`},
		{bson.DateTime(-5), `new Date(-5)`},
		{bson.Timestamp{T: 3_000_000_000, I: 2}, `Timestamp(3000000000, 2)`},
		{id, `ObjectId('0102030405060708090a0bff')`},
		{bson.Regex{Pattern: "a/b", Options: "im"}, `/a/b/im`},
		{bson.JavaScript("f()"), `f()`},
		{bson.JavaScript(strings.Repeat("x", 80)), strings.Repeat("x", 70) + `...`},
		{bson.CodeWithScope{Code: "f()", Scope: bson.D{{Key: "x", Value: int32(1)}}}, `CodeWScope( f(), { x: 1 })`},
		{bson.DBPointer{DB: "d.c", Pointer: id}, `DBRef('d.c',0102030405060708090a0bff)`},
		{bson.Binary{Data: []byte{0xab, 1}}, `BinData(0, AB01)`},
		{bson.Binary{Subtype: 2, Data: []byte{0xab, 1}}, `BinData(2, AB01)`},
		{bson.Binary{Subtype: 4, Data: uuid}, `UUID("ab000000-0000-0000-0000-000000000001")`},
		{bson.Binary{Subtype: 5, Data: make([]byte, 81)}, `BinData(5, ` + strings.Repeat("00", 70) + `...)`},
		{bson.D{}, `{}`},
		{bson.A{}, `[]`},
		{
			bson.D{{Key: "é", Value: bson.A{int32(1), bson.A{}, bson.D{}}}, {Key: "", Value: "x"}},
			`{ é: [ 1, [], {} ], : "x" }`,
		},
	} {
		v := bsongen.Of(t, tt.v)
		if got := Value(v); got != tt.want {
			t.Errorf("%v: got %s, want %s", tt.v, got, tt.want)
		}
		if got, want := Element("k", v), "k: "+tt.want; got != want {
			t.Errorf("element: got %s, want %s", got, want)
		}
		if got, want := Braced("k", v), "{k: "+tt.want+"}"; got != want {
			t.Errorf("braced: got %s, want %s", got, want)
		}
	}
}

func TestDocument(t *testing.T) {
	v := bsongen.Of(t, bson.D{{Key: "a", Value: int32(1)}, {Key: "b", Value: bson.A{int32(1), "x"}}})
	if got, want := Document(v.Value), `{ a: 1, b: [ 1, "x" ] }`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := Array(bsongen.Of(t, bson.A{int32(1), "x"}).Value), `[ 1, "x" ]`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestDeep(t *testing.T) {
	v := any(int32(1))
	for range 150 {
		v = bson.A{v}
	}
	got := Value(bsongen.Of(t, v))
	if n := strings.Count(got, "["); n != maxDepth+1 || !strings.Contains(got, "[ ... ]") {
		t.Errorf("%d levels: %s", n, got)
	}
}

func FuzzValue(f *testing.F) {
	f.Add(byte(3), bsongen.Of(f, bson.D{{Key: "a", Value: bson.A{1, "x"}}}).Value)
	f.Add(byte(15), bsongen.Of(f, bson.CodeWithScope{Code: "f()", Scope: bson.D{}}).Value)
	f.Add(byte(5), []byte{1, 0, 0, 0, 2, 1})
	f.Fuzz(func(_ *testing.T, typ byte, b []byte) {
		_ = Value(bson.RawValue{Type: bson.Type(typ), Value: b})
		_ = Document(b)
		_ = Array(b)
	})
}
