package update_test

import (
	"slices"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// tree is a decoded value: a slow and simple form for a second implementation of
// the rules.
type tree struct {
	typ    bson.Type
	raw    []byte
	fields []treeField // of a document or an array
}

type treeField struct {
	name string
	tree
}

func treeOf(typ bson.Type, raw []byte) tree {
	t := tree{typ: typ, raw: raw}
	if typ == bson.TypeEmbeddedDocument || typ == bson.TypeArray {
		for it := rawbson.NewIter(raw); it.Next(); {
			t.fields = append(t.fields, treeField{string(it.Key), treeOf(it.Type, it.Value)})
		}
	}
	return t
}

func docTree(doc bson.Raw) tree { return treeOf(bson.TypeEmbeddedDocument, doc) }

func (t *tree) bytes() []byte {
	if t.typ != bson.TypeEmbeddedDocument && t.typ != bson.TypeArray {
		return t.raw
	}
	out := []byte{0, 0, 0, 0}
	for i, f := range t.fields {
		name := f.name
		if t.typ == bson.TypeArray {
			name = strconv.Itoa(i)
		}
		out = append(bsoncore.AppendHeader(out, bsoncore.Type(f.typ), name), f.bytes()...)
	}
	out = append(out, 0)
	return bsoncore.UpdateLength(out, 0, int32(len(out)))
}

var null = tree{typ: bson.TypeNull}

func (t *tree) get(name string) *tree {
	for i := range t.fields {
		if t.fields[i].name == name {
			return &t.fields[i].tree
		}
	}
	return nil
}

// modelDelta applies a diff to a document or an array.
func modelDelta(pre, diff tree) tree {
	mark := len(diff.fields) > 0 && diff.fields[0].name == "a" && diff.fields[0].typ == bson.TypeBoolean
	switch {
	case mark && pre.typ == bson.TypeArray:
		return modelArrayDelta(pre, diff)
	case mark || pre.typ != bson.TypeEmbeddedDocument:
		return null
	}
	section := func(name string) *tree {
		if s := diff.get(name); s != nil {
			return s
		}
		return &tree{}
	}
	out := tree{typ: pre.typ}
	var updated []string
	for _, f := range pre.fields {
		switch {
		case section("d").get(f.name) != nil, section("i").get(f.name) != nil:
			continue
		case section("u").get(f.name) != nil:
			f.tree = *section("u").get(f.name)
			updated = append(updated, f.name)
		case section("b").get(f.name) != nil:
			f.tree = modelBinary(f.tree, *section("b").get(f.name))
		case diff.get("s"+f.name) != nil:
			f.tree = modelDelta(f.tree, *diff.get("s" + f.name))
		}
		out.fields = append(out.fields, f)
	}
	for _, f := range section("u").fields {
		if !slices.Contains(updated, f.name) {
			out.fields = append(out.fields, f)
		}
	}
	out.fields = append(out.fields, section("i").fields...)
	return out
}

func modelArrayDelta(pre, diff tree) tree {
	out := tree{typ: pre.typ, fields: slices.Clone(pre.fields)}
	for _, f := range diff.fields[1:] {
		if f.name == "l" {
			n := int(f.raw[0])
			out.fields = out.fields[:min(n, len(out.fields))]
			for len(out.fields) < n {
				out.fields = append(out.fields, treeField{tree: null})
			}
			continue
		}
		index, _ := strconv.Atoi(f.name[1:])
		for len(out.fields) <= index {
			out.fields = append(out.fields, treeField{tree: null})
		}
		if f.name[0] == 'u' {
			out.fields[index].tree = f.tree
		} else {
			out.fields[index].tree = modelDelta(out.fields[index].tree, f.tree)
		}
	}
	return out
}

// modelBinary returns null if the result is not defined; tests exclude such cases.
func modelBinary(old, diff tree) tree {
	offset := int(diff.get("o").raw[0])
	if old.typ != bson.TypeBinary || len(old.raw)-5 < offset {
		return old
	}
	data := append(slices.Clone(old.raw[5:5+offset]), diff.get("d").raw[5:]...)
	raw := append(bsoncore.AppendInt32(nil, int32(len(data))), old.raw[4])
	return tree{typ: bson.TypeBinary, raw: append(raw, data...)}
}

// modelModifiers applies the modifiers of o one after the other, in the order of
// their paths.
func modelModifiers(doc, o tree) tree {
	type modifier struct {
		path  []string
		value *tree
	}
	var all []modifier
	for _, op := range o.fields {
		for _, f := range op.fields {
			m := modifier{path: strings.Split(f.name, ".")}
			if op.name == "$set" {
				m.value = &f.tree
			}
			all = append(all, m)
		}
	}
	slices.SortFunc(all, func(a, b modifier) int { return slices.CompareFunc(a.path, b.path, comparePart) })
	for _, m := range all {
		modelModifier(&doc, m.path, m.value)
	}
	return doc
}

// comparePart orders whole numbers without a leading zero by value, and all other
// names by bytes. It is meant for names that are whole numbers or have no leading
// digit.
func comparePart(a, b string) int {
	x, _ := strconv.Atoi(a)
	y, _ := strconv.Atoi(b)
	if strconv.Itoa(x) == a && strconv.Itoa(y) == b {
		return x - y
	}
	return strings.Compare(a, b)
}

func modelModifier(at *tree, path []string, value *tree) {
	var next *tree
	switch at.typ {
	case bson.TypeEmbeddedDocument:
		next = at.get(path[0])
	case bson.TypeArray:
		index, err := strconv.Atoi(path[0])
		switch {
		case err != nil || index < 0:
			return
		case index < len(at.fields):
			next = &at.fields[index].tree
		case value != nil:
			for len(at.fields) < index {
				at.fields = append(at.fields, treeField{tree: null})
			}
		}
	default:
		return
	}
	last := len(path) == 1
	switch {
	case next != nil && !last:
		modelModifier(next, path[1:], value)
	case next != nil && value != nil:
		*next = *value
	case next != nil && at.typ == bson.TypeArray:
		*next = null
	case next != nil:
		i := slices.IndexFunc(at.fields, func(f treeField) bool { return f.name == path[0] })
		at.fields = slices.Delete(slices.Clone(at.fields), i, i+1)
	case value == nil:
	case last:
		at.fields = append(at.fields, treeField{path[0], *value})
	default:
		created := tree{typ: bson.TypeEmbeddedDocument}
		modelModifier(&created, path[1:], value)
		at.fields = append(at.fields, treeField{path[0], created})
	}
}
