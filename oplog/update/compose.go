package update

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Compose returns one delta with the effect of first followed by second, byte for byte,
// where first was logged for a document and second for its result: see
// [GuaranteePreImage], which is true of the result too, so that it may be compiled
// with it and composed again. It returns false if equivalence cannot be shown: for
// binary diffs of one document, for arrays that may have been padded and then
// truncated, and if second does not fit first, so that it cannot have been logged after it.
// The document's first field must be _id, so that its place never changes: the
// result updates _id if one of the two inserts it, and never deletes it.
//
// Neither argument is modified, and the result, which is valid until Reset, has views into both.
func (a *Arena) Compose(first, second *ObjectDiff) (*ObjectDiff, bool) {
	a.kept = true
	return a.compose(first, second)
}

func (a *Arena) compose(first, second *ObjectDiff) (*ObjectDiff, bool) {
	if len(first.Binaries)+len(second.Binaries) > 0 {
		return nil, false
	}
	c := composer{mem: a, ok: true}
	d := c.object(c.idInPlace(first), c.idInPlace(second))
	// An empty diff is not valid: both changed only the place of _id.
	return d, c.ok && len(d.names) > 0
}

// idInPlace returns d for a document whose first field is _id: an insert of _id
// becomes an update, and a delete of _id is dropped.
func (c *composer) idInPlace(d *ObjectDiff) *ObjectDiff {
	if !d.idMoves {
		return d
	}
	var counts [subSections + 1]int
	for section := deleteSection; section <= subSections; section++ {
		counts[section] = d.length(section)
	}
	e := c.mem.newObject(&counts, counts[updateSection]+1, counts[insertSection])
	e.moves = d.moves
	for _, name := range d.Deletes {
		if name != "_id" {
			e.Deletes = append(e.Deletes, name)
		}
	}
	e.Updates = append(e.Updates, d.Updates...)
	for i := range d.Inserts {
		if f := d.Inserts[i]; f.Name == "_id" {
			e.Updates = append(e.Updates, f)
		} else {
			e.Inserts = append(e.Inserts, f)
		}
	}
	e.Subs = append(e.Subs, d.Subs...)
	e.index(c.mem)
	return e
}

// Moves reports whether a delta returned by [Arena.Compose] is known to insert an
// existing field, so that [GuaranteeNewFields] cannot be true. False means only
// that it is not known.
func (d *ObjectDiff) Moves() bool {
	if d.moves {
		return true
	}
	for i := range d.Subs {
		if d.Subs[i].moves() {
			return true
		}
	}
	return false
}

func (d *SubDiff) moves() bool {
	if d.Object != nil {
		return d.Object.Moves()
	}
	for i := range d.Array.Mods {
		if m := &d.Array.Mods[i]; m.IsSub() && m.moves() {
			return true
		}
	}
	return false
}

// composer records that something could not be composed. Its result must then be
// discarded.
type composer struct {
	mem *Arena
	ok  bool
}

// section returns what an object diff does with a field: the section, and the index
// in it.
func (d *ObjectDiff) section(name string) (section, index int) {
	i := d.place(name)
	if i < 0 {
		return noSection, 0
	}
	for section = deleteSection; section < subSections; section++ {
		n := d.length(section)
		if i < n {
			return section, i
		}
		i -= n
	}
	return subSections, i
}

func (d *ObjectDiff) length(section int) int {
	switch section {
	case deleteSection:
		return len(d.Deletes)
	case updateSection:
		return len(d.Updates)
	case insertSection:
		return len(d.Inserts)
	case binarySection:
		return len(d.Binaries)
	}
	return len(d.Subs)
}

