package update

import (
	"strconv"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// AppendModifiers appends a document of $set and $unset with the same effect as d,
// byte for byte, under the given guarantee, and returns the extended buffer. It
// returns false, with dst unchanged, if modifiers are not provably equivalent or
// would be nested too deep: [CompileDiff] has the other forms. d need not be in the arena.
func (a *Arena) AppendModifiers(dst []byte, d *ObjectDiff, g Guarantee) ([]byte, bool) {
	s := survey{guarantee: g}
	s.root(d)
	if !s.modifiers || s.binary {
		return dst, false
	}
	b := builder{buf: dst, guarantee: g, path: a.path[:0]}
	some := b.modifiers(d)
	a.path = b.path
	if !some || b.deepest > DefaultMaxDepth || len(b.buf)-len(dst) > defaultMaxSize {
		return dst, false
	}
	return b.buf, true
}

// modifiers writes a delta for which survey found modifiers to be equivalent. It
// reports whether it wrote any: an update without modifiers would replace the
// document by an empty one.
func (b *builder) modifiers(d *ObjectDiff) bool {
	top := b.open()
	for _, op := range [...]string{"$set", "$unset"} {
		before := len(b.buf)
		at := b.document(op)
		empty := len(b.buf)
		b.objectPaths(op, d)
		if len(b.buf) == empty {
			b.depth--
			b.buf = b.buf[:before]
			continue
		}
		b.end(at)
	}
	some := len(b.buf) > int(top)+4
	b.end(top)
	return some
}

// objectPaths writes the paths that operator op changes in a document and
// inside it. The document's own path, with a dot after it, is b.path.
func (b *builder) objectPaths(op string, d *ObjectDiff) {
	switch op {
	case "$set":
		for _, f := range d.Updates {
			b.raw(b.under(f.Name), f.Value)
		}
		for _, f := range d.Inserts {
			b.raw(b.under(f.Name), f.Value)
		}
	case "$unset":
		for _, name := range d.Deletes {
			b.text(b.under(name), "")
		}
	}
	outer := len(b.path)
	for i := range d.Subs {
		b.path = append(append(b.path, d.Subs[i].Name...), '.')
		b.subPaths(op, &d.Subs[i].SubDiff)
		b.path = b.path[:outer]
	}
}

// under returns the path of a field of the document at b.path. It is valid until
// the next call.
func (b *builder) under(name string) string {
	if len(b.path) == 0 {
		return name
	}
	outer := len(b.path)
	b.path = append(b.path, name...)
	path := rawbson.View(b.path)
	b.path = b.path[:outer]
	return path
}

func (b *builder) subPaths(op string, d *SubDiff) {
	if d.Object != nil {
		b.objectPaths(op, d.Object)
		return
	}
	outer := len(b.path)
	for i := range d.Array.Mods {
		m := &d.Array.Mods[i]
		b.path = strconv.AppendInt(b.path, int64(m.Index), 10)
		if m.IsSub() {
			b.path = append(b.path, '.')
			b.subPaths(op, &m.SubDiff)
		} else if op == "$set" {
			b.raw(rawbson.View(b.path), m.Value)
		}
		b.path = b.path[:outer]
	}
}
