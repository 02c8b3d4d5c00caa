package bucket

import (
	"bytes"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/arg"
)

// bounds are control.min and control.max of a bucket: the least and the greatest
// of each field's values, field by field inside documents and element by element
// inside arrays. Where types differ, their order decides.
type bounds struct{ root *bound }

// side distinguishes the minimum from the maximum.
type side uint8

const (
	lowest side = iota
	highest
)

// bound is one field's, or one array element's.
type bound struct {
	name string
	ends [2]end
	// fields and items are those of documents and of arrays that were met here.
	fields, items []*bound
}

// end is one of the two bounds of a field.
type end struct {
	form  form
	value rawbson.Elem
	// changed is true if it changed since the last write.
	changed bool
}

type form uint8

const (
	unset form = iota
	scalar
	object
	list
)

func newBounds() bounds {
	root := &bound{}
	for s := range root.ends {
		root.ends[s].form = object
	}
	return bounds{root}
}

// add includes a measurement, without its metadata.
func (b *bounds) add(doc bson.Raw, metaField string, coll *bsonorder.Collator) {
	b.root.addFields(doc, metaField, [2]bool{true, true}, coll)
}

// addFields takes in a document. The order of fields is that in which they come
// first: a new one is inserted before the next field of the document.
func (b *bound) addFields(doc bson.Raw, skip string, sides [2]bool, coll *bsonorder.Collator) {
	next, handled, skipped := 0, 0, false
	it := rawbson.NewIter(doc)
	for it.Next() {
		if skip != "" && it.Is(skip) {
			continue
		}
		at, behind := b.place(it.Name(), next, handled, skipped)
		skipped = skipped || behind
		b.fields[at].add(&it.Elem, sides, coll)
		next = at + 1
		if !skipped {
			handled++
		}
	}
}

// place finds a field, or makes it. The search begins with the expected place,
// next, and continues with those that earlier fields of the document skipped.
func (b *bound) place(name string, next, handled int, skipped bool) (at int, behind bool) {
	for i := next; i < len(b.fields); i++ {
		if b.fields[i].name == name {
			return i, i > next
		}
	}
	if skipped {
		for i := handled; i < min(next, len(b.fields)); i++ {
			if b.fields[i].name == name {
				return i, false
			}
		}
	}
	next = min(next, len(b.fields))
	b.fields = append(b.fields, nil)
	copy(b.fields[next+1:], b.fields[next:])
	b.fields[next] = &bound{name: strings.Clone(name)}
	return next, false
}

// add includes a value, on the sides where its parent counts.
func (b *bound) add(e *rawbson.Elem, sides [2]bool, coll *bsonorder.Collator) {
	want := formOf(e)
	var counts [2]bool
	for s := range b.ends {
		have := &b.ends[s]
		same := have.form == want && want != scalar
		if !sides[s] || have.form != unset && !same && !have.exceeded(e, side(s), coll) {
			continue
		}
		counts[s] = true
		if want == scalar {
			*have = end{form: scalar, value: rawbson.Elem{Type: e.Type, Value: bytes.Clone(e.Value)}, changed: true}
			continue
		}
		if have.form == want {
			continue
		}
		*have = end{form: want, changed: true}
		for _, inner := range b.inner(want) { // the bounds from before the change of type
			inner.ends[s] = end{}
		}
	}
	if !counts[0] && !counts[1] {
		return
	}
	if want == object {
		b.addFields(bson.Raw(e.Value), "", counts, coll)
	}
	if want == list {
		it := rawbson.NewIter(e.Value)
		for n := 0; it.Next(); n++ {
			if n == len(b.items) {
				b.items = append(b.items, &bound{})
			}
			b.items[n].add(&it.Elem, counts, coll)
		}
	}
}

func formOf(e *rawbson.Elem) form {
	switch e.Type {
	case bson.TypeEmbeddedDocument:
		return object
	case bson.TypeArray:
		return list
	}
	return scalar
}

