package serverupdate

import (
	"math"
	"math/big"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsontext"
)

func isArray(ev *evaluation, vars *scope, args []*expr) (value, error) {
	v, err := args[0].eval(ev, vars)
	if err != nil {
		return value{}, err
	}
	return boolean(v.isArray()), nil
}

func size(ev *evaluation, vars *scope, args []*expr) (value, error) {
	v, err := args[0].eval(ev, vars)
	if err != nil {
		return value{}, err
	}
	if err := wantArray(17124, "$size", v); err != nil {
		return value{}, err
	}
	return narrowInt(int64(len(v.arr))), nil
}

func concatArrays(ev *evaluation, vars *scope, args []*expr) (value, error) {
	out := []value{}
	for _, arg := range args {
		v, err := arg.eval(ev, vars)
		if err != nil || v.nullish() {
			return null, err
		}
		if err := wantArray(28664, "$concatArrays", v); err != nil {
			return value{}, err
		}
		if err := ev.spend(len(v.arr)); err != nil {
			return value{}, err
		}
		out = append(out, v.arr...)
	}
	return arrayValue(out), nil
}

func in(ev *evaluation, vars *scope, args []*expr) (value, error) {
	vals, err := evalAll(ev, vars, args)
	if err != nil {
		return value{}, err
	}
	if err := wantArray(40081, "$in", vals[1]); err != nil {
		return value{}, err
	}
	if err := ev.spend(len(vals[1].arr)); err != nil {
		return value{}, err
	}
	for _, elem := range vals[1].arr {
		c, err := ev.compare(vals[0], elem)
		if err != nil {
			return value{}, err
		}
		if c == 0 {
			return boolean(true), nil
		}
	}
	return boolean(false), nil
}

func arrayElemAt(ev *evaluation, vars *scope, args []*expr) (value, error) {
	vals, err := evalAll(ev, vars, args)
	if err != nil {
		return value{}, err
	}
	if vals[0].nullish() || vals[1].nullish() {
		return null, nil
	}
	if err := wantArray(28689, "$arrayElemAt", vals[0]); err != nil {
		return value{}, err
	}
	i, err := wantInt32(28690, 28691, "$arrayElemAt", vals[1])
	if err != nil {
		return value{}, err
	}
	if i < 0 {
		i += len(vals[0].arr) // from the back
	}
	if i < 0 || i >= len(vals[0].arr) {
		return value{}, nil
	}
	return vals[0].arr[i], nil
}

func ranged(ev *evaluation, vars *scope, args []*expr) (value, error) {
	vals, err := evalAll(ev, vars, args)
	if err != nil {
		return value{}, err
	}
	from, err := wantInt32(34443, 34444, "$range", vals[0])
	if err != nil {
		return value{}, err
	}
	to, err := wantInt32(34445, 34446, "$range", vals[1])
	if err != nil {
		return value{}, err
	}
	step := 1
	if len(vals) == 3 {
		if step, err = wantInt32(34447, 34448, "$range", vals[2]); err != nil {
			return value{}, err
		}
		if step == 0 {
			return value{}, refuse(34449, "evaluate $range: its step is zero")
		}
	}
	n := max((to-from)/step, 0) + 1 // or one more than there will be
	if err := ev.spend(n); err != nil {
		return value{}, err
	}
	out := []value{}
	for i := from; (step > 0 && i < to) || (step < 0 && i > to); i += step {
		out = append(out, int32Value(int32(i)))
	}
	return arrayValue(out), nil
}

func slice(ev *evaluation, vars *scope, args []*expr) (value, error) {
	vals, err := evalAll(ev, vars, args[:2])
	if err != nil {
		return value{}, err
	}
	if vals[0].nullish() || vals[1].nullish() {
		return null, nil
	}
	if err := wantArray(28724, "$slice", vals[0]); err != nil {
		return value{}, err
	}
	arr := vals[0].arr
	n, err := wantInt32(28725, 28726, "$slice", vals[1])
	if err != nil {
		return value{}, err
	}
	start, end := 0, len(arr)
	switch {
	case len(args) == 2 && n >= 0:
		end = min(n, len(arr))
	case n < 0:
		start = max(len(arr)+n, 0) // the last ones
	default:
		start = min(n, len(arr))
	}
	if len(args) == 3 {
		// The server looks at the third argument only after the others.
		countVal, err := args[2].eval(ev, vars)
		if err != nil || countVal.nullish() {
			return null, err
		}
		count, err := wantInt32(28727, 28728, "$slice", countVal)
		if err != nil {
			return value{}, err
		}
		if count <= 0 {
			return value{}, refuse(28729, "evaluate $slice: its third argument is %d, not positive", count)
		}
		end = min(start+count, len(arr))
	}
	return arrayValue(slices.Clone(arr[start:end])), ev.spend(end - start)
}

