package update

import "strconv"

// modifiers writes a delta for which the survey has found modifiers to do. It
// tells whether there was anything to write: an update without modifiers would
// be a replacement by nothing.
func (b *builder) modifiers(d *ObjectDiff) bool {
	top := b.open()
	for _, op := range [...]string{"$set", "$unset"} {
		before := len(b.buf)
		at := b.document(op)
		empty := len(b.buf)
		b.objectPaths(op, "", d)
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

// objectPaths writes what op has to do with a document and what is in it.
func (b *builder) objectPaths(op, prefix string, d *ObjectDiff) {
	switch op {
	case "$set":
		for _, f := range d.Updates {
			b.raw(prefix+f.Name, f.Value)
		}
		for _, f := range d.Inserts {
			b.raw(prefix+f.Name, f.Value)
		}
	case "$unset":
		for _, name := range d.Deletes {
			b.text(prefix+name, "")
		}
	}
	for i := range d.Subs {
		b.subPaths(op, prefix+d.Subs[i].Name, &d.Subs[i].SubDiff)
	}
}

func (b *builder) subPaths(op, path string, d *SubDiff) {
	if d.Object != nil {
		b.objectPaths(op, path+".", d.Object)
		return
	}
	for i := range d.Array.Mods {
		m := &d.Array.Mods[i]
		elem := path + "." + strconv.Itoa(m.Index)
		if m.IsSub() {
			b.subPaths(op, elem, &m.SubDiff)
		} else if op == "$set" {
			b.raw(elem, m.Value)
		}
	}
}
