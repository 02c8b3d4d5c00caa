package bsonorder

import (
	"bytes"
	"fmt"
	"math"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/oplog"
)

// TestOrder has one list in ascending order; the values of one line are equal.
func TestOrder(t *testing.T) {
	long := int64(1) << 53
	lines := [][]any{
		{bson.MinKey{}},
		{bson.Undefined{}},
		{bson.Null{}},
		{math.NaN(), bsongen.Decimal(t, "NaN"), math.Float64frombits(0x7ff8000000000001)},
		{math.Inf(-1), bsongen.Decimal(t, "-Infinity")},
		{bsongen.Decimal(t, "-1E6000")},
		{-math.MaxFloat64},
		{int64(math.MinInt64), float64(math.MinInt64), bsongen.Decimal(t, "-9223372036854775808")},
		{int64(math.MinInt64 + 1)},
		{int32(-1), int64(-1), -1.0, bsongen.Decimal(t, "-1.0")},
		{-0.5, bsongen.Decimal(t, "-0.50")},
		{int32(0), int64(0), 0.0, math.Copysign(0, -1), bsongen.Decimal(t, "0"), bsongen.Decimal(t, "-0E10")},
		{bsongen.Decimal(t, "1E-6176")},
		{math.SmallestNonzeroFloat64},
		{bsongen.Decimal(t, "0.1")},
		{0.1}, // a little more than a tenth
		{int32(1), int64(1), 1.0, bsongen.Decimal(t, "1"), bsongen.Decimal(t, "1.000"), bsongen.Decimal(t, "10E-1")},
		{1.5, bsongen.Decimal(t, "1.5")},
		{long, float64(long), bsongen.Decimal(t, "9007199254740992")},
		{long + 1, bsongen.Decimal(t, "9007199254740993")},
		{long + 2, float64(long + 2)},
		{int64(math.MaxInt64)},
		{float64(math.MaxInt64)},
		{math.MaxFloat64},
		{bsongen.Decimal(t, "1E6000")},
		{math.Inf(1), bsongen.Decimal(t, "Infinity")},
		{"", bson.Symbol("")},
		{"A", bson.Symbol("A")},
		{"A\x00"},
		{"AB"},
		{"a", bson.Symbol("a")},
		{"é"},
		{bson.D{}},
		{bson.D{{Key: "a", Value: int32(1)}}, bson.D{{Key: "a", Value: 1.0}}},
		{bson.D{{Key: "a", Value: int32(1)}, {Key: "b", Value: int32(0)}}},
		{bson.D{{Key: "a", Value: int32(2)}}},
		{bson.D{{Key: "b", Value: int32(0)}}},
		{bson.D{{Key: "a", Value: "x"}}}, // the type goes before the name
		{bson.A{}},
		{bson.A{int32(1)}, bson.A{1.0}},
		{bson.A{int32(1), int32(0)}},
		{bson.A{int32(2)}},
		{bson.Binary{}},
		{bson.Binary{Data: []byte{9}}},
		{bson.Binary{Subtype: 5, Data: []byte{1}}},
		{bson.Binary{Data: []byte{0, 0}}},
		{bson.ObjectID{1}},
		{bson.ObjectID{2}},
		{false},
		{true},
		{bson.DateTime(-1)},
		{bson.DateTime(0)},
		{bson.Timestamp{T: 1, I: 2}},
		{bson.Timestamp{T: 2, I: 1}},
		{bson.Timestamp{T: math.MaxUint32}},
		{bson.Regex{Pattern: "a"}},
		{bson.Regex{Pattern: "a", Options: "i"}},
		{bson.Regex{Pattern: "ab"}},
		{bson.DBPointer{DB: "z", Pointer: bson.ObjectID{}}},
		{bson.DBPointer{DB: "aa", Pointer: bson.ObjectID{}}},
		{bson.JavaScript("a")},
		{bson.JavaScript("b")},
		{bson.CodeWithScope{Code: "a", Scope: bson.D{}}},
		{bson.CodeWithScope{Code: "a", Scope: bson.D{{Key: "x", Value: int32(1)}}}, bson.CodeWithScope{Code: "a", Scope: bson.D{{Key: "x", Value: 1.0}}}},
		{bson.CodeWithScope{Code: "b", Scope: bson.D{}}},
		{bson.MaxKey{}},
	}
	for i, line := range lines {
		for _, a := range line {
			for j, other := range lines {
				for _, b := range other {
					want := min(max(i-j, -1), 1)
					if got := Compare(bsongen.Of(t, a), bsongen.Of(t, b), nil); got != want {
						t.Errorf("Compare(%T %v, %T %v) = %d, want %d", a, a, b, b, got, want)
					}
				}
			}
		}
	}
}

