package serverupdate

import (
	"bytes"
	"slices"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// node is one value of the document that modifiers work on. Objects and arrays
// are taken apart when a path goes through them; until then, and if nothing in
// them changes, they keep their bytes.
type node struct {
	name     string
	typ      bson.Type
	raw      []byte
	children []*node
	parent   *node
	opened   bool
	dirty    bool // something in here differs from raw
}

var emptyDocument = []byte{5, 0, 0, 0, 0}

func rootNode(doc bson.Raw) *node { return &node{typ: bson.TypeEmbeddedDocument, raw: doc} }

func newNode(name string, typ bson.Type, raw []byte) *node {
	return &node{name: name, typ: typ, raw: raw, dirty: true}
}

func emptyObject(name string) *node {
	return newNode(name, bson.TypeEmbeddedDocument, emptyDocument)
}

func (n *node) container() bool {
	return n.typ == bson.TypeEmbeddedDocument || n.typ == bson.TypeArray
}

func (n *node) open() {
	if n.opened || !n.container() {
		return
	}
	n.opened = true
	count := 0
	for it := rawbson.NewIter(n.raw); it.Next(); {
		count++
	}
	nodes := make([]node, 0, count)
	n.children = make([]*node, 0, count+1)
	for it := rawbson.NewIter(n.raw); it.Next(); {
		nodes = append(nodes, node{name: it.Name(), typ: it.Type, raw: it.Value, parent: n})
		n.children = append(n.children, &nodes[len(nodes)-1])
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

// touch marks the bytes of n and of its parents as outdated.
func (n *node) touch() {
	for ; n != nil && !n.dirty; n = n.parent {
		n.dirty = true
	}
}

func (n *node) add(c *node) {
	n.open()
	c.parent = n
	n.children = append(n.children, c)
	n.touch()
}

// pad adds nulls to an array until it has so many elements.
func (n *node) pad(size int) {
	nulls := make([]node, max(0, size-len(n.children)))
	for i := range nulls {
		nulls[i].typ = bson.TypeNull
		n.add(&nulls[i])
	}
}

// remove takes n out of its parent, which it keeps.
func (n *node) remove() {
	at := slices.Index(n.parent.children, n)
	n.parent.children = slices.Delete(n.parent.children, at, at+1)
	n.parent.touch()
}

// keep replaces the children.
func (n *node) keep(children []*node) {
	n.children = children
	n.touch()
}

func (n *node) set(typ bson.Type, raw []byte) {
	n.typ, n.raw, n.children, n.opened = typ, raw, nil, false
	n.touch()
}

func (n *node) equals(typ bson.Type, raw []byte) bool {
	return n.typ == typ && bytes.Equal(n.bytes(), raw)
}

// bytes is the value as BSON.
func (n *node) bytes() []byte {
	if !n.opened || !n.dirty {
		return n.raw
	}
	return n.appendValue(make([]byte, 0, len(n.raw)+64))
}

// appendValue appends the value. The elements of an array that changed are
// renumbered, as the server writes them.
func (n *node) appendValue(dst []byte) []byte {
	if !n.opened || !n.dirty {
		return append(dst, n.raw...)
	}
	start, dst := bsoncore.AppendDocumentStart(dst)
	for i, c := range n.children {
		name := c.name
		if n.typ == bson.TypeArray {
			name = strconv.Itoa(i)
		}
		dst = c.appendAs(dst, name)
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, start) // fails on a bad start only
	return dst
}

// appendAs appends n as an element of that name.
func (n *node) appendAs(dst []byte, name string) []byte {
	return n.appendValue(bsoncore.AppendHeader(dst, bsoncore.Type(n.typ), name))
}

func (n *node) value() bson.RawValue { return bson.RawValue{Type: n.typ, Value: n.bytes()} }

// text is the field as the server's messages show it.
func (n *node) text() string { return bsontext.Element(n.name, n.value()) }

// depth is how many levels of fields lie below n.
func (n *node) depth() int {
	if !n.opened || !n.dirty {
		return elementDepth(n.raw)
	}
	deepest := 0
	for _, c := range n.children {
		level := 1
		if c.container() {
			level += c.depth()
		}
		deepest = max(deepest, level)
	}
	return deepest
}

// siblings returns the children of n without their values, and the place of c
// among them.
func (n *node) siblings(c *node) (list []rawbson.Elem, at int) {
	for i, child := range n.children {
		if child == c {
			at = i
		}
		list = append(list, rawbson.Elem{Type: child.typ, Key: []byte(child.name)})
	}
	return list, at
}

func (n *node) root() *node {
	for n.parent != nil {
		n = n.parent
	}
	return n
}

// idText is the _id of the document that n is in, as messages show it.
func (n *node) idText() string {
	if id := n.root().child("_id"); id != nil {
		return id.text()
	}
	return "no id"
}
