package serverupdate

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/rawbson"
)

func parseCond(elem rawbson.Elem, vars *scope) (*expr, error) {
	if elem.Type != bson.TypeEmbeddedDocument {
		return positional(3, 3, func(ev *evaluation, vars *scope, args []*expr) (value, error) {
			return choose(ev, vars, args[0], args[1], args[2])
		})(elem, vars)
	}
	args, err := namedArguments(elem, argCodes{unknown: 17083}, "if", "then", "else")
	if err != nil {
		return nil, err
	}
	var parts [3]*expr
	for i, name := range []string{"if", "then", "else"} {
		if parts[i], err = required("$cond", args, name, 17080+i, vars); err != nil {
			return nil, err
		}
	}
	return compute(func(ev *evaluation, vars *scope) (value, error) {
		return choose(ev, vars, parts[0], parts[1], parts[2])
	}), nil
}

func choose(ev *evaluation, vars *scope, test, yes, no *expr) (value, error) {
	v, err := test.eval(ev, vars)
	if err != nil {
		return value{}, err
	}
	if v.truth() {
		return yes.eval(ev, vars)
	}
	return no.eval(ev, vars)
}

func parseIfNull(elem rawbson.Elem, vars *scope) (*expr, error) {
	args, err := arguments(elem, vars)
	if err != nil {
		return nil, err
	}
	if len(args) < 2 {
		return nil, refuse(1257300, "parse expression $ifNull: it has %d arguments, at least 2 are needed", len(args))
	}
	return compute(func(ev *evaluation, vars *scope) (v value, err error) {
		for _, arg := range args {
			if v, err = arg.eval(ev, vars); err != nil || !v.nullish() {
				break
			}
		}
		return v, err
	}), nil
}

func parseLet(elem rawbson.Elem, vars *scope) (*expr, error) {
	args, err := namedArguments(elem, argCodes{16874, 16875}, "vars", "in")
	if err != nil {
		return nil, err
	}
	defs, ok := args["vars"]
	if !ok {
		return nil, refuse(16876, "parse expression $let: argument \"vars\" is not there")
	}
	body, ok := args["in"]
	if !ok {
		return nil, refuse(16877, "parse expression $let: argument \"in\" is not there")
	}
	doc, ok := defs.Document()
	if !ok {
		return nil, refuse(10065, "parse expression $let: vars is of type %s, not object", bsontext.TypeName(defs.Type))
	}
	list := elems(doc)
	values, err := parseAll(list, vars) // they see the outer variables only
	if err != nil {
		return nil, err
	}
	inner := vars
	for _, def := range list {
		if err := checkVariableWrite(def.Name()); err != nil {
			return nil, err
		}
		inner = inner.with(def.Name(), value{})
	}
	in, err := parseOperand(body, inner)
	if err != nil {
		return nil, err
	}
	return compute(func(ev *evaluation, vars *scope) (value, error) {
		inner := vars
		for i, def := range list {
			v, err := values[i].eval(ev, vars)
			if err != nil {
				return value{}, err
			}
			inner = inner.with(def.Name(), v)
		}
		return in.eval(ev, inner)
	}), nil
}

// loop is the common part of $map and $filter: an input array, the name of the
// variable that stands for the element, and an expression that sees it.
type loop struct {
	input, body *expr
	variable    string
}

func parseLoop(elem rawbson.Elem, codes argCodes, body string, noInput, noBody int, vars *scope) (l loop, err error) {
	args, err := namedArguments(elem, codes, "input", "as", body)
	if err != nil {
		return l, err
	}
	if _, ok := args[body]; !ok {
		if _, ok := args["input"]; ok {
			return l, refuse(noBody, "parse expression %s: argument %q is not there", elem.Name(), body)
		}
	}
	if l.input, err = required(elem.Name(), args, "input", noInput, vars); err != nil {
		return l, err
	}
	l.variable = "this"
	if as, ok := args["as"]; ok {
		if l.variable, ok = as.Text(); !ok {
			// The server reads a value that is not a string as the empty name.
			l.variable = ""
		}
	}
	if err := checkVariableWrite(l.variable); err != nil {
		return l, err
	}
	l.body, err = parseOperand(args[body], vars.with(l.variable, value{}))
	return l, err
}

// each evaluates the input and calls take with every element and the body's
// value. It returns a value that ends the evaluation early: null for no input.
func (l loop) each(ev *evaluation, vars *scope, op string, notArray int, take func(elem, result value)) (value, bool, error) {
	input, err := l.input.eval(ev, vars)
	if err != nil || input.nullish() {
		return null, true, err
	}
	if err := wantArray(notArray, op, input); err != nil {
		return value{}, true, err
	}
	for _, elem := range input.arr {
		result, err := l.body.eval(ev, vars.with(l.variable, elem))
		if err != nil {
			return value{}, true, err
		}
		take(elem, result)
	}
	return value{}, false, nil
}

func parseMap(elem rawbson.Elem, vars *scope) (*expr, error) {
	l, err := parseLoop(elem, argCodes{16878, 16879}, "in", 16880, 16882, vars)
	if err != nil {
		return nil, err
	}
	return compute(func(ev *evaluation, vars *scope) (value, error) {
		out := []value{}
		v, done, err := l.each(ev, vars, "$map", 16883, func(_, result value) {
			if result.missing() {
				result = null
			}
			out = append(out, result)
		})
		if done {
			return v, err
		}
		return arrayValue(out), nil
	}), nil
}

func parseFilter(elem rawbson.Elem, vars *scope) (*expr, error) {
	l, err := parseLoop(elem, argCodes{28646, 28647}, "cond", 28648, 28650, vars)
	if err != nil {
		return nil, err
	}
	return compute(func(ev *evaluation, vars *scope) (value, error) {
		out := []value{}
		v, done, err := l.each(ev, vars, "$filter", 28651, func(elem, result value) {
			if result.truth() {
				out = append(out, elem)
			}
		})
		if done {
			return v, err
		}
		return arrayValue(out), nil
	}), nil
}
