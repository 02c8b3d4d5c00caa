package serverupdate

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// logKind is how a place in a delta changed.
type logKind int

const (
	logUpdate logKind = iota
	logInsert
	logDelete
	// The others are inner: an object that was there, an array that was there, and
	// an object that the paths below it created.
	logObject
	logArray
	logNew
)

// changeLog collects the paths that modifiers changed, in the order in which they
// did. The server logs modifiers by these paths, not by comparing documents, so a
// written field is logged even if its value is unchanged.
type changeLog struct {
	form  LogForm
	root  logNode
	paths []loggedPath // for LogModifiers
}

type logNode struct {
	name  string
	index int // where the parent is an array
	kind  logKind
	value *node // of a leaf; read when the log is built
	kids  []*logNode
}

type loggedPath struct {
	path    string
	deleted bool
	value   *node
}

func newChangeLog(form LogForm) *changeLog {
	return &changeLog{form: form, root: logNode{kind: logObject}}
}

// add logs one change. Created is the index of the first part of the path that did
// not exist before, -1 if all did.
func (c *changeLog) add(path []step, kind logKind, value *node, created int) {
	if c.form == LogModifiers {
		names := make([]string, len(path))
		for i, s := range path {
			names[i] = s.name
		}
		c.paths = append(c.paths, loggedPath{strings.Join(names, "."), kind == logDelete, value})
		return
	}
	at := &c.root
	for i, s := range path[:len(path)-1] {
		next := at.find(s)
		if next == nil {
			inner := logObject
			switch {
			case path[i+1].index:
				inner = logArray
			case created >= 0 && i >= created:
				inner = logNew
			}
			next = at.put(s, inner)
		}
		at = next
	}
	at.put(path[len(path)-1], kind).value = value
}

func (n *logNode) find(s step) *logNode {
	index := -1
	if n.kind == logArray {
		index, _ = arrayIndex(s.name)
	}
	for _, k := range n.kids {
		if index >= 0 && k.index == index || index < 0 && k.name == s.name {
			return k
		}
	}
	return nil
}

func (n *logNode) put(s step, kind logKind) *logNode {
	k := &logNode{name: s.name, kind: kind}
	if n.kind == logArray {
		k.index, _ = arrayIndex(s.name)
	}
	n.kids = append(n.kids, k)
	return k
}

// build returns the log in the form that was asked for.
func (c *changeLog) build() (delta, modifiers bson.Raw) {
	if c.form == LogModifiers {
		return nil, c.buildModifiers()
	}
	return c.root.appendObject(make([]byte, 0, 128)), nil
}

// appendObject writes the diff of an object: removed, changed and new fields, each
// in order of change, then nested changes.
func (n *logNode) appendObject(dst []byte) []byte {
	start, dst := bsoncore.AppendDocumentStart(dst)
	for _, section := range [...]struct {
		name        string
		first, last logKind
	}{{"d", logDelete, logDelete}, {"u", logUpdate, logUpdate}, {"i", logInsert, logNew}} {
		inner := int32(-1)
		for _, k := range n.kids {
			if k.kind != section.first && k.kind != section.last {
				continue
			}
			if inner < 0 {
				dst = bsoncore.AppendHeader(dst, bsoncore.TypeEmbeddedDocument, section.name)
				inner, dst = bsoncore.AppendDocumentStart(dst)
			}
			dst = k.appendLeaf(dst, k.name)
		}
		if inner >= 0 {
			dst = end(dst, inner)
		}
	}
	for _, k := range n.kids {
		if k.kind == logObject || k.kind == logArray {
			dst = k.appendInner(dst, "s"+k.name)
		}
	}
	return end(dst, start)
}

// appendArray writes the diff of an array, whose elements are ordered by index.
func (n *logNode) appendArray(dst []byte) []byte {
	start, dst := bsoncore.AppendDocumentStart(dst)
	dst = bsoncore.AppendBooleanElement(dst, "a", true)
	slices.SortStableFunc(n.kids, func(a, b *logNode) int { return cmp.Compare(a.index, b.index) })
	for _, k := range n.kids {
		index := strconv.Itoa(k.index)
		if k.kind == logObject || k.kind == logArray {
			dst = k.appendInner(dst, "s"+index)
		} else {
			dst = k.appendLeaf(dst, "u"+index)
		}
	}
	return end(dst, start)
}

func (n *logNode) appendInner(dst []byte, name string) []byte {
	dst = bsoncore.AppendHeader(dst, bsoncore.TypeEmbeddedDocument, name)
	if n.kind == logArray {
		return n.appendArray(dst)
	}
	return n.appendObject(dst)
}

func (n *logNode) appendLeaf(dst []byte, name string) []byte {
	switch n.kind {
	case logDelete:
		return bsoncore.AppendBooleanElement(dst, name, false)
	case logNew:
		dst = bsoncore.AppendHeader(dst, bsoncore.TypeEmbeddedDocument, name)
		start, dst := bsoncore.AppendDocumentStart(dst)
		for _, k := range n.kids {
			dst = k.appendLeaf(dst, k.name)
		}
		return end(dst, start)
	default:
		return n.value.appendAs(dst, name)
	}
}

// buildModifiers writes $set and $unset with dotted paths; the section that was
// needed first stands first.
func (c *changeLog) buildModifiers() bson.Raw {
	start, dst := bsoncore.AppendDocumentStart(make([]byte, 0, 128))
	dst = bsoncore.AppendInt32Element(dst, "$v", 1)
	section := func(deleted bool, name string) {
		inner := int32(-1)
		for _, p := range c.paths {
			if p.deleted != deleted {
				continue
			}
			if inner < 0 {
				dst = bsoncore.AppendHeader(dst, bsoncore.TypeEmbeddedDocument, name)
				inner, dst = bsoncore.AppendDocumentStart(dst)
			}
			if deleted {
				dst = bsoncore.AppendBooleanElement(dst, p.path, true)
			} else {
				dst = p.value.appendAs(dst, p.path)
			}
		}
		if inner >= 0 {
			dst = end(dst, inner)
		}
	}
	if len(c.paths) > 0 && c.paths[0].deleted {
		section(true, "$unset")
		section(false, "$set")
	} else {
		section(false, "$set")
		section(true, "$unset")
	}
	return end(dst, start)
}

// end closes a document.
func end(dst []byte, start int32) []byte {
	dst, _ = bsoncore.AppendDocumentEnd(dst, start) // fails on a bad start only
	return dst
}
