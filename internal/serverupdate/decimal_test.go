package serverupdate

import (
	"math"
	"math/big"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/bsonorder"
)

func decimalFrom(t failer, s string) decimal {
	t.Helper()
	d, err := bson.ParseDecimal128(s)
	if err != nil {
		t.Fatalf("%s: %v", s, err)
	}
	_, raw, err := bson.MarshalValue(d)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return decimalOf(raw)
}

func (d decimal) text() string { return bson.NewDecimal128(d.encode()).String() }

func TestDecimal(t *testing.T) {
	const nines = "9999999999999999999999999999999999" // 34 of them
	for _, tt := range []struct{ op, a, b, want string }{
		{"+", "1.50", "2", "3.50"},
		{"+", "1E+3", "1E-3", "1000.001"},
		{"+", "-1", "1.0", "0.0"},
		{"+", "-0", "-0", "-0"},
		{"+", "-0", "0", "0"},
		{"+", nines, "1", "1.000000000000000000000000000000000E+34"},
		{"+", nines, "0.5", "1.000000000000000000000000000000000E+34"},
		{"+", "9999999999999999999999999999999998", "0.5", "9999999999999999999999999999999998"},
		{"+", "1E+6000", "1", "1.000000000000000000000000000000000E+6000"},
		{"+", "9.999999999999999999999999999999999E+6144", "9.999999999999999999999999999999999E+6144", "Infinity"},
		{"+", "Infinity", "-Infinity", "NaN"},
		{"+", "Infinity", "5", "Infinity"},
		{"+", "5", "-Infinity", "-Infinity"},
		{"+", "NaN", "1", "NaN"},
		{"*", "1.5", "-2.0", "-3.00"},
		{"*", "0", "-5", "-0"},
		{"*", nines, nines, "9.999999999999999999999999999999998E+67"},
		{"*", "1E-6176", "0.5", "0E-6176"},
		{"*", "1E-6176", "1.5", "2E-6176"},
		{"*", "1E-6176", "1E-6176", "0E-6176"},
		{"*", "1E+6111", "1E+3", "1.000E+6114"},
		{"*", "1E+6111", "1E+40", "Infinity"},
		{"*", "-1E+6111", "1E+6111", "-Infinity"},
		{"*", "0", "Infinity", "NaN"},
		{"*", "-2", "Infinity", "-Infinity"},
	} {
		a, b := decimalFrom(t, tt.a), decimalFrom(t, tt.b)
		got := a.add(b)
		if tt.op == "*" {
			got = a.mul(b)
		}
		if got.text() != tt.want {
			t.Errorf("%s %s %s: got %s, want %s", tt.a, tt.op, tt.b, got.text(), tt.want)
		}
	}
	for f, want := range map[float64]string{
		0.1: "0.100000000000000", 1: "1.00000000000000", -2.5e300: "-2.50000000000000E+300", 1.0 / 3: "0.333333333333333",
		0: "0", math.Copysign(0, -1): "-0", math.Inf(-1): "-Infinity",
	} {
		if got := decimalOfFloat(f).text(); got != want {
			t.Errorf("%v: got %s, want %s", f, got, want)
		}
	}
	if got := decimalOfFloat(math.NaN()).text(); got != "NaN" {
		t.Errorf("NaN: got %s", got)
	}
}

// TestDecimalExact compares sums and products that need no rounding with those of
// rational numbers, and checks that values are unchanged by reading and writing.
func TestDecimalExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) decimal {
			d := decimal{exp: rapid.IntRange(-8, 8).Draw(t, name+" exponent")}
			d.coefficient.SetInt64(rapid.Int64Range(-1e8, 1e8).Draw(t, name))
			return d.signed()
		}
		a, b := draw("a"), draw("b")
		if got := decimalFrom(t, a.text()); !got.equal(a) || got.text() != a.text() {
			t.Fatalf("%s came back as %s", a.text(), got.text())
		}
		rational := func(d decimal) *big.Rat {
			h, l := d.encode()
			_, raw, _ := bson.MarshalValue(bson.NewDecimal128(h, l))
			r, _ := bsonorder.Finite(bson.RawValue{Type: bson.TypeDecimal128, Value: raw})
			return r
		}
		if sum, want := rational(a.add(b)), new(big.Rat).Add(rational(a), rational(b)); sum.Cmp(want) != 0 {
			t.Fatalf("%s + %s = %s", a.text(), b.text(), sum)
		}
		if product, want := rational(a.mul(b)), new(big.Rat).Mul(rational(a), rational(b)); product.Cmp(want) != 0 {
			t.Fatalf("%s * %s = %s", a.text(), b.text(), product)
		}
	})
}