// object processes the fields of a, in its order, and then those of b that a does
// not have. A document ends with the fields that a inserted and b did not move,
// followed by those that b inserted; the inserts of the result have the same order.
func (c *composer) object(a, b *ObjectDiff) *ObjectDiff {
	if len(a.Binaries)+len(b.Binaries) > 0 {
		c.ok = false
		return nil
	}
	var counts [subSections + 1]int
	for section := deleteSection; section <= subSections; section++ {
		counts[section] = a.length(section) + b.length(section)
	}
	// A field that a updates or inserts may become deleted, one that changes inside
	// may become updated.
	d := c.mem.newObject(&counts, counts[updateSection]+len(a.Subs), counts[insertSection])
	d.moves = a.moves || b.moves
	for _, name := range a.Deletes {
		switch section, _ := b.section(name); section {
		case noSection, deleteSection:
			d.Deletes = append(d.Deletes, name)
		case insertSection:
			d.moves = true
		default:
			c.ok = false // the field does not exist
		}
	}
	d.Updates = c.fields(d, d.Updates, a.Updates, b, true)
	d.Inserts = c.fields(d, d.Inserts, a.Inserts, b, false)
	for i := range a.Subs {
		f := &a.Subs[i]
		switch section, k := b.section(f.Name); section {
		case noSection:
			d.Subs = append(d.Subs, *f)
		case deleteSection:
			d.Deletes = append(d.Deletes, f.Name)
		case updateSection:
			d.Updates = append(d.Updates, b.Updates[k])
		case insertSection:
			d.moves = true
		default:
			d.Subs = append(d.Subs, SubField{f.Name, c.sub(&f.SubDiff, &b.Subs[k].SubDiff)})
		}
	}
	for _, name := range b.Deletes {
		if a.place(name) < 0 {
			d.Deletes = append(d.Deletes, name)
		}
	}
	for i := range b.Updates {
		if a.place(b.Updates[i].Name) < 0 {
			d.Updates = append(d.Updates, b.Updates[i])
		}
	}
	d.Inserts = append(d.Inserts, b.Inserts...)
	for i := range b.Subs {
		if a.place(b.Subs[i].Name) < 0 {
			d.Subs = append(d.Subs, b.Subs[i])
		}
	}
	d.index(c.mem)
	return d
}

// fields appends to dst the result of applying b to fields with a value: a's
// updates if there is set, otherwise a's inserts.
func (c *composer) fields(d *ObjectDiff, dst, fields []Field, b *ObjectDiff, there bool) []Field {
	for i := range fields {
		f := fields[i]
		switch section, k := b.section(f.Name); section {
		case noSection:
			dst = append(dst, f)
		case deleteSection:
			d.Deletes = append(d.Deletes, f.Name)
		case updateSection:
			dst = append(dst, b.Updates[k])
		case insertSection:
			d.moves = d.moves || there
		default:
			dst = append(dst, Field{f.Name, c.inside(f.Value, &b.Subs[k].SubDiff)})
		}
	}
	return dst
}

// newObject returns an empty diff with capacity for as many fields as counts has
// per section, and for this number of updates and inserts.
func (a *Arena) newObject(counts *[subSections + 1]int, updates, inserts int) *ObjectDiff {
	total := 0
	for _, n := range counts {
		total += n
	}
	d := a.diffs.one(a.kept)
	d.names = a.names.take(total, a.kept)
	d.Deletes = d.names
	d.Updates = a.fields.take(updates, a.kept)
	d.Inserts = a.fields.take(inserts, a.kept)
	if n := counts[subSections]; n > 0 {
		d.Subs = a.subs.take(n, a.kept)
	}
	return d
}

// index builds the names of a composed diff, which follow its Deletes.
func (d *ObjectDiff) index(a *Arena) {
	d.names = d.Deletes
	for i := range d.Updates {
		d.names = append(d.names, d.Updates[i].Name)
	}
	for i := range d.Inserts {
		d.names = append(d.names, d.Inserts[i].Name)
	}
	for i := range d.Subs {
		d.names = append(d.names, d.Subs[i].Name)
	}
	d.Deletes = slices.Clip(d.Deletes)
	if fault := d.checkNames(a); fault != nil {
		panic("update: invariant broken: no name twice in a composed delta: " + fault.What)
	}
}