func (b *bound) inner(s form) []*bound {
	if s == list {
		return b.items
	}
	return b.fields
}

// exceeded reports whether a value lies beyond the bound.
func (h *end) exceeded(e *rawbson.Elem, s side, coll *bsonorder.Collator) bool {
	var order int
	switch h.form {
	case object:
		order = bsonorder.Rank(e.Type) - bsonorder.Rank(bson.TypeEmbeddedDocument)
	case list:
		order = bsonorder.Rank(e.Type) - bsonorder.Rank(bson.TypeArray)
	case unset, scalar:
		if formOf(e) == scalar {
			order = bsonorder.Compare(e.Raw(), h.value.Raw(), coll)
		} else {
			order = bsonorder.Rank(e.Type) - bsonorder.Rank(h.value.Type)
		}
	}
	if s == lowest {
		return order < 0
	}
	return order > 0
}

// document is one side as a whole.
func (b *bounds) document(s side) bson.Raw {
	return bsoncore.BuildDocument(nil, b.root.appendInner(nil, s))
}

// appendInner appends the elements of a document or an array.
func (b *bound) appendInner(buf []byte, s side) []byte {
	form := b.ends[s].form
	n := 0
	for _, inner := range b.inner(form) {
		name := inner.name
		if form == list {
			name = strconv.Itoa(n)
		}
		if inner.ends[s].form != unset {
			buf = inner.append(buf, name, s)
			n++
		}
	}
	return buf
}

func (b *bound) append(buf []byte, name string, s side) []byte {
	switch h := &b.ends[s]; h.form {
	case object:
		return bsoncore.AppendDocumentElement(buf, name, bsoncore.BuildDocument(nil, b.appendInner(nil, s)))
	case list:
		return bsoncore.AppendArrayElement(buf, name, bsoncore.BuildDocument(nil, b.appendInner(nil, s)))
	case unset, scalar:
		return arg.Append(buf, name, &h.value) // changed and so never unset
	}
	return buf
}

// changes is the diff of one side since it was written last; false if there is
// none.
func (b *bounds) changes(s side) (bson.Raw, bool) {
	diff, found := b.root.changesInner(s)
	return bsoncore.BuildDocument(nil, diff), found
}

func (b *bound) changesInner(s side) (diff []byte, changed bool) {
	if b.ends[s].form == list {
		return b.changedItems(s)
	}
	var updates, subs []byte
	for _, inner := range b.fields {
		switch h := &inner.ends[s]; {
		case h.changed:
			updates = inner.append(updates, inner.name, s)
		case h.form == object || h.form == list:
			if sub, found := inner.changesInner(s); found {
				subs = bsoncore.AppendDocumentElement(subs, "s"+inner.name, bsoncore.BuildDocument(nil, sub))
			}
		}
	}
	if updates != nil {
		diff = bsoncore.AppendDocumentElement(nil, "u", bsoncore.BuildDocument(nil, updates))
	}
	return append(diff, subs...), updates != nil || subs != nil
}

func (b *bound) changedItems(s side) (diff []byte, changed bool) {
	diff = bsoncore.AppendBooleanElement(nil, "a", true)
	for n, inner := range b.items {
		switch h := &inner.ends[s]; {
		case h.changed:
			diff = inner.append(diff, "u"+strconv.Itoa(n), s)
			changed = true
		case h.form == object || h.form == list:
			if sub, found := inner.changesInner(s); found {
				diff = bsoncore.AppendDocumentElement(diff, "s"+strconv.Itoa(n), bsoncore.BuildDocument(nil, sub))
				changed = true
			}
		}
	}
	return diff, changed
}

// settle records that both sides have been written.
func (b *bounds) settle() { b.root.settle() }

func (b *bound) settle() {
	for s := range b.ends {
		b.ends[s].changed = false
	}
	for _, inner := range b.fields {
		inner.settle()
	}
	for _, inner := range b.items {
		inner.settle()
	}
}
