package update

import (
	"cmp"
	"hash/maphash"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Folder composes a run of deltas in one pass: the same as [Arena.Compose] of the first
// two, then of the result and the third, and so on, byte for byte, in time
// proportional to the size of the deltas. It leaves some cases to Compose, such as changes
// inside a value that the run itself has set, array elements that change inside
// twice, truncated arrays, and changes of the place of _id. The zero Folder is
// ready to use. It must not be used concurrently.
type Folder struct {
	// first is the first delta of the run, count the number of deltas.
	first *ObjectDiff
	count int
	root  *foldObject
	// objects and arrays are memory that is reused; used has the number in use of
	// each.
	objects []*foldObject
	arrays  []*foldArray
	used    struct{ objects, arrays int }
	// found has the indexes of a delta's names and elements in the run, -1 if
	// missing, in the order in which fits visits them.
	found []int32
}

const (
	// minTable is the size of the smallest table of names, maxTable that of the
	// largest one that is kept.
	minTable = 16
	maxTable = 1 << 12
)

// foldObject is the effect of a run on one document.
type foldObject struct {
	fields []foldField
	// table finds a field by its name: 1 plus its index in fields, 0 for none.
	table []int32
	moves bool
	// moved is set if fields are not in the order of their stamps.
	moved bool
	stamp int32
}

// foldField is the effect of a run on one field.
type foldField struct {
	name    string
	hash    uint32
	section int8
	// stamp orders the fields of one section.
	stamp int32
	value bson.RawValue
	// sub is a view into a delta. With a second change inside, object or array
	// replaces it.
	sub    SubDiff
	object *foldObject
	array  *foldArray
}

// foldArray is the effect of a run on an array that it does not truncate.
type foldArray struct{ mods []ArrayMod }

// Add adds a delta to a run; views of it are kept until Diff or Reset. It returns
// false, with the run unchanged, for cases that a Folder does not handle. The first
// delta of a run is always accepted.
func (f *Folder) Add(d *ObjectDiff) bool {
	if f.count == 0 {
		f.first, f.count = d, 1
		return true
	}
	if f.first.idMoves || d.idMoves {
		return false
	}
	if f.root == nil {
		if len(f.first.Binaries) > 0 {
			return false
		}
		f.root = f.load(f.first)
	}
	f.found = f.found[:0]
	if !f.fits(f.root, d) {
		return false
	}
	f.put(f.root, d, f.found)
	f.count++
	return true
}

// Diff ends the run and returns the composed delta: the delta itself if it was the
// only one, otherwise one in a's memory, with views into those of the run.
func (f *Folder) Diff(a *Arena) *ObjectDiff {
	d := f.first
	if f.count > 1 {
		a.kept = true
		d = f.root.build(a)
	}
	f.Reset()
	return d
}

// Reset discards the run.
func (f *Folder) Reset() {
	for _, o := range f.objects[:f.used.objects] {
		clear(o.fields)
		clear(o.table)
		*o = foldObject{fields: o.fields[:0], table: o.table}
		if len(o.table) > maxTable {
			*o = foldObject{table: make([]int32, minTable)}
		}
	}
	for _, a := range f.arrays[:f.used.arrays] {
		clear(a.mods)
		if a.mods = a.mods[:0]; cap(a.mods) > maxTable {
			a.mods = nil
		}
	}
	f.used.objects, f.used.arrays = 0, 0
	f.first, f.root, f.count = nil, nil, 0
}

// fits reports whether the next delta can be composed with o, and records the
// indexes in f.found. It converts nested diffs that both have into foldObjects and
// foldArrays, which does not change their meaning.
func (f *Folder) fits(o *foldObject, b *ObjectDiff) bool {
	if len(b.Binaries) > 0 {
		return false
	}
	// Compose uses the order of the first delta if several fields become deleted, or
	// updated; here it would be the order of the second.
	deleted, replaced := 0, 0
	for _, name := range b.Deletes {
		if f.find(o, name) > deleteSection {
			deleted++
		}
	}
	for i := range b.Updates {
		switch f.find(o, b.Updates[i].Name) {
		case deleteSection:
			return false
		case subSections:
			replaced++
		}
	}
	for i := range b.Inserts {
		f.find(o, b.Inserts[i].Name)
	}
	if deleted > 1 || replaced > 1 {
		return false
	}
	for i := range b.Subs {
		switch f.find(o, b.Subs[i].Name) {
		case noSection:
		case subSections:
			if !f.fitsInside(&o.fields[f.found[len(f.found)-1]], &b.Subs[i].SubDiff) {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// find records the index of a field and returns its section.
func (f *Folder) find(o *foldObject, name string) int {
	at := o.find(name, nameHash(name))
	f.found = append(f.found, at)
	if at < 0 {
		return noSection
	}
	return int(o.fields[at].section)
}

func (f *Folder) fitsInside(field *foldField, b *SubDiff) bool {
	a := &field.sub
	switch {
	case a.Object != nil && b.Object != nil:
		if field.object == nil {
			if len(a.Object.Binaries) > 0 {
				return false
			}
			field.object = f.load(a.Object)
		}
		return f.fits(field.object, b.Object)
	case a.Array != nil && b.Array != nil && !a.Array.HasLength && !b.Array.HasLength:
		if field.array == nil {
			field.array = f.newArray()
			field.array.mods = append(field.array.mods, a.Array.Mods...)
		}
		return f.fitsArray(field.array, b.Array)
	}
	return false
}

func (f *Folder) fitsArray(a *foldArray, b *ArrayDiff) bool {
	for i := range b.Mods {
		at, ok := slices.BinarySearchFunc(a.mods, b.Mods[i].Index, func(m ArrayMod, index int) int { return cmp.Compare(m.Index, index) })
		switch {
		case ok && b.Mods[i].IsSub(), !ok && at < len(a.mods):
			return false
		case !ok:
			at = -1
		}
		f.found = append(f.found, int32(at))
	}
	return true
}

// put composes a delta that fits has accepted and returns the rest of found.
func (f *Folder) put(o *foldObject, b *ObjectDiff, found []int32) []int32 {
	o.moves = o.moves || b.moves
	found = o.putFields(b, found)
	for i := range b.Subs {
		s, at := &b.Subs[i], found[0]
		found = found[1:]
		if at < 0 {
			o.add(foldField{name: s.Name, section: subSections, sub: s.SubDiff})
			continue
		}
		if field := &o.fields[at]; field.object != nil {
			found = f.put(field.object, s.Object, found)
		} else {
			found = field.array.put(s.Array, found)
		}
	}
	return found
}

// putFields does so for all changes but those inside fields.
func (o *foldObject) putFields(b *ObjectDiff, found []int32) []int32 {
	n := len(b.Deletes)
	deletes, updates, inserts, rest := found[:n], found[n:], found[n+len(b.Updates):], found[n+len(b.Updates)+len(b.Inserts):]
	// As in Compose, fields that the run has changed before come first.
	for _, at := range deletes {
		if at >= 0 && o.fields[at].section != deleteSection {
			o.move(at, deleteSection, bson.RawValue{})
		}
	}
	for i, name := range b.Deletes {
		if deletes[i] < 0 {
			o.add(foldField{name: name, section: deleteSection})
		}
	}
	for i := range b.Updates {
		switch at := updates[i]; {
		case at < 0:
		case o.fields[at].section == subSections:
			o.move(at, updateSection, b.Updates[i].Value)
		default:
			o.fields[at].value = b.Updates[i].Value
		}
	}
	for i := range b.Updates {
		if updates[i] < 0 {
			o.add(foldField{name: b.Updates[i].Name, section: updateSection, value: b.Updates[i].Value})
		}
	}
	for i := range b.Inserts {
		at := inserts[i]
		if at < 0 {
			o.add(foldField{name: b.Inserts[i].Name, section: insertSection, value: b.Inserts[i].Value})
			continue
		}
		o.moves = o.moves || o.fields[at].section != insertSection
		o.move(at, insertSection, b.Inserts[i].Value)
	}
	return rest
}

func (a *foldArray) put(b *ArrayDiff, found []int32) []int32 {
	for i := range b.Mods {
		if at := found[i]; at < 0 {
			a.mods = append(a.mods, b.Mods[i])
		} else {
			a.mods[at] = b.Mods[i]
		}
	}
	return found[len(b.Mods):]
}

// load returns a copy of a diff that can be extended. The diff must not have binary changes:
// these cannot be composed, and the copy would not have them.
func (f *Folder) load(d *ObjectDiff) *foldObject {
	if f.used.objects == len(f.objects) {
		f.objects = append(f.objects, &foldObject{table: make([]int32, minTable)})
	}
	o := f.objects[f.used.objects]
	f.used.objects++
	o.moves = d.moves
	for _, name := range d.Deletes {
		o.add(foldField{name: name, section: deleteSection})
	}
	for i := range d.Updates {
		o.add(foldField{name: d.Updates[i].Name, section: updateSection, value: d.Updates[i].Value})
	}
	for i := range d.Inserts {
		o.add(foldField{name: d.Inserts[i].Name, section: insertSection, value: d.Inserts[i].Value})
	}
	for i := range d.Subs {
		o.add(foldField{name: d.Subs[i].Name, section: subSections, sub: d.Subs[i].SubDiff})
	}
	return o
}

func (f *Folder) newArray() *foldArray {
	if f.used.arrays == len(f.arrays) {
		f.arrays = append(f.arrays, &foldArray{})
	}
	f.used.arrays++
	return f.arrays[f.used.arrays-1]
}

// find returns the index of a field, -1 if there is none.
func (o *foldObject) find(name string, hash uint32) int32 {
	mask := uint32(len(o.table) - 1)
	for i := hash & mask; ; i = (i + 1) & mask {
		at := o.table[i] - 1
		if at < 0 || o.fields[at].hash == hash && o.fields[at].name == name {
			return at
		}
	}
}

// add appends a field that does not exist yet.
func (o *foldObject) add(field foldField) {
	field.hash = nameHash(field.name)
	field.stamp = o.stamp
	o.stamp++
	o.fields = append(o.fields, field)
	if 2*len(o.fields) > len(o.table) {
		o.table = make([]int32, 2*len(o.table))
		for i := range o.fields {
			o.enter(int32(i))
		}
		return
	}
	o.enter(int32(len(o.fields) - 1))
}

func (o *foldObject) enter(at int32) {
	mask := uint32(len(o.table) - 1)
	i := o.fields[at].hash & mask
	for o.table[i] != 0 {
		i = (i + 1) & mask
	}
	o.table[i] = at + 1
}

// move puts a field at the end of a section.
func (o *foldObject) move(at int32, section int8, value bson.RawValue) {
	field := &o.fields[at]
	*field = foldField{name: field.name, hash: field.hash, section: section, value: value, stamp: o.stamp}
	o.stamp++
	o.moved = true
}

// build returns the diff of a document. Afterwards the run cannot be extended.
func (o *foldObject) build(a *Arena) *ObjectDiff {
	if o.moved {
		slices.SortFunc(o.fields, func(a, b foldField) int { return cmp.Compare(a.stamp, b.stamp) })
	}
	var counts [subSections + 1]int
	for i := range o.fields {
		counts[o.fields[i].section]++
	}
	d := a.newObject(&counts, counts[updateSection], counts[insertSection])
	d.moves = o.moves
	for i := range o.fields {
		switch f := &o.fields[i]; f.section {
		case deleteSection:
			d.Deletes = append(d.Deletes, f.name)
		case updateSection:
			d.Updates = append(d.Updates, Field{f.name, f.value})
		case insertSection:
			d.Inserts = append(d.Inserts, Field{f.name, f.value})
		default:
			d.Subs = append(d.Subs, SubField{f.name, f.build(a)})
		}
	}
	d.index(a)
	return d
}

func (f *foldField) build(a *Arena) SubDiff {
	switch {
	case f.object != nil:
		return SubDiff{Object: f.object.build(a)}
	case f.array != nil:
		d := a.arrays.one(a.kept)
		d.Mods = append(a.mods.take(len(f.array.mods), a.kept), f.array.mods...)
		return SubDiff{Array: d}
	}
	return f.sub
}

// seed makes hash collisions of names unpredictable.
var seed = maphash.MakeSeed()

func nameHash(name string) uint32 { return uint32(maphash.String(seed, name)) }
