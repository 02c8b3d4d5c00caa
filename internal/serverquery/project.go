package serverquery

import (
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// tree is a value while it is being projected: stored bytes, or fields, or
// elements. Elements that are missing keep their place until the end.
type tree struct {
	val
	fields []treeField // if val is an object without bytes
	elems  []tree      // if val is an array without bytes
}

type treeField struct {
	name string
	tree tree
}

// Empty reports whether documents are returned as they are.
func (p *Projection) Empty() bool { return p.root == nil }

// Apply returns the projected document, with the fields in the server's order:
// those of the document in its own, then computed ones. An expression that fails is
// refused with a [*servererr.Error].
func (p *Projection) Apply(doc bson.Raw) (bson.Raw, error) {
	if p.root == nil {
		return doc, nil
	}
	out := tree{val: val{t: bson.TypeEmbeddedDocument}, fields: p.project(doc, p.root)}
	if p.root.computes {
		var err error
		if out.fields, err = p.compute(doc, out.fields, p.root); err != nil {
			return nil, err
		}
	}
	dst := out.appendValue(nil)
	if len(dst) > maxResult {
		return nil, servererr.New(servererr.BSONObjectTooLarge, "BSONObj size: %d is invalid. Size must be between 0 and %d(16MB)",
			len(dst), maxResult)
	}
	return dst, nil
}

// maxResult is the largest document that the server returns, in bytes.
const maxResult = 16<<20 + 16<<10

func (p *Projection) project(doc []byte, n *projected) []treeField {
	fields := []treeField{}
	it := rawbson.NewIter(doc)
	for it.Next() {
		kid := n.kids[it.Name()]
		t := tree{val: valueOf(&it.Elem)}
		switch {
		case kid == nil:
			if !p.exclusion {
				continue
			}
		case kid.kind == excluded, kid.kind == computed:
			continue
		case kid.kind == branch:
			if t = p.projectValue(t.val, kid); t.missing() {
				continue
			}
		}
		fields = append(fields, treeField{it.Name(), t})
	}
	return fields
}

func (p *Projection) projectValue(v val, n *projected) tree {
	switch v.t {
	case bson.TypeEmbeddedDocument:
		return tree{val: val{t: v.t}, fields: p.project(v.b, n)}
	case bson.TypeArray:
		t := tree{val: val{t: v.t}, elems: []tree{}}
		it := rawbson.NewIter(v.b)
		for it.Next() {
			t.elems = append(t.elems, p.projectValue(valueOf(&it.Elem), n))
		}
		return t
	default:
		if p.exclusion {
			return tree{val: v}
		}
		return tree{}
	}
}

// compute writes the computed fields into the projected ones.
func (p *Projection) compute(doc bson.Raw, fields []treeField, n *projected) ([]treeField, error) {
	for _, name := range n.order {
		kid := n.kids[name]
		if kid == nil || !kid.computes {
			continue
		}
		at := len(fields)
		for i := range fields {
			if fields[i].name == name {
				at = i
				break
			}
		}
		var t tree
		var err error
		switch kid.kind {
		case computed:
			v, ok, evalErr := kid.expr.Eval(doc)
			if evalErr != nil {
				return nil, refusal(evalErr)
			}
			if ok {
				t = tree{val: fromRaw(v)}
			}
		default:
			if at < len(fields) {
				t = fields[at].tree
			}
			t, err = p.computeValue(doc, t, kid)
		}
		if err != nil {
			return nil, err
		}
		switch {
		case at < len(fields):
			fields[at].tree = t
		case !t.missing():
			fields = append(fields, treeField{name, t})
		}
	}
	return fields, nil
}

func (p *Projection) computeValue(doc bson.Raw, t tree, n *projected) (tree, error) {
	var err error
	switch t.t {
	case bson.TypeArray:
		for i := range t.elems {
			if t.elems[i], err = p.computeValue(doc, t.elems[i], n); err != nil {
				return tree{}, err
			}
		}
		return t, nil
	case bson.TypeEmbeddedDocument:
		t.fields, err = p.compute(doc, t.fields, n)
		return t, err
	default:
		fields, err := p.compute(doc, nil, n)
		return tree{val: val{t: bson.TypeEmbeddedDocument}, fields: fields}, err
	}
}

// appendValue appends the value's bytes, without type and name.
func (t *tree) appendValue(dst []byte) []byte {
	if t.b != nil || t.t != bson.TypeEmbeddedDocument && t.t != bson.TypeArray {
		return append(dst, t.b...)
	}
	start, dst := bsoncore.AppendDocumentStart(dst)
	for i := range t.fields {
		f := &t.fields[i]
		if !f.tree.missing() {
			dst = f.tree.appendValue(bsoncore.AppendHeader(dst, bsoncore.Type(f.tree.t), f.name))
		}
	}
	n := 0
	for i := range t.elems {
		if e := &t.elems[i]; !e.missing() {
			dst = e.appendValue(bsoncore.AppendHeader(dst, bsoncore.Type(e.t), strconv.Itoa(n)))
			n++
		}
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, start) // fails on a bad start only
	return dst
}
