package serverupdate

import (
	"bytes"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// node is one value of the document that modifiers work on. Objects and arrays
// are taken apart when a path goes through them; until then, and if nothing in
// them changes, they keep their bytes.
type node struct {
	name     string
	typ      bson.Type
	raw      []byte
	children []*node
	opened   bool
	dirty    bool // something in here differs from raw
}

func (n *node) container() bool {
	return n.typ == bson.TypeEmbeddedDocument || n.typ == bson.TypeArray
}

func (n *node) open() {
	if n.opened || !n.container() {
		return
	}
	n.opened = true
	for _, e := range elems(n.raw) {
		n.children = append(n.children, &node{name: e.Name(), typ: e.Type, raw: e.Value})
	}
}

// child finds the child that a part of a path names: the first field of that
// name in an object, the element of that index in an array.
func (n *node) child(part string) *node {
	n.open()
	switch n.typ {
	case bson.TypeEmbeddedDocument:
		for _, c := range n.children {
			if c.name == part {
				return c
			}
		}
	case bson.TypeArray:
		if i, ok := arrayIndex(part); ok && i < len(n.children) {
			return n.children[i]
		}
	}
	return nil
}

func (n *node) add(c *node) {
	n.open()
	n.children = append(n.children, c)
	n.dirty = true
}

func (n *node) set(typ bson.Type, raw []byte) {
	*n = node{name: n.name, typ: typ, raw: raw, dirty: true}
}

func (n *node) equals(typ bson.Type, raw []byte) bool {
	return n.typ == typ && bytes.Equal(n.bytes(), raw)
}

func (n *node) changed() bool {
	if n.dirty {
		return true
	}
	for _, c := range n.children {
		if c.changed() {
			return true
		}
	}
	return false
}

// bytes is the value as BSON. The elements of an array that changed are
// numbered anew, as the server writes them.
func (n *node) bytes() []byte {
	if !n.opened || !n.changed() {
		return n.raw
	}
	start, dst := bsoncore.AppendDocumentStart(nil)
	for i, c := range n.children {
		name := c.name
		if n.typ == bson.TypeArray {
			name = strconv.Itoa(i)
		}
		dst = appendRaw(dst, c.typ, name, c.bytes())
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, start) // fails on a bad start only
	return dst
}

func emptyObject(name string) *node {
	return &node{name: name, typ: bson.TypeEmbeddedDocument, raw: []byte{5, 0, 0, 0, 0}, dirty: true}
}