// drawValue draws from few values of each type, so that many are equal or near.
func drawValue(t *rapid.T, depth int) any {
	numbers := []float64{0, math.Copysign(0, -1), 1, -1, 0.1, 1 << 53, 1<<53 + 2, math.MaxInt64, math.MinInt64, math.NaN(), math.Inf(1), math.Inf(-1)}
	texts := []string{"", "a", "A", "á", "b", "a\x00", "10", "9", "\xff"}
	kinds := 15
	if depth > 2 {
		kinds = 13
	}
	text := rapid.SampledFrom(texts).Draw(t, "text")
	switch rapid.IntRange(0, kinds).Draw(t, "kind") {
	case 0:
		return rapid.SampledFrom([]int32{0, 1, -1}).Draw(t, "int32")
	case 1:
		return rapid.SampledFrom([]int64{0, 1, -1, 1 << 53, 1<<53 + 1, 1<<53 + 2, math.MaxInt64, math.MinInt64}).Draw(t, "int64")
	case 2, 3:
		return rapid.SampledFrom(numbers).Draw(t, "double")
	case 4, 5:
		d, err := bson.ParseDecimal128(rapid.SampledFrom([]string{
			"0", "-0", "1", "1.0", "0.1", "9007199254740993", "9223372036854775807",
			"NaN", "Infinity", "-Infinity", "1E6000", "1E-6000", "-1",
		}).Draw(t, "decimal"))
		if err != nil {
			t.Fatal(err)
		}
		return d
	case 6:
		return text
	case 7:
		return bson.Symbol(text)
	case 8:
		return bson.Binary{Subtype: rapid.SampledFrom([]byte{0, 4}).Draw(t, "subtype"), Data: []byte(text)}
	case 9:
		return rapid.Bool().Draw(t, "bool")
	case 10:
		return rapid.SampledFrom([]any{bson.Null{}, bson.Undefined{}, bson.MinKey{}, bson.MaxKey{}}).Draw(t, "constant")
	case 11:
		return rapid.SampledFrom([]any{bson.DateTime(1), bson.DateTime(-1), bson.Timestamp{T: 1}, bson.ObjectID{1}}).Draw(t, "fixed")
	case 12:
		return bson.Regex{Pattern: "a", Options: rapid.SampledFrom([]string{"", "i"}).Draw(t, "options")}
	case 13:
		return rapid.SampledFrom([]any{bson.JavaScript(text), bson.DBPointer{DB: text}}).Draw(t, "code")
	case 14:
		a := bson.A{}
		for range rapid.IntRange(0, 2).Draw(t, "length") {
			a = append(a, drawValue(t, depth+1))
		}
		return a
	default:
		d := bson.D{}
		for range rapid.IntRange(0, 2).Draw(t, "length") {
			d = append(d, bson.E{Key: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "name"), Value: drawValue(t, depth+1)})
		}
		if rapid.IntRange(0, 5).Draw(t, "scoped") == 0 {
			return bson.CodeWithScope{Code: "f", Scope: d}
		}
		return d
	}
}

func TestTotalOrder(t *testing.T) {
	for name, spec := range map[string]bson.D{
		"simple":    nil,
		"strength1": {{Key: "locale", Value: "fr"}, {Key: "strength", Value: int32(1)}},
		"numeric":   {{Key: "locale", Value: "en"}, {Key: "numericOrdering", Value: true}},
	} {
		t.Run(name, func(t *testing.T) {
			coll, err := NewCollator(document(t, spec))
			if err != nil {
				t.Fatal(err)
			}
			rapid.Check(t, func(rt *rapid.T) {
				v := make([]bson.RawValue, 3)
				for i := range v {
					v[i] = bsongen.Of(t, drawValue(rt, 0))
				}
				a, b, c := v[0], v[1], v[2]
				ab, bc, ac := Compare(a, b, coll), Compare(b, c, coll), Compare(a, c, coll)
				if Compare(a, a, coll) != 0 {
					rt.Fatalf("%s is not equal to itself", a)
				}
				if Compare(b, a, coll) != -ab {
					rt.Fatalf("%s and %s: %d one way, %d the other", a, b, ab, Compare(b, a, coll))
				}
				if ab <= 0 && bc <= 0 && ac > 0 || ab >= 0 && bc >= 0 && ac < 0 || ab == 0 && bc != ac {
					rt.Fatalf("%s, %s, %s: %d, %d, but the outer ones %d", a, b, c, ab, bc, ac)
				}
			})
		})
	}
}