// add sums int32, int64, double and one date. The result is the widest type of
// the inputs, or wider where the sum does not fit.
func add(ev *evaluation, vars *scope, args []*expr) (value, error) {
	widest := bson.TypeInt32
	exact, inexact := new(big.Rat), 0.0
	date, special := false, false
	for _, arg := range args {
		v, err := arg.eval(ev, vars)
		if err != nil || v.nullish() {
			return null, err
		}
		switch v.typ {
		case bson.TypeDateTime:
			if date {
				return value{}, refuse(16612, "only one date allowed in an $add expression")
			}
			date = true
			exact.Add(exact, big.NewRat(v.int64(), 1))
			continue
		case bson.TypeInt32:
		case bson.TypeInt64:
			if widest == bson.TypeInt32 {
				widest = bson.TypeInt64
			}
		case bson.TypeDouble:
			widest = bson.TypeDouble
		case bson.TypeDecimal128:
			return value{}, refuse(16417, "evaluate $add: decimals are not supported")
		default:
			return value{}, refuse(16554, "$add only supports numeric or date types, not %s", bsontext.TypeName(v.typ))
		}
		if r, finite := v.rational(); finite {
			exact.Add(exact, r)
		} else {
			special = true
			inexact += v.float()
		}
	}
	whole, fits := rounded(exact)
	switch {
	case date && (special || !fits):
		return value{}, refuse(codeOverflow, "evaluate $add: the date is out of range")
	case date:
		return value{typ: bson.TypeDateTime, raw: int64Value(whole).raw}, nil
	case special:
		return doubleValue(inexact), nil
	case widest == bson.TypeInt64 && fits:
		return int64Value(whole), nil
	case widest == bson.TypeInt32 && fits:
		return narrowInt(whole), nil
	}
	f, _ := exact.Float64()
	return doubleValue(f), nil
}

// rounded is the integer part of r, if an int64 holds it.
func rounded(r *big.Rat) (int64, bool) {
	n := new(big.Int).Quo(r.Num(), r.Denom())
	return n.Int64(), n.IsInt64()
}

func subtract(ev *evaluation, vars *scope, args []*expr) (value, error) {
	vals, err := evalAll(ev, vars, args)
	if err != nil {
		return value{}, err
	}
	l, r := vals[0], vals[1]
	switch {
	case l.nullish() || r.nullish():
		return null, nil
	case l.typ == bson.TypeDecimal128 || r.typ == bson.TypeDecimal128:
		return value{}, refuse(16556, "evaluate $subtract: decimals are not supported")
	case l.numeric() && r.numeric() && (l.typ == bson.TypeDouble || r.typ == bson.TypeDouble):
		return doubleValue(asFloat(l) - asFloat(r)), nil
	case l.numeric() && r.numeric(), l.typ == bson.TypeDateTime && (r.typ == bson.TypeDateTime || r.numeric()):
		return subtractWhole(l, r)
	case l.typ == bson.TypeDateTime:
		return value{}, refuse(16613, "evaluate $subtract: %s from a date", bsontext.TypeName(r.typ))
	}
	return value{}, refuse(16556, "evaluate $subtract: %s from %s", bsontext.TypeName(r.typ), bsontext.TypeName(l.typ))
}

func subtractWhole(l, r value) (value, error) {
	a, b := whole(l), whole(r)
	d := a - b
	if (a < b) != (d < 0) {
		return value{}, refuse(codeOverflow, "evaluate $subtract: the difference is no 64-bit integer")
	}
	switch {
	case l.typ == bson.TypeDateTime && r.typ != bson.TypeDateTime:
		return value{typ: bson.TypeDateTime, raw: int64Value(d).raw}, nil
	case l.typ == bson.TypeInt32 && r.typ == bson.TypeInt32:
		return narrowInt(d), nil
	default:
		return int64Value(d), nil
	}
}

// whole reads a date or a number as an int64, truncating fractions and values
// out of range.
func whole(v value) int64 {
	switch v.typ {
	case bson.TypeInt32:
		return int64(v.int32())
	case bson.TypeDouble:
		f := v.float()
		switch {
		case math.IsNaN(f):
			return 0
		case f >= math.MaxInt64:
			return math.MaxInt64
		case f <= math.MinInt64:
			return math.MinInt64
		}
		return int64(f)
	default:
		return v.int64()
	}
}

func asFloat(v value) float64 {
	if v.typ == bson.TypeDouble {
		return v.float()
	}
	return float64(whole(v))
}
