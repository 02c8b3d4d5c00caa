package update

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

const root = "$$ROOT"

// pipeline writes a delta as aggregation stages.
//
// One property of the server decides the shape. Inside a pipeline it may keep a
// removed field as a hole, and setting the field again puts it back into its old
// place, in the same stage and in later ones. (Whether it does depends on the
// version and on the rest of the stages.) An insert, which must end up last,
// therefore cannot be a removal followed by a set. $mergeObjects builds a new
// object, so a removal followed by a merge is exact.
func (b *builder) pipeline(d *ObjectDiff) {
	top := b.open()
	defer b.end(top)

	removed := b.removed(d)
	switch {
	case len(d.names) == 0:
		stage := b.document("0")
		b.text("$replaceWith", root)
		b.end(stage)
	case allPlain(d.names) && (b.guarantee == GuaranteeNewFields || len(d.Inserts) == 0):
		stage := b.document("0")
		b.setStage(d)
		b.end(stage)
	case allPlain(removed) && len(removed) > 0:
		stage := b.document("0")
		list := b.array("$unset")
		for i, name := range removed {
			b.text(strconv.Itoa(i), name)
		}
		b.end(list)
		b.end(stage)
		stage = b.document("1")
		b.change("$replaceWith", root, d, nil)
		b.end(stage)
	default:
		stage := b.document("0")
		b.change("$replaceWith", root, d, removed)
		b.end(stage)
	}
}

// setStage writes a single stage, for deltas in which every name is plain and no
// inserted field can exist yet.
func (b *builder) setStage(d *ObjectDiff) {
	at := b.document("$set")
	for _, name := range d.Deletes {
		b.text(name, "$$REMOVE")
	}
	for i := range d.Subs {
		b.sub(d.Subs[i].Name, root+"."+d.Subs[i].Name, &d.Subs[i].SubDiff, "$$REMOVE")
	}
	for _, f := range d.Updates {
		b.constant(f.Name, f.Value)
	}
	for _, f := range d.Inserts {
		b.constant(f.Name, f.Value)
	}
	b.end(at)
}

// change writes the expression for the document that ref refers to, without the
// removed fields and changed by the rest of d.
func (b *builder) change(key, ref string, d *ObjectDiff, removed []string) {
	var inner, outer []*SubField // those that need $setField, and the others
	for i := range d.Subs {
		if sub := &d.Subs[i]; plain(sub.Name) {
			outer = append(outer, sub)
		} else {
			inner = append(inner, sub)
		}
	}
	literal := len(d.Updates)+len(d.Inserts) > 0
	if len(outer) == 0 && !literal {
		b.base(key, ref, inner, removed)
		return
	}
	at := b.document(key)
	args := b.array("$mergeObjects")
	b.base("0", ref, inner, removed)
	next := "1"
	if len(outer) > 0 {
		subs := b.document(next)
		for _, sub := range outer {
			b.sub(sub.Name, ref+"."+sub.Name, &sub.SubDiff, "$$REMOVE")
		}
		b.end(subs)
		next = "2"
	}
	if literal {
		expr := b.document(next)
		fields := b.document("$literal")
		for _, f := range d.Updates {
			b.raw(f.Name, f.Value)
		}
		for _, f := range d.Inserts {
			b.raw(f.Name, f.Value)
		}
		b.end(fields)
		b.end(expr)
	}
	b.end(args)
	b.end(at)
}

// base writes ref without the removed fields, and with the changes inside fields
// whose names are not plain.
func (b *builder) base(key, ref string, subs []*SubField, removed []string) {
	var open []level
	b.byName = b.byName || len(subs)+len(removed) > 0
	for _, sub := range subs {
		at := b.document(key)
		args := b.document("$setField")
		b.name("field", sub.Name)
		b.bind("value", func(key string) {
			get := b.document(key)
			args := b.document("$getField")
			b.name("field", sub.Name)
			b.text("input", ref)
			b.end(args)
			b.end(get)
		}, func(key, ref string) {
			b.sub(key, ref, &sub.SubDiff, "$$REMOVE")
		})
		open = append(open, at, args)
		key = "input"
	}
	for _, name := range removed {
		at := b.document(key)
		args := b.document("$unsetField")
		b.name("field", name)
		open = append(open, at, args)
		key = "input"
	}
	b.text(key, ref)
	for _, at := range slices.Backward(open) {
		b.end(at)
	}
}

// name writes the name of a field for an operator that takes it literally.
func (b *builder) name(key, name string) {
	if !strings.HasPrefix(name, "$") {
		b.text(key, name)
		return
	}
	at := b.document(key)
	b.text("$literal", name)
	b.end(at)
}

// bind writes an expression with a variable: value writes the variable's value, and
// in writes the expression that refers to it by ref.
func (b *builder) bind(key string, value func(key string), in func(key, ref string)) {
	b.vars++
	v := "v" + strconv.Itoa(b.vars)
	at := b.document(key)
	args := b.document("$let")
	vars := b.document("vars")
	value(v)
	b.end(vars)
	in("in", "$$"+v)
	b.end(args)
	b.end(at)
}

