package serverupdate

import (
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/rawbson"
)

func mergeObjects(ev *evaluation, vars *scope, args []*expr) (value, error) {
	out := fresh()
	err := accumulate(ev, vars, args, func(v value) error {
		if v.nullish() {
			return nil
		}
		if !v.isObject() {
			return refuse(40400, "evaluate $mergeObjects: an input is of type %s, not object", bsontext.TypeName(v.typ))
		}
		fields := v.doc.fields()
		for _, f := range fields {
			out.set(f.name, f.val)
		}
		return ev.spend(len(fields))
	})
	if err != nil {
		return value{}, err
	}
	return out.value(), nil
}

// constantName returns the constant string that the field argument has to be.
func constantName(op string, field *expr, reference, notConstant, notString int) (string, error) {
	switch {
	case field.reference:
		return "", refuse(reference, "parse expression %s: field is a field path, not a constant", op)
	case field.literal == nil:
		return "", refuse(notConstant, "parse expression %s: field is not a constant", op)
	case field.literal.typ != bson.TypeString:
		return "", refuse(notString, "parse expression %s: field is of type %s, not string", op, bsontext.TypeName(field.literal.typ))
	}
	return field.literal.text(), nil
}

func parseGetField(elem rawbson.Elem, vars *scope) (*expr, error) {
	var field, input *expr
	var err error
	short := true
	if doc, ok := elem.Document(); ok {
		list := elems(doc)
		// {$getField: {$literal: "a"}} is the short form, {$getField: {}} is not.
		short = len(list) > 0 && strings.HasPrefix(list[0].Name(), "$")
	}
	if short {
		if field, err = parseOperand(elem, vars); err != nil {
			return nil, err
		}
		if input, err = parseFieldPath("$$CURRENT", vars); err != nil {
			return nil, err
		}
	} else {
		args, err := namedArguments(elem, argCodes{unknown: 3041701}, "field", "input")
		if err != nil {
			return nil, err
		}
		if field, err = required("$getField", args, "field", 3041702, vars); err != nil {
			return nil, err
		}
		if input, err = required("$getField", args, "input", 3041703, vars); err != nil {
			return nil, err
		}
	}
	name, err := constantName("$getField", field, 5654600, 5654601, 5654602)
	if err != nil {
		return nil, err
	}
	return compute(func(ev *evaluation, vars *scope) (value, error) {
		v, err := input.eval(ev, vars)
		switch {
		case err != nil:
			return value{}, err
		case v.isObject():
			return v.doc.get(name), nil
		case v.nullish() && !v.missing():
			return null, nil
		default:
			return value{}, nil
		}
	}), nil
}

func parseSetField(elem rawbson.Elem, vars *scope) (*expr, error) {
	op, known := elem.Name(), []string{"field", "input"}
	if op == "$setField" {
		known = append(known, "value")
	}
	args, err := namedArguments(elem, argCodes{4161100, 4161101}, known...)
	if err != nil {
		return nil, err
	}
	field, err := required(op, args, "field", 4161102, vars)
	if err != nil {
		return nil, err
	}
	to := constant(value{}) // $unsetField sets to missing
	if op == "$setField" {
		if to, err = required(op, args, "value", 4161103, vars); err != nil {
			return nil, err
		}
	}
	input, err := required(op, args, "input", 4161109, vars)
	if err != nil {
		return nil, err
	}
	name, err := constantName(op, field, 4161108, 4161106, 4161107)
	if err != nil {
		return nil, err
	}
	if strings.IndexByte(name, 0) >= 0 {
		return nil, refuse(codeBadValue, "parse expression %s: field %q contains a zero byte", op, name)
	}
	return compute(func(ev *evaluation, vars *scope) (value, error) {
		v, err := input.eval(ev, vars)
		if err != nil || v.nullish() {
			return null, err
		}
		if !v.isObject() {
			return value{}, refuse(4161105, "evaluate %s: its input is of type %s, not object", op, bsontext.TypeName(v.typ))
		}
		val, err := to.eval(ev, vars)
		if err != nil {
			return value{}, err
		}
		out := edit(v.doc)
		out.set(name, val)
		return out.value(), ev.spend(len(v.doc.cache))
	}), nil
}
