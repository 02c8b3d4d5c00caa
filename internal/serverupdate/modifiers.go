package serverupdate

import (
	"math"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// maxPadding is how many nulls the server adds to an array to reach an index.
const maxPadding = 1_500_000

// modifier is one leaf of a modifier update, or an inner node of the tree of
// their paths.
type modifier struct {
	name     string
	children map[string]*modifier // nil for a leaf
	op       string
	path     []string
	arg      rawbson.Elem
	push     pushSpec
}

type pushSpec struct {
	values []rawbson.Elem
	slice  int64
}

// parseModifiers reads all operators into one tree. Two paths of which one is
// the other or a prefix of it conflict, whatever their operators.
func parseModifiers(u []byte) (*modifier, error) {
	root := &modifier{children: make(map[string]*modifier)}
	for _, op := range elems(u) {
		switch op.Name() {
		case "$set", "$unset", "$push", "$setOnInsert":
		default:
			return nil, refuse(codeFailedToParse, "parse modifiers: operator %q is not known, or not modelled", op.Name())
		}
		doc, ok := op.Document()
		if !ok {
			return nil, refuse(codeFailedToParse, "parse modifiers: the argument of %s is of type %s, not object", op.Name(), typeName(op.Type))
		}
		for _, f := range elems(doc) {
			path, err := updatePath(f.Name())
			if err != nil {
				return nil, err
			}
			leaf := &modifier{op: op.Name(), path: path, arg: f}
			if leaf.op == "$push" {
				if leaf.push, err = parsePush(f); err != nil {
					return nil, err
				}
			}
			if err := root.insert(path, leaf); err != nil {
				return nil, err
			}
		}
	}
	return root, nil
}

func (m *modifier) insert(path []string, leaf *modifier) error {
	for i, part := range path {
		child := m.children[part]
		last := i == len(path)-1
		if child != nil && (last || child.children == nil) {
			return refuse(codeConflictingUpdateOperators, "parse modifiers: path %q conflicts with another at %q",
				strings.Join(path, "."), strings.Join(path[:i+1], "."))
		}
		if child == nil {
			child = &modifier{children: make(map[string]*modifier)}
			if last {
				child = leaf
			}
			child.name = part
			m.children[part] = child
		}
		m = child
	}
	return nil
}

// leaves returns the modifiers in the order in which the server applies them.
func (m *modifier) leaves() []*modifier {
	if m.children == nil {
		return []*modifier{m}
	}
	names := make([]string, 0, len(m.children))
	for name := range m.children {
		names = append(names, name)
	}
	slices.SortFunc(names, comparePathParts)
	var out []*modifier
	for _, name := range names {
		out = append(out, m.children[name].leaves()...)
	}
	return out
}

func parsePush(f rawbson.Elem) (pushSpec, error) {
	spec := pushSpec{slice: math.MaxInt64}
	doc, ok := f.Document()
	if ok {
		_, ok = rawbson.Lookup(doc, "$each")
	}
	if !ok {
		spec.values = []rawbson.Elem{f}
		return spec, nil
	}
	seen := make(map[string]bool)
	for _, clause := range elems(doc) {
		name := clause.Name()
		if seen[name] {
			return spec, refuse(codeBadValue, "parse $push: clause %s stands twice", name)
		}
		seen[name] = true
		switch name {
		case "$each":
			list, ok := clause.Array()
			if !ok {
				return spec, refuse(codeBadValue, "parse $push: $each is of type %s, not array", typeName(clause.Type))
			}
			spec.values = elems(list)
		case "$slice":
			n, ok := sliceBound(clause)
			if !ok {
				return spec, refuse(codeBadValue, "parse $push: $slice is no integer but of type %s", typeName(clause.Type))
			}
			spec.slice = n
		default:
			return spec, refuse(codeBadValue, "parse $push: clause %q is not known, or not modelled", name)
		}
	}
	return spec, nil
}

func sliceBound(e rawbson.Elem) (int64, bool) {
	v := fromRaw(e.Type, e.Value)
	if !v.numeric() {
		return 0, false
	}
	r, finite := v.rational()
	if !finite || !r.IsInt() || !r.Num().IsInt64() {
		return 0, false
	}
	return r.Num().Int64(), true
}

// runModifiers applies the modifiers. It returns the document itself where none
// of them changes anything.
func runModifiers(doc bson.Raw, u []byte) (bson.Raw, error) {
	tree, err := parseModifiers(u)
	if err != nil {
		return nil, err
	}
	root := &node{typ: bson.TypeEmbeddedDocument, raw: doc}
	for _, leaf := range tree.leaves() {
		if err := leaf.apply(root); err != nil {
			return nil, err
		}
	}
	if !root.changed() {
		return doc, nil
	}
	return root.bytes(), nil
}

func (m *modifier) full() string { return strings.Join(m.path, ".") }

// apply walks as far down the path as it exists, then changes what is there or
// creates what is not.
func (m *modifier) apply(root *node) error {
	if m.op == "$setOnInsert" {
		return nil
	}
	at, parent, depth := root, (*node)(nil), 0
	for ; depth < len(m.path); depth++ {
		next := at.child(m.path[depth])
		if next == nil {
			break
		}
		at, parent = next, at
	}
	if depth == len(m.path) {
		return m.applyExisting(at, parent)
	}
	if m.op == "$unset" {
		return nil // also where the path could not be created
	}
	return m.create(at, depth)
}

func (m *modifier) applyExisting(at, parent *node) error {
	before := slices.Clone(at.bytes())
	switch m.op {
	case "$set":
		if at.equals(m.arg.Type, m.arg.Value) {
			return nil
		}
		at.set(m.arg.Type, m.arg.Value)
	case "$unset":
		if parent.typ == bson.TypeArray {
			at.set(bson.TypeNull, nil)
			break
		}
		parent.children = slices.DeleteFunc(parent.children, func(c *node) bool { return c == at })
		parent.dirty = true
	case "$push":
		if err := m.pushTo(at); err != nil {
			return err
		}
		if at.equals(bson.TypeArray, before) {
			return nil
		}
	}
	if m.path[0] == "_id" {
		return refuse(codeImmutableField, "run %s: path %q changes _id", m.op, m.full())
	}
	if m.op == "$unset" {
		return nil
	}
	return m.checkStored(at, len(m.path))
}

// create adds what of the path does not exist below at, whose own path has depth
// parts.
func (m *modifier) create(at *node, depth int) error {
	missing := m.path[depth:]
	switch at.typ {
	case bson.TypeEmbeddedDocument:
	case bson.TypeArray:
		i, ok := arrayIndex(missing[0])
		if !ok {
			return refuse(codePathNotViable, "run %s: part %q of path %q is no index of an array", m.op, missing[0], m.full())
		}
		at.open()
		if i-len(at.children) > maxPadding {
			return refuse(codeCannotBackfillArray, "run %s: index %d of path %q is more than %d behind the array's end",
				m.op, i, m.full(), maxPadding)
		}
		for len(at.children) < i {
			at.add(&node{typ: bson.TypeNull})
		}
	default:
		return refuse(codePathNotViable, "run %s: part %q of path %q lies below a value of type %s",
			m.op, missing[0], m.full(), typeName(at.typ))
	}
	first := &node{name: missing[0], typ: m.arg.Type, raw: m.arg.Value, dirty: true}
	last := first
	if len(missing) > 1 {
		first = emptyObject(missing[0])
		last = first
		for _, part := range missing[1 : len(missing)-1] {
			next := emptyObject(part)
			last.add(next)
			last = next
		}
		leaf := &node{name: missing[len(missing)-1], typ: m.arg.Type, raw: m.arg.Value, dirty: true}
		last.add(leaf)
		last = leaf
	}
	if m.op == "$push" {
		last.set(bson.TypeArray, []byte{5, 0, 0, 0, 0})
		if err := m.pushTo(last); err != nil {
			return err
		}
	}
	at.add(first)
	if err := m.checkStored(first, depth+1); err != nil {
		return err
	}
	if depth > 0 && m.path[0] == "_id" {
		return refuse(codeImmutableField, "run %s: path %q changes _id", m.op, m.full())
	}
	return nil
}

func (m *modifier) pushTo(at *node) error {
	if at.typ != bson.TypeArray {
		return refuse(codeBadValue, "run $push: path %q holds a value of type %s, not array", m.full(), typeName(at.typ))
	}
	at.open()
	for _, v := range m.push.values {
		at.add(&node{typ: v.Type, raw: v.Value})
	}
	keep := m.push.slice
	if keep == math.MinInt64 {
		keep++ // it has no absolute value; no array is that long
	}
	n := int64(len(at.children))
	switch {
	case keep >= 0 && n > keep:
		at.children, at.dirty = at.children[:keep], true
	case keep < 0 && n > -keep:
		at.children, at.dirty = at.children[n+keep:], true
	}
	return nil
}

// checkStored checks what was written at a level of the document, the top one
// being 1. Only there are names with a dollar refused.
func (m *modifier) checkStored(n *node, level int) error {
	if level == 1 && strings.HasPrefix(n.name, "$") {
		return refuse(codeDollarPrefixedFieldName, "run %s: path %q puts a name with a dollar at the top level", m.op, m.full())
	}
	deepest := level
	if n.container() {
		deepest += elementDepth(n.bytes())
	}
	return checkElementDepth(deepest)
}