// TestAgreesWithHash holds what the appliers rely on: equal _ids have one key,
// and so one writer.
func TestAgreesWithHash(t *testing.T) {
	var equal int
	rapid.Check(t, func(rt *rapid.T) {
		v := make([]bson.RawValue, 10) // so many that two of 100 times ten are equal in each run
		for i := range v {
			v[i] = bsongen.Of(t, drawValue(rt, 0))
			for _, a := range v[:i] {
				if Compare(a, v[i], nil) != 0 {
					continue
				}
				equal++
				if !bytes.Equal(oplog.AppendIDKey(nil, a), oplog.AppendIDKey(nil, v[i])) {
					rt.Fatalf("%s (%s) and %s (%s) are equal, their keys are not", a, a.Type, v[i], v[i].Type)
				}
			}
		}
	})
	if equal == 0 {
		t.Error("no two values were equal: nothing was checked")
	}
}

func document(t testing.TB, d bson.D) bson.Raw {
	t.Helper()
	if d == nil {
		return nil
	}
	raw, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func FuzzCompare(f *testing.F) {
	whole := document(f, bson.D{{Key: "a", Value: bson.CodeWithScope{Code: "f", Scope: bson.D{}}}, {Key: "b", Value: bson.A{1, "x"}}})
	f.Add(byte(bson.TypeEmbeddedDocument), []byte(whole), byte(bson.TypeEmbeddedDocument), []byte(whole))
	f.Add(byte(bson.TypeCodeWithScope), []byte("\x0e\x00\x00\x00\xff\xff\xff\xff123456"), byte(bson.TypeCodeWithScope), []byte("12345678901234"))
	f.Add(byte(bson.TypeDecimal128), bytes.Repeat([]byte{0x7f}, 16), byte(bson.TypeDouble), []byte("12345678"))
	f.Fuzz(func(t *testing.T, at byte, a []byte, bt byte, b []byte) {
		x, y := bson.RawValue{Type: bson.Type(at), Value: a}, bson.RawValue{Type: bson.Type(bt), Value: b}
		if got := Compare(x, x, nil); got != 0 {
			t.Errorf("a value compared with itself gives %d", got)
		}
		if got, back := Compare(x, y, nil), Compare(y, x, nil); got != -back {
			t.Errorf("%d one way, %d the other", got, back)
		}
	})
}

func BenchmarkCompare(b *testing.B) {
	for _, v := range []any{int32(1), "a string of some length", bson.ObjectID{1}, bsongen.Decimal(b, "1.5"), bson.D{{Key: "a", Value: int32(1)}, {Key: "b", Value: "x"}}} {
		b.Run(fmt.Sprintf("%T", v), func(b *testing.B) {
			x, y := bsongen.Of(b, v), bsongen.Of(b, v)
			b.ReportAllocs()
			for b.Loop() {
				Compare(x, y, nil)
			}
		})
	}
}

// Coefficients beyond 34 digits stand for zero, here and for the hash.
func TestDecimalsThatNobodyWrites(t *testing.T) {
	zero := bsongen.Of(t, int32(0))
	odd := bsongen.Of(t, bson.NewDecimal128(0x3041ffffffffffff, 0xffffffffffffffff))
	if c := Compare(odd, zero, nil); c != 0 {
		t.Errorf("it compares as %d with zero", c)
	}
	most := bsongen.Of(t, bsongen.Decimal(t, "9999999999999999999999999999999999"))
	if c := Compare(most, zero, nil); c != 1 {
		t.Errorf("the greatest coefficient compares as %d with zero", c)
	}
}
