package bsonorder

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"strconv"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/testkit/bsongen"
)

// checkKeys holds that the keys of a and b compare as a and b do, also with
// something after them.
func checkKeys(t interface {
	Helper()
	Fatalf(format string, args ...any)
}, a, b bson.RawValue, coll *Collator,
) {
	t.Helper()
	want := Compare(a, b, coll)
	aKey, bKey := AppendKey(nil, a, coll), AppendKey(nil, b, coll)
	if got := bytes.Compare(aKey, bKey); got != want {
		t.Fatalf("%s %s and %s %s compare as %d, their keys %x and %x as %d", a.Type, a, b.Type, b, want, aKey, bKey, got)
	}
	if want != 0 && (bytes.HasPrefix(aKey, bKey) || bytes.HasPrefix(bKey, aKey)) {
		t.Fatalf("of the keys of %s and %s, %x and %x, one begins the other", a, b, aKey, bKey)
	}
	inverse := func(key []byte) []byte { key = bytes.Clone(key); Invert(key); return key }
	if got := bytes.Compare(inverse(aKey), inverse(bKey)); got != -want {
		t.Fatalf("the inverted keys of %s and %s compare as %d, want %d", a, b, got, -want)
	}
}

func TestKeysAreInOrder(t *testing.T) {
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
				var a, b bson.RawValue
				if rapid.Bool().Draw(rt, "near") {
					a, b = bsongen.Of(t, drawValue(rt, 0)), bsongen.Of(t, drawValue(rt, 0))
				} else {
					a, b = bsongen.Value(rt, 2), bsongen.Value(rt, 2)
				}
				checkKeys(rt, a, b, coll)
				checkKeys(rt, a, a, coll)
			})
		})
	}
}

// drawNumber draws numbers of all types that lie close together.
func drawNumber(t *rapid.T) bson.RawValue {
	near := rapid.SampledFrom([]int64{0, 1, 1 << 53, 1<<53 + 1, math.MaxInt64 - 600, math.MaxInt64, math.MinInt64, math.MinInt64 + 1, -(1 << 60)}).Draw(t, "near")
	by := rapid.Int64Range(-3, 3).Draw(t, "by")
	switch rapid.IntRange(0, 3).Draw(t, "kind") {
	case 0:
		return bson.RawValue{Type: bson.TypeInt64, Value: bsoncore.AppendInt64(nil, near+by)}
	case 1:
		f := float64(near)
		for range max(by, -by) {
			f = math.Nextafter(f, math.Inf(cmp.Compare(by, 0)))
		}
		return bson.RawValue{Type: bson.TypeDouble, Value: bsoncore.AppendDouble(nil, f)}
	case 2:
		tail := rapid.SampledFrom([]string{"", ".0", ".5", "E-3", "E3", "E-340", "E300", "E310", "E-6170", "E6100"}).Draw(t, "tail")
		d, err := bson.ParseDecimal128(strconv.FormatInt(near+by, 10) + tail)
		if err != nil {
			t.Skip(err)
		}
		h, l := d.GetBytes()
		return bson.RawValue{Type: bson.TypeDecimal128, Value: bsoncore.AppendDecimal128(nil, h, l)}
	default:
		high, low := rapid.Uint64().Draw(t, "high"), rapid.Uint64().Draw(t, "low")
		return bson.RawValue{Type: bson.TypeDecimal128, Value: bsoncore.AppendDecimal128(nil, high, low)}
	}
}

func TestKeysOfNumbers(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) { checkKeys(rt, drawNumber(rt), drawNumber(rt), nil) })
}

func FuzzAppendKey(f *testing.F) {
	whole := document(f, bson.D{{Key: "a", Value: bson.CodeWithScope{Code: "f", Scope: bson.D{}}}, {Key: "b", Value: bson.A{1, "x"}}})
	f.Add(byte(bson.TypeEmbeddedDocument), []byte(whole))
	f.Add(byte(bson.TypeCodeWithScope), []byte("\x0e\x00\x00\x00\xff\xff\xff\xff123456"))
	f.Add(byte(bson.TypeDecimal128), bytes.Repeat([]byte{0x7f}, 16))
	f.Add(byte(bson.TypeBinary), []byte{1, 2, 3})
	f.Fuzz(func(_ *testing.T, typ byte, value []byte) {
		AppendKey(nil, bson.RawValue{Type: bson.Type(typ), Value: value}, nil)
	})
}

func BenchmarkAppendKey(b *testing.B) {
	for _, v := range []any{int32(1), "a string of some length", bson.ObjectID{1}, bsongen.Decimal(b, "1.5"), bson.D{{Key: "a", Value: int32(1)}, {Key: "b", Value: "x"}}} {
		b.Run(fmt.Sprintf("%T", v), func(b *testing.B) {
			x := bsongen.Of(b, v)
			buf := make([]byte, 0, 100)
			b.ReportAllocs()
			for b.Loop() {
				AppendKey(buf, x, nil)
			}
		})
	}
}
