package serverupdate

import (
	"math"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// parser parses one expression from its field, whose name is the operator's.
type parser func(elem rawbson.Elem, vars *scope) (*expr, error)

// operation evaluates an operator with positional arguments. It evaluates them
// itself: some stop at the first null.
type operation func(ev *evaluation, vars *scope, args []*expr) (value, error)

// variadic as the upper bound of arguments means no bound.
const variadic = math.MaxInt

// expressionOperator returns the parser of an expression by its name with the dollar.
func expressionOperator(name string) (parser, bool) {
	switch name {
	case "$literal", "$const":
		return parseLiteral, true
	case "$cond":
		return parseCond, true
	case "$let":
		return parseLet, true
	case "$map":
		return parseMap, true
	case "$filter":
		return parseFilter, true
	case "$getField":
		return parseGetField, true
	case "$setField", "$unsetField":
		return parseSetField, true
	case "$ifNull":
		return parseIfNull, true
	}
	return positionalOperator(name)
}

// positionalOperator is expressionOperator for operators whose arguments have no names.
func positionalOperator(name string) (parser, bool) {
	switch name {
	case "$concatArrays":
		return positional(0, variadic, concatArrays), true
	case "$mergeObjects":
		return positional(0, variadic, mergeObjects), true
	case "$type":
		return positional(1, 1, typeOf), true
	case "$isArray":
		return positional(1, 1, isArray), true
	case "$size":
		return positional(1, 1, size), true
	case "$range":
		return positional(2, 3, ranged), true
	case "$slice":
		return positional(2, 3, slice), true
	case "$arrayElemAt":
		return positional(2, 2, arrayElemAt), true
	case "$in":
		return positional(2, 2, in), true
	case "$eq":
		return comparison(func(c int) bool { return c == 0 }), true
	case "$ne":
		return comparison(func(c int) bool { return c != 0 }), true
	case "$lt":
		return comparison(func(c int) bool { return c < 0 }), true
	case "$lte":
		return comparison(func(c int) bool { return c <= 0 }), true
	case "$gt":
		return comparison(func(c int) bool { return c > 0 }), true
	case "$gte":
		return comparison(func(c int) bool { return c >= 0 }), true
	case "$not":
		return positional(1, 1, not), true
	case "$and":
		return positional(0, variadic, and), true
	case "$or":
		return positional(0, variadic, or), true
	case "$max":
		return positional(0, variadic, extreme(1)), true
	case "$min":
		return positional(0, variadic, extreme(-1)), true
	case "$add":
		return positional(0, variadic, add), true
	case "$subtract":
		return positional(2, 2, subtract), true
	case "$concat":
		return positional(0, variadic, concat), true
	}
	return nil, false
}

// positional parses arguments in an array, or one that is not in an array.
func positional(low, high int, run operation) parser {
	return func(elem rawbson.Elem, vars *scope) (*expr, error) {
		args, err := arguments(elem, vars)
		if err != nil {
			return nil, err
		}
		if n := len(args); n < low || n > high {
			if low == high {
				return nil, refuse(16020, "Expression %s takes exactly %d arguments. %d were passed in.", elem.Name(), low, n)
			}
			return nil, refuse(28667, "Expression %s takes at least %d arguments, and at most %d, but %d were passed in.",
				elem.Name(), low, high, n)
		}
		return compute(func(ev *evaluation, vars *scope) (value, error) { return run(ev, vars, args) }), nil
	}
}

func arguments(elem rawbson.Elem, vars *scope) ([]*expr, error) {
	if doc, ok := elem.Array(); ok {
		return parseAll(elems(doc), vars)
	}
	return parseAll([]rawbson.Elem{elem}, vars)
}

// evalAll evaluates every argument, in order.
func evalAll(ev *evaluation, vars *scope, args []*expr) ([]value, error) {
	out := make([]value, len(args))
	for i, arg := range args {
		var err error
		if out[i], err = arg.eval(ev, vars); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func parseLiteral(elem rawbson.Elem, _ *scope) (*expr, error) {
	return constant(fromRaw(elem.Type, elem.Value)), nil
}

// argCodes are the error codes of an operator whose arguments have names.
type argCodes struct {
	notObject, unknown int
}

// namedArguments checks that the operator's argument is an object with known
// names only and returns its fields by name, the last one of a name.
func namedArguments(elem rawbson.Elem, codes argCodes, known ...string) (map[string]rawbson.Elem, error) {
	doc, ok := elem.Document()
	if !ok {
		return nil, refuse(codes.notObject, "parse expression %s: its argument is of type %s, not object",
			elem.Name(), bsontext.TypeName(elem.Type))
	}
	out := make(map[string]rawbson.Elem)
next:
	for _, arg := range elems(doc) {
		for _, name := range known {
			if arg.Is(name) {
				out[name] = arg
				continue next
			}
		}
		return nil, refuse(codes.unknown, "parse expression %s: unknown argument %q", elem.Name(), arg.Name())
	}
	return out, nil
}

// required parses the named argument, which must be there.
func required(op string, args map[string]rawbson.Elem, name string, code int, vars *scope) (*expr, error) {
	arg, ok := args[name]
	if !ok {
		return nil, refuse(code, "parse expression %s: argument %q is not there", op, name)
	}
	return parseOperand(arg, vars)
}

// wantArray checks the type of an array argument; the value must not be nullish.
func wantArray(code int, op string, v value) error {
	if !v.isArray() {
		return refuse(code, "evaluate %s: its input is of type %s, not array", op, bsontext.TypeName(v.typ))
	}
	return nil
}

// wantInt32 checks an integer argument: numeric, then exactly an int32.
func wantInt32(notNumeric, notInt int, op string, v value) (int, error) {
	if !v.numeric() {
		return 0, refuse(notNumeric, "evaluate %s: an argument is of type %s, not a number", op, bsontext.TypeName(v.typ))
	}
	n, ok := v.integral()
	if !ok {
		return 0, refuse(notInt, "evaluate %s: a number is no 32-bit integer", op)
	}
	return n, nil
}

func typeOf(ev *evaluation, vars *scope, args []*expr) (value, error) {
	v, err := args[0].eval(ev, vars)
	if err != nil {
		return value{}, err
	}
	return stringValue(bsontext.TypeName(v.typ)), nil
}

func comparison(holds func(c int) bool) parser {
	return positional(2, 2, func(ev *evaluation, vars *scope, args []*expr) (value, error) {
		vals, err := evalAll(ev, vars, args)
		if err != nil {
			return value{}, err
		}
		c, err := ev.compare(vals[0], vals[1])
		if err != nil {
			return value{}, err
		}
		return boolean(holds(c)), nil
	})
}

func not(ev *evaluation, vars *scope, args []*expr) (value, error) {
	v, err := args[0].eval(ev, vars)
	if err != nil {
		return value{}, err
	}
	return boolean(!v.truth()), nil
}

func and(ev *evaluation, vars *scope, args []*expr) (value, error) {
	for _, arg := range args {
		v, err := arg.eval(ev, vars)
		if err != nil {
			return value{}, err
		}
		if !v.truth() {
			return boolean(false), nil
		}
	}
	return boolean(true), nil
}

func or(ev *evaluation, vars *scope, args []*expr) (value, error) {
	for _, arg := range args {
		v, err := arg.eval(ev, vars)
		if err != nil {
			return value{}, err
		}
		if v.truth() {
			return boolean(true), nil
		}
	}
	return boolean(false), nil
}

// accumulate gives each input of an operator that is also an accumulator to
// take: a single array argument counts as its elements.
func accumulate(ev *evaluation, vars *scope, args []*expr, take func(v value) error) error {
	vals, err := evalAll(ev, vars, args)
	if err != nil {
		return err
	}
	if len(vals) == 1 && vals[0].isArray() {
		vals = vals[0].arr
	}
	if err := ev.spend(len(vals)); err != nil {
		return err
	}
	for _, v := range vals {
		if err := take(v); err != nil {
			return err
		}
	}
	return nil
}

// extreme is $max with sign 1 and $min with sign -1.
func extreme(sign int) operation {
	return func(ev *evaluation, vars *scope, args []*expr) (value, error) {
		best := null
		err := accumulate(ev, vars, args, func(v value) error {
			if v.nullish() {
				return nil
			}
			if !best.nullish() {
				if c, err := ev.compare(v, best); err != nil || c*sign <= 0 {
					return err
				}
			}
			best = v
			return nil
		})
		return best, err
	}
}

func concat(ev *evaluation, vars *scope, args []*expr) (value, error) {
	var text strings.Builder
	for _, arg := range args {
		v, err := arg.eval(ev, vars)
		if err != nil || v.nullish() {
			return null, err
		}
		if v.typ != bson.TypeString {
			return value{}, refuse(16702, "$concat only supports strings, not %s", bsontext.TypeName(v.typ))
		}
		if err := ev.spend(len(v.raw)); err != nil {
			return value{}, err
		}
		text.WriteString(v.text())
	}
	return stringValue(text.String()), nil
}

// unmodelledExpressions are the operators of a 5.0 server that this package does
// not know. Other names that are not modelled are not expressions.
var unmodelledExpressions = map[string]bool{
	"$abs": true, "$acos": true, "$acosh": true, "$allElementsTrue": true, "$anyElementTrue": true, "$arrayToObject": true,
	"$asin": true, "$asinh": true, "$atan": true, "$atan2": true, "$atanh": true, "$avg": true, "$binarySize": true,
	"$bsonSize": true, "$ceil": true, "$cmp": true, "$convert": true, "$cos": true, "$cosh": true, "$dateAdd": true,
	"$dateDiff": true, "$dateFromParts": true, "$dateFromString": true, "$dateSubtract": true, "$dateToParts": true,
	"$dateToString": true, "$dateTrunc": true, "$dayOfMonth": true, "$dayOfWeek": true, "$dayOfYear": true,
	"$degreesToRadians": true, "$divide": true, "$exp": true, "$first": true, "$floor": true, "$function": true,
	"$hour": true, "$indexOfArray": true, "$indexOfBytes": true, "$indexOfCP": true, "$isNumber": true,
	"$isoDayOfWeek": true, "$isoWeek": true, "$isoWeekYear": true, "$last": true, "$ln": true, "$log": true, "$log10": true,
	"$ltrim": true, "$meta": true, "$millisecond": true, "$minute": true, "$mod": true, "$month": true, "$multiply": true,
	"$objectToArray": true, "$pow": true, "$radiansToDegrees": true, "$rand": true, "$reduce": true, "$regexFind": true,
	"$regexFindAll": true, "$regexMatch": true, "$replaceAll": true, "$replaceOne": true, "$reverseArray": true,
	"$round": true, "$rtrim": true, "$sampleRate": true, "$second": true, "$setDifference": true, "$setEquals": true,
	"$setIntersection": true, "$setIsSubset": true, "$setUnion": true, "$sin": true, "$sinh": true, "$split": true,
	"$sqrt": true, "$stdDevPop": true, "$stdDevSamp": true, "$strcasecmp": true, "$strLenBytes": true, "$strLenCP": true,
	"$substr": true, "$substrBytes": true, "$substrCP": true, "$sum": true, "$switch": true, "$tan": true, "$tanh": true,
	"$toBool": true, "$toDate": true, "$toDecimal": true, "$toDouble": true, "$toHashedIndexKey": true, "$toInt": true,
	"$toLong": true, "$toLower": true, "$toObjectId": true, "$toString": true, "$toUpper": true, "$trim": true,
	"$trunc": true, "$week": true, "$year": true, "$zip": true,
}
