package serverupdate

import (
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// maxSteps is how much work one pipeline may do: evaluated expressions and
// copied elements. The server has no such limit, only memory.
const maxSteps = 1 << 21

// evaluation is one run of one stage's expressions on one document.
type evaluation struct {
	root  *document
	steps *int
	vars  *scope // the variables of the whole pipeline
}

// spend takes n steps from the budget.
func (ev *evaluation) spend(n int) error {
	if n > *ev.steps {
		return refuse(codeExceededMemoryLimit, "evaluate a pipeline: more than %d steps", maxSteps)
	}
	*ev.steps -= n
	return nil
}

// scope is the chain of user variables, innermost first. While parsing, the
// values are not there yet.
type scope struct {
	outer *scope
	name  string
	val   value
}

func (s *scope) with(name string, v value) *scope { return &scope{s, name, v} }

func (s *scope) find(name string) (value, bool) {
	for ; s != nil; s = s.outer {
		if s.name == name {
			return s.val, true
		}
	}
	return value{}, false
}

// expr is a parsed expression.
type expr struct {
	run func(ev *evaluation, vars *scope) (value, error)
	// literal is set for constants; $getField and $setField ask for one.
	literal *value
	// reference is true for a field path, for error codes.
	reference bool
}

func (e *expr) eval(ev *evaluation, vars *scope) (value, error) {
	if err := ev.spend(1); err != nil {
		return value{}, err
	}
	return e.run(ev, vars)
}

func constant(v value) *expr {
	return &expr{
		run:     func(*evaluation, *scope) (value, error) { return v, nil },
		literal: &v,
	}
}

func compute(run func(ev *evaluation, vars *scope) (value, error)) *expr { return &expr{run: run} }

// parseOperand parses anything that stands where a value is wanted. The vars are
// the variables that may be named.
func parseOperand(elem rawbson.Elem, vars *scope) (*expr, error) {
	switch elem.Type {
	case bson.TypeString:
		if s, _ := elem.Text(); strings.HasPrefix(s, "$") {
			return parseFieldPath(s, vars)
		}
	case bson.TypeEmbeddedDocument:
		return parseObject(elem.Value, vars)
	case bson.TypeArray:
		return parseArray(elem.Value, vars)
	}
	return constant(fromRaw(elem.Type, elem.Value)), nil
}

func elems(doc []byte) []rawbson.Elem {
	var out []rawbson.Elem
	for it := rawbson.NewIter(doc); it.Next(); {
		out = append(out, it.Elem)
	}
	return out
}

func parseObject(doc []byte, vars *scope) (*expr, error) {
	fields := elems(doc)
	if len(fields) > 0 && strings.HasPrefix(fields[0].Name(), "$") {
		return parseExpression(fields, vars)
	}
	parts := make([]*expr, len(fields))
	seen := make(map[string]bool)
	for i, f := range fields {
		name := f.Name()
		if err := checkFieldName(name); err != nil {
			return nil, err
		}
		if seen[name] {
			return nil, refuse(16406, "parse an object expression: field %q stands twice", name)
		}
		seen[name] = true
		var err error
		if parts[i], err = parseOperand(f, vars); err != nil {
			return nil, err
		}
	}
	return compute(func(ev *evaluation, vars *scope) (value, error) {
		out := fresh()
		for i, part := range parts {
			v, err := part.eval(ev, vars)
			if err != nil {
				return value{}, err
			}
			out.set(fields[i].Name(), v) // a missing value leaves a hole
		}
		return out.value(), nil
	}), nil
}

func parseArray(doc []byte, vars *scope) (*expr, error) {
	parts, err := parseAll(elems(doc), vars)
	if err != nil {
		return nil, err
	}
	return compute(func(ev *evaluation, vars *scope) (value, error) {
		out := make([]value, len(parts))
		for i, part := range parts {
			v, err := part.eval(ev, vars)
			if err != nil {
				return value{}, err
			}
			if v.missing() {
				v = null
			}
			out[i] = v
		}
		return arrayValue(out), nil
	}), nil
}

func parseAll(list []rawbson.Elem, vars *scope) ([]*expr, error) {
	out := make([]*expr, len(list))
	for i, elem := range list {
		var err error
		if out[i], err = parseOperand(elem, vars); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func parseExpression(fields []rawbson.Elem, vars *scope) (*expr, error) {
	if len(fields) != 1 {
		return nil, refuse(15983, "parse expression %s: the object has %d fields, not one", fields[0].Name(), len(fields))
	}
	op, ok := expressionOperator(fields[0].Name())
	if !ok {
		if unmodelledExpressions[fields[0].Name()] {
			return nil, refuse(codeNotImplemented, "the expression %s is not implemented", fields[0].Name())
		}
		return nil, refuse(codeInvalidPipelineOperator, "Unrecognized expression '%s'", fields[0].Name())
	}
	return op(fields[0], vars)
}

// parseFieldPath parses "$a.b", which starts at the document, and "$$v.a.b",
// which starts at a variable.
func parseFieldPath(s string, vars *scope) (*expr, error) {
	if s == "$" {
		return nil, refuse(16872, "'$' by itself is not a valid FieldPath")
	}
	name, path := "CURRENT", "CURRENT."+s[1:]
	if s[1] == '$' {
		path = s[2:]
		name, _, _ = strings.Cut(path, ".")
		if err := checkVariableRead(name); err != nil {
			return nil, err
		}
	}
	user := false
	if _, user = vars.find(name); !user && !slices.Contains([]string{"ROOT", "CURRENT", "REMOVE"}, name) {
		return nil, refuse(17276, "Use of undefined variable: %s", name)
	}
	parts, err := fieldPath(path)
	if err != nil {
		return nil, err
	}
	parts = parts[1:]
	e := compute(func(ev *evaluation, vars *scope) (value, error) {
		var v value
		switch {
		case user:
			v, _ = vars.find(name)
		case name != "REMOVE":
			v = objectValue(ev.root)
		}
		return walkPath(ev, v, parts)
	})
	e.reference = true
	return e, nil
}

// walkPath follows a path, through arrays element by element: elements that are no
// objects, and those without the field, leave nothing.
func walkPath(ev *evaluation, v value, parts []string) (value, error) {
	if len(parts) == 0 {
		return v, nil
	}
	switch v.typ {
	case bson.TypeEmbeddedDocument:
		return walkPath(ev, v.doc.get(parts[0]), parts[1:])
	case bson.TypeArray:
		if err := ev.spend(len(v.arr)); err != nil {
			return value{}, err
		}
		out := []value{}
		for _, elem := range v.arr {
			if !elem.isObject() {
				continue
			}
			nested, err := walkPath(ev, elem, parts)
			if err != nil {
				return value{}, err
			}
			if !nested.missing() {
				out = append(out, nested)
			}
		}
		return arrayValue(out), nil
	default:
		return value{}, nil
	}
}

func letter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

func checkVariableRead(name string) error {
	if name == "" {
		return refuse(16869, "parse a variable: its name is empty")
	}
	if !letter(name[0]) && name[0] < 0x80 {
		return refuse(16870, "parse variable %q: a name cannot start so", name)
	}
	return checkVariableRest(16871, name)
}

func checkVariableWrite(name string) error {
	switch {
	case name == "CURRENT": // the one system variable that may be set
		return nil
	case name == "":
		return refuse(16866, "define a variable: its name is empty")
	case (name[0] < 'a' || name[0] > 'z') && name[0] < 0x80:
		return refuse(16867, "define variable %q: a name starts with a lower case letter", name)
	}
	return checkVariableRest(16868, name)
}

func checkVariableRest(code int, name string) error {
	for i := 1; i < len(name); i++ {
		c := name[i]
		if !letter(c) && (c < '0' || c > '9') && c != '_' && c < 0x80 {
			return refuse(code, "parse variable %q: invalid character %q", name, c)
		}
	}
	return nil
}