// inside returns the result of applying sub to v.
func (c *composer) inside(v bson.RawValue, sub *SubDiff) bson.RawValue {
	a := applier{limit: MaxResult}
	var err error
	dst := make([]byte, 0, len(v.Value)+len(v.Value)/8+64)
	switch {
	case sub.Object != nil && v.Type == bson.TypeEmbeddedDocument:
		dst, err = a.object(dst, v.Value, sub.Object)
	case sub.Array != nil && v.Type == bson.TypeArray:
		dst, err = a.array(dst, v.Value, sub.Array)
	default:
		c.ok = false
	}
	if err != nil {
		c.ok = false
	}
	return bson.RawValue{Type: v.Type, Value: dst}
}

func (c *composer) sub(a, b *SubDiff) SubDiff {
	switch {
	case a.Object != nil && b.Object != nil:
		return SubDiff{Object: c.object(a.Object, b.Object)}
	case a.Array != nil && b.Array != nil:
		return SubDiff{Array: c.array(a.Array, b.Array)}
	}
	c.ok = false
	return SubDiff{}
}

// maxNulls is the maximum number of padding elements that a composed array diff
// names.
const maxNulls = 1000

// array composes the diffs of one array.
//
// Invariant: of an array diff with a length, every element below it that the diff
// does not name exists in the array that it was logged for. A server logs a length
// only for a truncation, so this is true of logged diffs; the compiler relies on
// it. To maintain it, elements that may be padding are named with their null, or
// composing fails.
func (c *composer) array(a, b *ArrayDiff) *ArrayDiff {
	d := c.mem.arrays.one(c.mem.kept)
	d.Mods = c.mem.mods.take(len(a.Mods)+len(b.Mods), c.mem.kept)
	first := a.Mods
	switch {
	case b.HasLength:
		d.HasLength, d.Length = true, b.Length
		for len(first) > 0 && first[len(first)-1].Index >= b.Length {
			first = first[:len(first)-1]
		}
		if !a.HasLength && !reaches(a, b) {
			c.ok = false
			return d
		}
	case a.HasLength:
		d.HasLength, d.Length = true, a.Length
		if n := len(b.Mods); n > 0 {
			d.Length = max(d.Length, b.Mods[n-1].Index+1)
		}
	}
	if a.HasLength && d.Length-a.Length > maxNulls+len(b.Mods) {
		c.ok = false
		return d
	}
	second := b.Mods
	// next is the next element that is padding if neither diff names it.
	next := a.Length
	pad := func(until int) {
		for ; a.HasLength && next < until; next++ {
			d.Mods = append(d.Mods, ArrayMod{Index: next, Value: bson.RawValue{Type: bson.TypeNull}})
		}
	}
	for len(first) > 0 || len(second) > 0 {
		var mod ArrayMod
		switch {
		case len(second) == 0 || len(first) > 0 && first[0].Index < second[0].Index:
			mod, first = first[0], first[1:]
		case len(first) == 0 || second[0].Index < first[0].Index:
			mod, second = second[0], second[1:]
			if a.HasLength && mod.Index >= a.Length && mod.IsSub() {
				c.ok = false // the element does not exist
			}
		default:
			mod = c.mod(&first[0], &second[0])
			first, second = first[1:], second[1:]
		}
		pad(mod.Index)
		next = max(next, mod.Index+1)
		d.Mods = append(d.Mods, mod)
	}
	pad(d.Length)
	return d
}

// reaches reports whether an array that a, a diff without a length, was logged for
// has every element below b's length that neither of the two names.
func reaches(a, b *ArrayDiff) bool {
	// known is the last element below the length that b does not name. It exists
	// after a.
	known := b.Length - 1
	for i := len(b.Mods) - 1; i >= 0 && b.Mods[i].Index == known; i-- {
		known--
	}
	// If a sets an element at or after it, elements before that may be padding.
	last := slices.IndexFunc(a.Mods, func(m ArrayMod) bool { return !m.IsSub() && m.Index >= known })
	return known < 0 || last < 0
}

// mod composes the changes of one element.
func (c *composer) mod(a, b *ArrayMod) ArrayMod {
	switch {
	case !b.IsSub():
		return *b
	case a.IsSub():
		return ArrayMod{Index: a.Index, SubDiff: c.sub(&a.SubDiff, &b.SubDiff)}
	default:
		return ArrayMod{Index: a.Index, Value: c.inside(a.Value, &b.SubDiff)}
	}
}
