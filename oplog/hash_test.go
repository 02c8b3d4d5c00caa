package oplog_test

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"testing"

	"github.com/spaolacci/murmur3"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/oplog"
)

// classes returns classes of values that are equal as _ids to the server; values of
// different classes are not.
func classes(t testing.TB) [][]any {
	return [][]any{
		{int32(1), int64(1), 1.0, bsongen.Decimal(t, "1"), bsongen.Decimal(t, "1.000"), bsongen.Decimal(t, "1E0"), bsongen.Decimal(t, "0.1E1")},
		{int32(0), int64(0), 0.0, math.Copysign(0, -1), bsongen.Decimal(t, "0"), bsongen.Decimal(t, "-0"), bsongen.Decimal(t, "0E+3")},
		{int32(-1), int64(-1), -1.0, bsongen.Decimal(t, "-1")},
		{int64(1) << 40, float64(1 << 40), bsongen.Decimal(t, "1099511627776")},
		{1.5, bsongen.Decimal(t, "1.5"), bsongen.Decimal(t, "1.50")},
		{math.NaN(), math.Float64frombits(0x7ff8000000000001), bsongen.Decimal(t, "NaN")},
		{math.Inf(1), bsongen.Decimal(t, "Infinity")},
		{math.Inf(-1), bsongen.Decimal(t, "-Infinity")},
		{"a", bson.Symbol("a")},
		{"b"},
		{""},
		{"1"},
		{bson.JavaScript("a")},
		{bson.D{{Key: "x", Value: int32(1)}}, bson.D{{Key: "x", Value: 1.0}}, bson.D{{Key: "x", Value: bsongen.Decimal(t, "1.0")}}},
		{bson.D{{Key: "y", Value: int32(1)}}},
		{bson.D{{Key: "x", Value: bson.D{{Key: "x", Value: int32(1)}}}}, bson.D{{Key: "x", Value: bson.D{{Key: "x", Value: int64(1)}}}}},
		{bson.D{{Key: "x", Value: bson.A{int32(1), "s"}}}, bson.D{{Key: "x", Value: bson.A{1.0, bson.Symbol("s")}}}},
		{bson.D{{Key: "a", Value: 1}, {Key: "b", Value: 1}}},
		{bson.D{{Key: "b", Value: 1}, {Key: "a", Value: 1}}},
		{bson.D{}},
		{bson.CodeWithScope{Code: "a", Scope: bson.D{{Key: "n", Value: int32(1)}}}, bson.CodeWithScope{Code: "a", Scope: bson.D{{Key: "n", Value: 1.0}}}},
		{bson.ObjectID{1}},
		{bson.ObjectID{2}},
		{true},
		{false},
		{bson.DateTime(1)},
		{bson.Timestamp{T: 0, I: 1}},
		{bson.Null{}},
		{bson.Undefined{}},
		{bson.MinKey{}},
		{bson.MaxKey{}},
		{bson.Regex{Pattern: "a", Options: "i"}},
		{bson.Regex{Pattern: "a"}},
		{bson.Binary{Subtype: 0, Data: []byte{1}}},
		{bson.Binary{Subtype: 4, Data: []byte{1}}},
		{bson.DBPointer{DB: "a.b", Pointer: bson.ObjectID{1}}},
	}
}

func TestEqualIDsHashAlike(t *testing.T) {
	seed := oplog.HashNamespace("a.b")
	keys := map[string]string{}
	for _, class := range classes(t) {
		first := bsongen.Of(t, class[0])
		key := oplog.AppendIDKey(nil, first)
		if other, taken := keys[string(key)]; taken {
			t.Errorf("%v and %s have the same key", class[0], other)
		}
		keys[string(key)] = fmt.Sprintf("%T %v", class[0], class[0])
		for _, v := range class[1:] {
			id := bsongen.Of(t, v)
			if !bytes.Equal(oplog.AppendIDKey(nil, id), key) {
				t.Errorf("%T %v and %T %v are one _id with two keys", class[0], class[0], v, v)
			}
			if oplog.HashID(seed, id) != oplog.HashID(seed, first) {
				t.Errorf("%T %v and %T %v are one _id with two hashes", class[0], class[0], v, v)
			}
		}
	}
}

func TestWholeNumbersHashAlikeAcrossTypes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.Int64().Draw(rt, "n")
		want := oplog.AppendIDKey(nil, bsongen.Of(t, n))
		forms := []any{bsongen.Decimal(t, strconv.FormatInt(n, 10))}
		if n >= -1<<53 && n <= 1<<53 {
			forms = append(forms, float64(n))
		}
		if int64(int32(n)) == n {
			forms = append(forms, int32(n))
		}
		for _, form := range forms {
			if got := oplog.AppendIDKey(nil, bsongen.Of(t, form)); !bytes.Equal(got, want) {
				rt.Fatalf("int64 %d and %T %v differ", n, form, form)
			}
		}
	})
}

