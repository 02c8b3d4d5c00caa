package serverupdate

import (
	"encoding/hex"
	"math"
	"math/big"
	"slices"
	"strconv"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// This file has the operators that reads ask for and no translated delta does.

func compareThree(ev *evaluation, vars *scope, args []*expr) (value, error) {
	vals, err := evalAll(ev, vars, args)
	if err != nil {
		return value{}, err
	}
	c, err := ev.compare(vals[0], vals[1])
	return int32Value(int32(c)), err
}

// multiply takes int32, int64 and double; the result is the widest type of the
// inputs, or wider where the product does not fit.
func multiply(ev *evaluation, vars *scope, args []*expr) (value, error) {
	widest := bson.TypeInt32
	exact, inexact := big.NewInt(1), 1.0
	for _, arg := range args {
		v, err := arg.eval(ev, vars)
		if err != nil || v.nullish() {
			return null, err
		}
		switch v.typ {
		case bson.TypeInt32, bson.TypeInt64:
			if v.typ == bson.TypeInt64 && widest == bson.TypeInt32 {
				widest = bson.TypeInt64
			}
			exact.Mul(exact, big.NewInt(whole(v)))
		case bson.TypeDouble:
			widest = bson.TypeDouble
		case bson.TypeDecimal128:
			return value{}, refuse(servererr.NotImplemented, "$multiply of decimals is not implemented")
		default:
			return value{}, refuse(codeTypeMismatch, "$multiply only supports numeric types, not %s", bsontext.TypeName(v.typ))
		}
		inexact *= asFloat(v)
	}
	switch {
	case widest == bson.TypeDouble || !exact.IsInt64():
		return doubleValue(inexact), nil
	case widest == bson.TypeInt64:
		return int64Value(exact.Int64()), nil
	default:
		return narrowInt(exact.Int64()), nil
	}
}

func divide(ev *evaluation, vars *scope, args []*expr) (value, error) {
	vals, err := evalAll(ev, vars, args)
	if err != nil {
		return value{}, err
	}
	l, r := vals[0], vals[1]
	switch {
	case l.numeric() && r.numeric():
	case l.nullish() || r.nullish():
		return null, nil
	default:
		return value{}, refuse(codeTypeMismatch, "$divide only supports numeric types, not %s and %s", bsontext.TypeName(l.typ), bsontext.TypeName(r.typ))
	}
	if l.typ == bson.TypeDecimal128 || r.typ == bson.TypeDecimal128 {
		return value{}, refuse(servererr.NotImplemented, "$divide of decimals is not implemented")
	}
	if asFloat(r) == 0 {
		return value{}, refuse(codeBadValue, "can't $divide by zero")
	}
	return doubleValue(asFloat(l) / asFloat(r)), nil
}

func modulo(ev *evaluation, vars *scope, args []*expr) (value, error) {
	vals, err := evalAll(ev, vars, args)
	if err != nil {
		return value{}, err
	}
	l, r := vals[0], vals[1]
	switch {
	case l.numeric() && r.numeric():
	case l.nullish() || r.nullish():
		return null, nil
	default:
		return value{}, refuse(16611, "$mod only supports numeric types, not %s and %s", bsontext.TypeName(l.typ), bsontext.TypeName(r.typ))
	}
	switch {
	case l.typ == bson.TypeDecimal128 || r.typ == bson.TypeDecimal128:
		return value{}, refuse(servererr.NotImplemented, "$mod of decimals is not implemented")
	case asFloat(r) == 0:
		return value{}, refuse(16610, "can't $mod by zero")
	case l.typ == bson.TypeDouble || r.typ == bson.TypeDouble:
		return doubleValue(math.Mod(asFloat(l), asFloat(r))), nil
	case l.typ == bson.TypeInt64 || r.typ == bson.TypeInt64:
		return int64Value(whole(l) % whole(r)), nil
	default:
		return int32Value(int32(whole(l) % whole(r))), nil
	}
}

// sum adds numeric values and ignores the rest.
func sum(ev *evaluation, vars *scope, args []*expr) (value, error) {
	var numbers []*expr
	err := accumulate(ev, vars, args, func(v value) error {
		if v.numeric() {
			numbers = append(numbers, constant(v))
		}
		return nil
	})
	if err != nil {
		return value{}, err
	}
	return add(ev, vars, numbers)
}

func isNumber(ev *evaluation, vars *scope, args []*expr) (value, error) {
	v, err := args[0].eval(ev, vars)
	return boolean(v.numeric()), err
}

// arrayEnd is $first and $last.
func arrayEnd(op string, pick func(n int) int) operation {
	return func(ev *evaluation, vars *scope, args []*expr) (value, error) {
		v, err := args[0].eval(ev, vars)
		if err != nil || v.nullish() {
			return null, err
		}
		if !v.isArray() {
			return value{}, refuse(28689, "%s's argument must be an array, but is %s", op, bsontext.TypeName(v.typ))
		}
		if len(v.arr) == 0 {
			return value{}, nil
		}
		return v.arr[pick(len(v.arr))], nil
	}
}

func reverseArray(ev *evaluation, vars *scope, args []*expr) (value, error) {
	v, err := args[0].eval(ev, vars)
	if err != nil || v.nullish() {
		return null, err
	}
	if !v.isArray() {
		return value{}, refuse(34435, "The argument to $reverseArray must be an array, but was of type: %s", bsontext.TypeName(v.typ))
	}
	out := slices.Clone(v.arr)
	slices.Reverse(out)
	return arrayValue(out), ev.spend(len(out))
}

// stringLength is $strLenBytes and $strLenCP.
func stringLength(op string, code int, count func(string) int) operation {
	return func(ev *evaluation, vars *scope, args []*expr) (value, error) {
		v, err := args[0].eval(ev, vars)
		if err != nil {
			return value{}, err
		}
		if v.typ != bson.TypeString {
			return value{}, refuse(code, "%s requires a string argument, found: %s", op, bsontext.TypeName(v.typ))
		}
		return int32Value(int32(count(v.text()))), nil
	}
}

func bytesOf(s string) int { return len(s) }

// changeCase is $toLower and $toUpper, which know ASCII only.
func changeCase(from, to byte) operation {
	return func(ev *evaluation, vars *scope, args []*expr) (value, error) {
		v, err := args[0].eval(ev, vars)
		switch {
		case err != nil:
			return value{}, err
		case v.nullish():
			return stringValue(""), nil
		case v.typ != bson.TypeString:
			return value{}, refuse(servererr.NotImplemented, "changing the case of a value of type %s is not implemented", bsontext.TypeName(v.typ))
		}
		out := []byte(v.text())
		for i, c := range out {
			if c >= from && c < from+26 {
				out[i] = c - from + to
			}
		}
		return stringValue(string(out)), nil
	}
}

// toString converts the types whose text is beyond doubt.
func toString(ev *evaluation, vars *scope, args []*expr) (value, error) {
	v, err := args[0].eval(ev, vars)
	if err != nil || v.nullish() {
		return null, err
	}
	switch v.typ {
	case bson.TypeString:
		return v, nil
	case bson.TypeInt32, bson.TypeInt64:
		return stringValue(strconv.FormatInt(whole(v), 10)), nil
	case bson.TypeBoolean:
		return stringValue(strconv.FormatBool(v.truth())), nil
	case bson.TypeObjectID:
		return stringValue(hex.EncodeToString(v.raw)), nil
	case bson.TypeEmbeddedDocument, bson.TypeArray, bson.TypeRegex, bson.TypeMinKey, bson.TypeMaxKey,
		bson.TypeBinary, bson.TypeTimestamp, bson.TypeJavaScript, bson.TypeCodeWithScope, bson.TypeSymbol, bson.TypeDBPointer:
		return value{}, refuse(servererr.ConversionFailure,
			"Unsupported conversion from %s to string in $convert with no onError value", bsontext.TypeName(v.typ))
	default:
		return value{}, refuse(servererr.NotImplemented, "$toString of type %s is not implemented", bsontext.TypeName(v.typ))
	}
}

// scalarOperator returns the parser of an operator of this file.
func scalarOperator(name string) (parser, bool) {
	switch name {
	case "$cmp":
		return positional(2, 2, compareThree), true
	case "$multiply":
		return positional(0, variadic, multiply), true
	case "$divide":
		return positional(2, 2, divide), true
	case "$mod":
		return positional(2, 2, modulo), true
	case "$sum":
		return positional(0, variadic, sum), true
	case "$isNumber":
		return positional(1, 1, isNumber), true
	case "$first":
		return positional(1, 1, arrayEnd(name, func(int) int { return 0 })), true
	case "$last":
		return positional(1, 1, arrayEnd(name, func(n int) int { return n - 1 })), true
	case "$reverseArray":
		return positional(1, 1, reverseArray), true
	case "$strLenBytes":
		return positional(1, 1, stringLength(name, 34473, bytesOf)), true
	case "$strLenCP":
		return positional(1, 1, stringLength(name, 34471, utf8.RuneCountInString)), true
	case "$toLower":
		return positional(1, 1, changeCase('A', 'a')), true
	case "$toUpper":
		return positional(1, 1, changeCase('a', 'A')), true
	case "$toString":
		return positional(1, 1, toString), true
	}
	return nil, false
}

// unmodelledExpressions are the operators of a 5.0 server that this package does
// not know. Other names that are not modelled are not expressions.
var unmodelledExpressions = map[string]bool{
	"$abs": true, "$acos": true, "$acosh": true, "$allElementsTrue": true, "$anyElementTrue": true,
	"$asin": true, "$asinh": true, "$atan": true, "$atan2": true, "$atanh": true, "$avg": true,
	"$binarySize": true, "$bsonSize": true, "$ceil": true, "$convert": true, "$cos": true, "$cosh": true,
	"$dateAdd": true, "$dateDiff": true, "$dateFromParts": true, "$dateFromString": true, "$dateSubtract": true,
	"$dateToParts": true, "$dateToString": true, "$dateTrunc": true, "$dayOfMonth": true, "$dayOfWeek": true,
	"$dayOfYear": true, "$degreesToRadians": true, "$exp": true, "$floor": true, "$function": true,
	"$hour": true, "$indexOfArray": true, "$indexOfBytes": true, "$indexOfCP": true, "$isoDayOfWeek": true,
	"$isoWeek": true, "$isoWeekYear": true, "$ln": true, "$log": true, "$log10": true, "$ltrim": true,
	"$meta": true, "$millisecond": true, "$minute": true, "$month": true, "$pow": true,
	"$radiansToDegrees": true, "$rand": true, "$regexFind": true, "$regexFindAll": true, "$regexMatch": true,
	"$replaceAll": true, "$replaceOne": true, "$round": true, "$rtrim": true, "$sampleRate": true,
	"$second": true, "$setDifference": true, "$setEquals": true, "$setIntersection": true, "$setIsSubset": true,
	"$setUnion": true, "$sin": true, "$sinh": true, "$split": true, "$sqrt": true, "$stdDevPop": true,
	"$stdDevSamp": true, "$strcasecmp": true, "$substr": true, "$substrBytes": true, "$substrCP": true,
	"$tan": true, "$tanh": true, "$toBool": true, "$toDate": true, "$toDecimal": true, "$toDouble": true,
	"$toHashedIndexKey": true, "$toInt": true, "$toLong": true, "$toObjectId": true, "$trim": true,
	"$trunc": true, "$week": true, "$year": true, "$zip": true,
}
