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

// Positional reports whether the projection needs the number of the array element
// that matched ([Matcher.MatchIndex]).
func (p *Projection) Positional() bool { return p.positional != nil }

// Empty reports whether documents are returned as they are.
func (p *Projection) Empty() bool { return p.root == nil }

// Apply returns the projected document, with the fields in the server's order:
// those of the document in its own, then computed ones. Index is the number of
// the array element that matched, for positional projections, and -1 if there is
// none; that and failing expressions are refused with a [*servererr.Error].
func (p *Projection) Apply(doc bson.Raw, index int) (bson.Raw, error) {
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
	if p.positional != nil {
		if err := out.pick(p.positional, index); err != nil {
			return nil, err
		}
	}
	for _, s := range p.slices {
		out.slice(s.path, s.slice)
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
		case kid.kind == excluded, kid.kind == computed, kid.kind == matched:
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

// compute writes the computed fields into what was projected.
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
		case matched:
			t = kid.firstMatch(doc, name)
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

// firstMatch is $elemMatch: an array of the first element that matches.
func (n *projected) firstMatch(doc []byte, name string) tree {
	e, ok := rawbson.Lookup(doc, name)
	if !ok {
		return tree{}
	}
	ok, index := n.elemMatch.test(valueOf(&e))
	if !ok {
		return tree{}
	}
	elem := valueOf(&elems(e.Value)[index-1])
	return tree{val: val{t: bson.TypeArray}, elems: []tree{{val: elem}}}
}

// open takes stored bytes apart, one level.
func (t *tree) open() {
	switch {
	case t.b == nil:
	case t.t == bson.TypeEmbeddedDocument:
		t.fields = []treeField{}
		for _, e := range elems(t.b) {
			t.fields = append(t.fields, treeField{e.Name(), tree{val: valueOf(&e)}})
		}
		t.b = nil
	case t.t == bson.TypeArray:
		t.elems = []tree{}
		for _, e := range elems(t.b) {
			t.elems = append(t.elems, tree{val: valueOf(&e)})
		}
		t.b = nil
	}
}

// pick keeps of the first array on the path only the element that matched.
func (t *tree) pick(path []string, index int) error {
	if t.t == bson.TypeArray {
		if index < 0 {
			return servererr.New(51246, "positional operator '.$' couldn't find a matching element in the array")
		}
		t.open()
		if index >= len(t.elems) {
			return servererr.New(51247, "positional operator '.$' element mismatch")
		}
		t.elems = t.elems[index : index+1]
		return nil
	}
	if len(path) == 0 || t.t != bson.TypeEmbeddedDocument {
		return nil
	}
	t.open()
	for i := range t.fields {
		if t.fields[i].name == path[0] {
			return t.fields[i].tree.pick(path[1:], index)
		}
	}
	return nil
}

func (t *tree) slice(path []string, args sliceArgs) {
	switch {
	case t.t == bson.TypeArray:
		t.open()
		if len(path) == 0 {
			t.elems = args.cut(t.elems)
			return
		}
		for i := range t.elems {
			if t.elems[i].t == bson.TypeEmbeddedDocument {
				t.elems[i].slice(path, args)
			}
		}
	case t.t == bson.TypeEmbeddedDocument && len(path) > 0:
		t.open()
		for i := range t.fields {
			if t.fields[i].name == path[0] {
				t.fields[i].tree.slice(path[1:], args)
			}
		}
	}
}

func (a sliceArgs) cut(list []tree) []tree {
	n := int64(len(list))
	skip, limit := a.skip, a.limit
	switch {
	case !a.hasSkip && limit < 0:
		skip, limit = max(n+max(limit, -n), 0), n
	case !a.hasSkip:
		skip = 0
	case skip < 0:
		skip = max(n+max(skip, -n), 0)
	}
	skip = min(skip, n)
	return list[skip : skip+min(limit, n-skip)]
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