// sub writes the expression for a value that changes inside: null if it has another
// type than the delta expects, and missing if it does not exist.
func (b *builder) sub(key, ref string, d *SubDiff, missing string) {
	if b.guarantee >= GuaranteePreImage {
		b.inside(key, ref, d)
		return
	}
	want := "object"
	if d.Array != nil {
		want = "array"
	}
	at := b.document(key)
	args := b.array("$cond")
	b.hasType("0", ref, want)
	b.inside("1", ref, d)
	if missing == "" {
		b.null("2")
	} else {
		other := b.document("2")
		args := b.array("$cond")
		b.hasType("0", ref, "missing")
		b.text("1", missing)
		b.null("2")
		b.end(args)
		b.end(other)
	}
	b.end(args)
	b.end(at)
}

func (b *builder) hasType(key, ref, want string) {
	at := b.document(key)
	args := b.array("$eq")
	typ := b.document("0")
	b.text("$type", ref)
	b.end(typ)
	b.text("1", want)
	b.end(args)
	b.end(at)
}

func (b *builder) inside(key, ref string, d *SubDiff) {
	if d.Array != nil {
		b.elements(key, ref, d.Array)
		return
	}
	b.change(key, ref, d.Object, b.removed(d.Object))
}

// removed returns the fields that must be removed before new ones are added.
func (b *builder) removed(d *ObjectDiff) []string {
	if b.guarantee == GuaranteeNewFields {
		return d.Deletes
	}
	list := make([]string, 0, len(d.Deletes)+len(d.Inserts))
	list = append(list, d.Deletes...)
	for i := range d.Inserts {
		list = append(list, d.Inserts[i].Name)
	}
	return list
}

// elements writes the expression for an array. If it may be shorter than the delta
// expects, it is first filled up with nulls. That is not needed for a pre-image
// that is truncated, or whose last changed element changes inside.
func (b *builder) elements(key, ref string, d *ArrayDiff) {
	full := d.Length
	long := d.HasLength
	switch {
	case d.HasLength && d.Length == 0:
		b.end(b.array(key))
		return
	case !d.HasLength && len(d.Mods) == 0:
		b.text(key, ref)
		return
	case !d.HasLength:
		last := &d.Mods[len(d.Mods)-1]
		full = last.Index
		long = last.IsSub()
	}
	if full == 0 || long && b.guarantee >= GuaranteePreImage {
		b.pieces(key, ref, ref, d)
		return
	}
	b.bind(key, func(key string) {
		at := b.document(key)
		args := b.array("$concatArrays")
		b.text("0", ref)
		fill := b.document("1")
		mapped := b.document("$map")
		input := b.document("input")
		bounds := b.array("$range")
		size := b.document("0")
		b.text("$size", ref)
		b.end(size)
		b.number("1", full)
		b.end(bounds)
		b.end(input)
		b.null("in")
		b.end(mapped)
		b.end(fill)
		b.end(args)
		b.end(at)
	}, func(key, filled string) {
		b.pieces(key, ref, filled, d)
	})
}

// pieces writes the array as runs of unchanged elements and changed elements in
// between. The runs are taken from filled, which has at least the elements before
// the last change, and the elements that change inside from ref.
func (b *builder) pieces(key, ref, filled string, d *ArrayDiff) {
	at := b.document(key)
	args := b.array("$concatArrays")
	n, next := 0, 0
	piece := func() string {
		n++
		return strconv.Itoa(n - 1)
	}
	run := func(count int) {
		slice := b.document(piece())
		args := b.array("$slice")
		b.text("0", filled)
		b.number("1", next)
		b.number("2", count)
		b.end(args)
		b.end(slice)
	}
	for i := 0; i < len(d.Mods); {
		if gap := d.Mods[i].Index - next; gap > 0 {
			run(gap)
		}
		list := b.array(piece())
		for k := 0; i < len(d.Mods) && (k == 0 || d.Mods[i].Index == next); k, i = k+1, i+1 {
			b.element(strconv.Itoa(k), ref, &d.Mods[i])
			next = d.Mods[i].Index + 1
		}
		b.end(list)
	}
	switch {
	case !d.HasLength:
		run(math.MaxInt32)
	case d.Length > next:
		run(d.Length - next)
	}
	b.end(args)
	b.end(at)
}

func (b *builder) element(key, ref string, m *ArrayMod) {
	if !m.IsSub() {
		b.constant(key, m.Value)
		return
	}
	b.bind(key, func(key string) {
		at := b.document(key)
		args := b.array("$arrayElemAt")
		b.text("0", ref)
		b.number("1", m.Index)
		b.end(args)
		b.end(at)
	}, func(key, ref string) {
		b.sub(key, ref, &m.SubDiff, "")
	})
}

func allPlain(list []string) bool {
	for _, name := range list {
		if !plain(name) {
			return false
		}
	}
	return true
}