func TestDecimalsBeyondDoubles(t *testing.T) {
	for _, s := range []string{"9.99E+6144", "-9.99E+6144", "1E-6176", "9999999999999999999999999999999999"} {
		if key := oplog.AppendIDKey(nil, bsongen.Of(t, bsongen.Decimal(t, s))); len(key) != 9 {
			t.Errorf("the key of %s has %d bytes", s, len(key))
		}
	}
}

// The hash decides which writer's position covers a document, so it must be the
// same in every build and every release.
func TestHashIsStable(t *testing.T) {
	for _, tc := range []struct {
		ns   oplog.Namespace
		id   any
		want uint32
	}{
		{"a.b", int32(1), 0x54bdd05d},
		{"shop.orders", "a string of some length", 0x83b9032e},
		{"shop.orders", bson.ObjectID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 0xcb5550dd},
		{"shop.orders", bson.D{{Key: "x", Value: int64(5)}}, 0xfe7b9b93},
	} {
		seed := oplog.HashNamespace(tc.ns)
		if got := oplog.HashID(seed, bsongen.Of(t, tc.id)); got != tc.want {
			t.Errorf("the hash of %v in %s is %#x, want %#x", tc.id, tc.ns, got, tc.want)
		}
		h := murmur3.New32WithSeed(seed)
		h.Write(oplog.AppendIDKey(nil, bsongen.Of(t, tc.id)))
		if got := h.Sum32(); got != tc.want {
			t.Errorf("murmur3 of the key of %v is %#x, want %#x", tc.id, got, tc.want)
		}
	}
}

// Coefficients of more than 34 digits mean zero.
func TestDecimalsThatNobodyWrites(t *testing.T) {
	zero := oplog.AppendIDKey(nil, bsongen.Of(t, int32(0)))
	const most = 0x1ed09bead87c0
	for _, d := range []bson.Decimal128{
		bson.NewDecimal128(0x3041ffffffffffff, 0xffffffffffffffff),
		bson.NewDecimal128(0x3040000000000000|most, 0x378d8e6400000000),
		bson.NewDecimal128(0x3040000000000000|most+1, 0),
	} {
		if !bytes.Equal(oplog.AppendIDKey(nil, bsongen.Of(t, d)), zero) {
			t.Errorf("%v is not zero", d)
		}
	}
	if bytes.Equal(oplog.AppendIDKey(nil, bsongen.Of(t, bson.NewDecimal128(0x3040000000000000|most, 0x378d8e63ffffffff))), zero) {
		t.Error("the greatest coefficient is zero")
	}
}

func TestHashDependsOnTheNamespace(t *testing.T) {
	id := bsongen.Of(t, int32(1))
	if oplog.HashID(oplog.HashNamespace("a.b"), id) == oplog.HashID(oplog.HashNamespace("a.c"), id) {
		t.Error("the namespace does not change the hash")
	}
}

func TestHashSpreads(t *testing.T) {
	const writers, ids = 16, 16000
	seed := oplog.HashNamespace("shop.orders")
	for name, newID := range map[string]func(i int) any{
		"int32":    func(i int) any { return int32(i) },
		"double":   func(i int) any { return float64(i) * 1000 },
		"string":   func(i int) any { return fmt.Sprintf("user%d", i) },
		"objectid": func(i int) any { return bson.ObjectID{0x65, 0x53, 0xed, 0xe0, 1, 2, 3, 4, 5, 0, byte(i >> 8), byte(i)} },
		"document": func(i int) any { return bson.D{{Key: "a", Value: int32(i)}, {Key: "b", Value: "x"}} },
	} {
		var counts [writers]int
		for i := range ids {
			counts[oplog.HashID(seed, bsongen.Of(t, newID(i)))%writers]++
		}
		for w, n := range counts {
			if n < ids/writers*8/10 || n > ids/writers*12/10 {
				t.Errorf("%s: writer %d gets %d of %d documents", name, w, n, ids)
			}
		}
	}
}

func TestHashOfADeepIDEnds(t *testing.T) {
	var v any = int32(1)
	for range 2000 {
		v = bson.D{{Key: "d", Value: v}}
	}
	oplog.HashID(0, bsongen.Of(t, v))
}

func BenchmarkHash(b *testing.B) {
	for _, v := range []any{
		bson.ObjectID{1, 2, 3},
		int64(123456),
		"a string of some length",
		bson.D{{Key: "a", Value: int32(1)}, {Key: "b", Value: "x"}},
	} {
		id := bsongen.Of(b, v)
		b.Run(id.Type.String(), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				oplog.HashID(oplog.HashNamespace("inventory.products"), id)
			}
		})
	}
}
