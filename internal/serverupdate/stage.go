package serverupdate

import (
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// stage transforms a document. It does not change the one that it is given.
type stage func(d *document, steps *int) (*document, error)

// parseStage parses a stage, in which vars may be named.
func parseStage(elem rawbson.Elem, vars *scope) (stage, error) {
	doc, ok := elem.Document()
	if !ok {
		return nil, refuse(codeTypeMismatch, "Each element of the 'pipeline' array must be an object")
	}
	spec := elems(doc)
	if len(spec) != 1 {
		return nil, refuse(40323, "A pipeline stage specification object must contain exactly one field.")
	}
	switch spec[0].Name() {
	case "$set", "$addFields":
		return parseSet(spec[0], vars)
	case "$unset":
		return parseUnset(spec[0])
	case "$replaceWith":
		return parseReplace(spec[0], vars)
	case "$replaceRoot":
		return parseReplaceRoot(spec[0], vars)
	}
	if forbiddenStages[spec[0].Name()] {
		return nil, refuse(codeInvalidOptions, "%s is not allowed to be used within an update", spec[0].Name())
	}
	return nil, refuse(40324, "Unrecognized pipeline stage name: '%s'", spec[0].Name())
}

// forbiddenStages are stages that the server knows and refuses in updates.
var forbiddenStages = map[string]bool{
	"$match": true, "$group": true, "$sort": true, "$limit": true, "$skip": true, "$unwind": true,
	"$lookup": true, "$facet": true, "$out": true, "$merge": true, "$count": true, "$sample": true,
	"$redact": true, "$bucket": true, "$bucketAuto": true, "$sortByCount": true, "$unionWith": true,
}

func parseReplaceRoot(elem rawbson.Elem, vars *scope) (stage, error) {
	args, err := namedArguments(elem, argCodes{40229, 40415}, "newRoot")
	if err != nil {
		return nil, err
	}
	root, ok := args["newRoot"]
	if !ok {
		return nil, refuse(40414, "parse stage $replaceRoot: newRoot is not there")
	}
	return parseReplace(root, vars)
}

func parseReplace(elem rawbson.Elem, vars *scope) (stage, error) {
	e, err := parseOperand(elem, vars)
	if err != nil {
		return nil, err
	}
	return func(d *document, steps *int) (*document, error) {
		v, err := e.eval(&evaluation{d, steps, vars}, vars)
		if err != nil {
			return nil, err
		}
		if !v.isObject() {
			return nil, refuse(40228, "run stage $replaceWith: the new document is of type %s, not object", bsontext.TypeName(v.typ))
		}
		return v.doc, nil
	}, nil
}

// setNode is one level of the paths that $set writes: expressions of fields and
// deeper levels, in the order in which the specification first names them.
type setNode struct {
	order    []string
	exprs    map[string]*expr
	children map[string]*setNode
}

func newSetNode() *setNode {
	return &setNode{exprs: make(map[string]*expr), children: make(map[string]*setNode)}
}

func (n *setNode) add(path []string, e *expr) {
	name := path[0]
	if len(path) == 1 {
		n.exprs[name] = e
		n.order = append(n.order, name)
		return
	}
	child := n.children[name]
	if child == nil {
		child = newSetNode()
		n.children[name] = child
		n.order = append(n.order, name)
	}
	child.add(path[1:], e)
}

func parseSet(elem rawbson.Elem, vars *scope) (stage, error) {
	doc, ok := elem.Document()
	if !ok {
		return nil, refuse(40272, "parse stage %s: its argument is of type %s, not object", elem.Name(), bsontext.TypeName(elem.Type))
	}
	var spec setSpec
	for _, f := range elems(doc) {
		path, err := fieldPath(f.Name())
		if err != nil {
			return nil, err
		}
		if err := spec.check(f, path); err != nil {
			return nil, err
		}
	}
	root := newSetNode()
	for _, f := range elems(doc) {
		if err := root.parse(f, strings.Split(f.Name(), "."), vars); err != nil {
			return nil, err
		}
	}
	return func(d *document, steps *int) (*document, error) {
		out := edit(d)
		if err := root.apply(&evaluation{d, steps, vars}, out); err != nil {
			return nil, err
		}
		return out.doc, nil
	}, nil
}

// setSpec collects the paths of a $set to find those that conflict.
type setSpec struct {
	seen map[string]bool // every path, true, and every prefix of one, false
}

func (s *setSpec) claim(path []string) error {
	if s.seen == nil {
		s.seen = make(map[string]bool)
	}
	full := strings.Join(path, ".")
	_, conflict := s.seen[full]
	for i := range path[1:] {
		prefix := strings.Join(path[:i+1], ".")
		conflict = conflict || s.seen[prefix]
		if !s.seen[prefix] {
			s.seen[prefix] = false
		}
	}
	if conflict {
		return refuse(40176, "parse stage $set: path %q conflicts with another", full)
	}
	s.seen[full] = true
	return nil
}

// check walks the specification below one path. An object is a deeper level
// unless it is an expression.
func (s *setSpec) check(elem rawbson.Elem, path []string) error {
	doc, ok := elem.Document()
	if !ok {
		return s.claim(path)
	}
	list := elems(doc)
	for _, f := range list {
		name := f.Name()
		if strings.HasPrefix(name, "$") {
			if len(list) != 1 {
				return refuse(40181, "parse stage $set: expression %s stands with other fields", name)
			}
			return s.claim(path)
		}
		if strings.Contains(name, ".") {
			return refuse(40183, "parse stage $set: field %q of a nested object has a dot", name)
		}
		sub, err := fieldPath(strings.Join(path, ".") + "." + name)
		if err != nil {
			return err
		}
		if err := s.check(f, sub); err != nil {
			return err
		}
	}
	return nil
}

// parse adds the expressions below one path of a checked specification.
func (n *setNode) parse(elem rawbson.Elem, path []string, vars *scope) error {
	if doc, ok := elem.Document(); ok {
		list := elems(doc)
		if len(list) > 0 && !strings.HasPrefix(list[0].Name(), "$") {
			for _, f := range list {
				if err := n.parse(f, append(slices.Clone(path), f.Name()), vars); err != nil {
					return err
				}
			}
			return nil
		}
	}
	e, err := parseOperand(elem, vars)
	if err != nil {
		return err
	}
	n.add(path, e)
	return nil
}

// apply writes this level's fields. Expressions see the document as it was
// before the stage, deeper levels what this stage has already written.
func (n *setNode) apply(ev *evaluation, out *mutable) error {
	for _, name := range n.order {
		var v value
		var err error
		if child := n.children[name]; child != nil {
			v, err = child.applyTo(ev, out.doc.get(name))
		} else {
			v, err = n.exprs[name].eval(ev, ev.vars)
		}
		if err != nil {
			return err
		}
		out.set(name, v)
	}
	return nil
}

// applyTo writes into an object, into each element of an array, and in place of
// anything else.
func (n *setNode) applyTo(ev *evaluation, v value) (value, error) {
	if err := ev.spend(1); err != nil {
		return value{}, err
	}
	if v.isArray() {
		arr := make([]value, len(v.arr))
		for i, elem := range v.arr {
			var err error
			if arr[i], err = n.applyTo(ev, elem); err != nil {
				return value{}, err
			}
		}
		return arrayValue(arr), nil
	}
	out := fresh()
	if v.isObject() {
		out = edit(v.doc)
	}
	err := n.apply(ev, out)
	return out.value(), err
}

// unsetNode is one level of the paths that $unset removes; a nil child is a
// field to remove.
type unsetNode map[string]unsetNode

func parseUnset(elem rawbson.Elem) (stage, error) {
	list := []rawbson.Elem{elem}
	if doc, ok := elem.Array(); ok {
		if list = elems(doc); len(list) == 0 {
			return nil, refuse(31119, "parse stage $unset: the array is empty")
		}
	} else if elem.Type != bson.TypeString {
		return nil, refuse(31002, "parse stage $unset: its argument is of type %s, neither string nor array", bsontext.TypeName(elem.Type))
	}
	root := unsetNode{}
	for _, e := range list {
		name, ok := e.Text()
		if !ok {
			return nil, refuse(31120, "parse stage $unset: an element is of type %s, not string", bsontext.TypeName(e.Type))
		}
		path, err := fieldPath(name)
		if err != nil {
			return nil, err
		}
		if err := root.add(path, name); err != nil {
			return nil, err
		}
	}
	return func(d *document, steps *int) (*document, error) {
		return root.apply(&evaluation{d, steps, nil}, d)
	}, nil
}

func (n unsetNode) add(path []string, full string) error {
	child, there := n[path[0]]
	switch {
	case there && (len(path) == 1 || child == nil):
		code := 31250
		if len(path) > 1 {
			code = 31249
		}
		return refuse(code, "parse stage $unset: path %q collides with another", full)
	case len(path) == 1:
		n[path[0]] = nil
		return nil
	case !there:
		child = unsetNode{}
		n[path[0]] = child
	}
	return child.add(path[1:], full)
}

func (n unsetNode) apply(ev *evaluation, d *document) (*document, error) {
	out := edit(d)
	for _, p := range d.places() {
		child, there := n[p.name]
		if !there {
			continue
		}
		v, err := n[p.name].applyTo(ev, d.get(p.name))
		if err != nil {
			return nil, err
		}
		if child == nil {
			v = value{}
		}
		out.set(p.name, v)
	}
	return out.doc, nil
}

func (n unsetNode) applyTo(ev *evaluation, v value) (value, error) {
	if err := ev.spend(1); err != nil || n == nil {
		return v, err
	}
	switch {
	case v.isObject():
		d, err := n.apply(ev, v.doc)
		return objectValue(d), err
	case v.isArray():
		arr := make([]value, len(v.arr))
		for i, elem := range v.arr {
			var err error
			if arr[i], err = n.applyTo(ev, elem); err != nil {
				return value{}, err
			}
		}
		return arrayValue(arr), nil
	}
	return v, nil
}
