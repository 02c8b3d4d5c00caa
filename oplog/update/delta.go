package update

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// ErrBadDelta matches every [*DeltaError] in errors.Is.
var ErrBadDelta = errors.New("not a $v:2 delta")

// DeltaError is a delta that breaks the grammar.
type DeltaError struct {
	// Path is the path to the fault: the delta's own field names from the outside in,
	// joined by slashes, and quoted if they contain anything but letters and digits.
	// It starts with "diff".
	Path string
	// What says which rule is violated.
	What string
	// Err is the fault in the BSON, nil if the BSON is valid.
	Err error
}

func (e *DeltaError) Error() string { return fmt.Sprintf("delta: %s: %s", e.Path, e.What) }

// Is reports whether target is [ErrBadDelta].
func (e *DeltaError) Is(target error) bool { return target == ErrBadDelta }

func (e *DeltaError) Unwrap() error { return e.Err }

// ObjectDiff is the diff of one document: the whole one or an embedded one. No
// field name occurs twice in it. Names and values are views into the delta, and
// names are literal: a dot, a dollar or a digit has no special meaning.
type ObjectDiff struct {
	// Deletes are the fields to remove.
	Deletes []string
	// Updates are the fields to replace in place, or to append.
	Updates []Field
	// Inserts are the fields to append, after removing any field of that name.
	Inserts []Field
	// Binaries are the fields whose binary data gets a new tail. Only 8.0 and
	// newer write them, for time-series buckets.
	Binaries []BinaryField
	// Subs are the fields that change inside.
	Subs []SubField

	// names are all field names, those of Deletes, Updates, Inserts, Binaries and
	// Subs, in this order. Deletes is a prefix of it.
	names []string
	// places is a hash table: each entry is 1 plus an index in names, or 0. It is nil
	// if there are so few names that a scan is faster.
	places []int32
	// moves is set by Compose; see Moves.
	moves bool
	// idMoves reports that the diff of a whole document deletes or inserts _id, so
	// that its place changes; see [ParseDelta]. Compose never returns such a diff.
	idMoves bool
}

// Field is a field with its new value.
type Field struct {
	Name  string
	Value bson.RawValue
}

// BinaryField is a field whose binary data is kept up to Offset, in bytes, and
// continues with Data.
type BinaryField struct {
	Name    string
	Offset  int
	Subtype byte
	Data    []byte
}

// SubField is a field and the diff of its value.
type SubField struct {
	Name string
	SubDiff
}

// SubDiff is a diff inside a value, either of a document or of an array; the other
// field is nil.
type SubDiff struct {
	Object *ObjectDiff
	Array  *ArrayDiff
}

// ArrayDiff is the diff of one array.
type ArrayDiff struct {
	// HasLength reports whether the array gets a certain length.
	HasLength bool
	// Length is that length in elements, 0 without HasLength.
	Length int
	// Mods are the elements that change, by ascending Index. With HasLength, every
	// Index is below Length.
	Mods []ArrayMod
}

// ArrayMod is a change of one array element: a new value, unless one field of
// SubDiff is set.
type ArrayMod struct {
	Index int
	Value bson.RawValue
	SubDiff
}

// IsSub reports whether the element changes inside, rather than being replaced.
func (m *ArrayMod) IsSub() bool { return m.Object != nil || m.Array != nil }

// ParseDelta reads the diff field of a $v:2 update entry and validates all of it:
// the BSON, and the grammar at every depth. The result has views into diff. An
// error is a [*DeltaError].
//
// The _id of the whole document may be among the fields. A server computes the diff
// of a pipeline update from the pipeline's result, before it moves _id to the front
// again or, if the pipeline removed it, restores it. So _id is inserted if a field
// was put before it, deleted if it was removed, and updated, or changed inside, if
// it got an equal value of another type (1 and 1.0). A diff must not change the
// value; [ObjectDiff.Apply] and [ObjectDiff.CheckID] check that, since it depends
// on the document.
//
// The server's reader takes a section's first letter for its name, and accepts
// leading zeros in an index, and indexes in any order (for some of which its
// applier aborts). The server never writes such deltas, so here they are errors.
func ParseDelta(diff bson.Raw) (*ObjectDiff, error) {
	var a Arena
	return a.parse(diff)
}

func (a *Arena) parse(diff bson.Raw) (*ObjectDiff, error) {
	if err := rawbson.Validate(diff); err != nil {
		return nil, &DeltaError{Path: "diff", What: err.Error(), Err: err}
	}
	if first := firstKey(diff); string(first) == "a" {
		return nil, &DeltaError{Path: "diff", What: "an array diff of a whole document"}
	}
	d, fault := a.object(diff)
	if fault != nil {
		return nil, fault.in("diff")
	}
	section, _ := d.section("_id")
	d.idMoves = section == deleteSection || section == insertSection
	return d, nil
}

// in prepends name to the fault's path and returns the fault.
func (e *DeltaError) in(name string) *DeltaError {
	if !isPlain(name) {
		name = strconv.Quote(name)
	}
	if e.Path == "" {
		e.Path = name
	} else {
		e.Path = name + "/" + e.Path
	}
	return e
}

func isPlain(name string) bool {
	for i := range len(name) {
		c := name[i]
		if c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return name != ""
}

// firstKey returns the name of the first field of a valid document, nil if it is
// empty.
func firstKey(doc []byte) []byte {
	it := rawbson.NewIter(doc)
	it.Next()
	return it.Key
}

// The sections of an object diff, in their required order.
const (
	noSection = iota
	deleteSection
	updateSection
	insertSection
	binarySection
	subSections
)

// sectionOf returns the section that a field of an object diff is, or belongs to.
func sectionOf(name []byte) int {
	switch {
	case len(name) > 0 && name[0] == 's':
		return subSections
	case len(name) != 1:
		return noSection
	}
	switch name[0] {
	case 'd':
		return deleteSection
	case 'u':
		return updateSection
	case 'i':
		return insertSection
	case 'b':
		return binarySection
	}
	return noSection
}

// object reads an object diff. It assumes valid BSON.
func (a *Arena) object(diff []byte) (*ObjectDiff, *DeltaError) {
	counts, fault := countSections(diff)
	if fault != nil {
		return nil, fault
	}
	total := 0
	for _, n := range counts {
		total += n
	}
	d := a.diffs.one(a.kept)
	d.names = a.names.take(total, a.kept)
	fields := a.fields.take(counts[updateSection]+counts[insertSection], a.kept)
	if n := counts[subSections]; n > 0 {
		d.Subs = a.subs.take(n, a.kept)
	}
	it := rawbson.NewIter(diff)
	for it.Next() {
		section := sectionOf(it.Key)
		if section == subSections {
			name := rawbson.View(it.Key[1:])
			sub, fault := a.sub(it.Value)
			if fault != nil {
				return nil, fault.in(string(it.Key))
			}
			d.Subs = append(d.Subs, SubField{name, sub})
			d.names = append(d.names, name)
			continue
		}
		start := len(fields)
		for in := rawbson.NewIter(it.Value); in.Next(); {
			d.names = append(d.names, in.Name())
			switch section {
			case updateSection, insertSection:
				fields = append(fields, Field{in.Name(), in.Raw()})
			case binarySection:
				b, fault := parseBinary(&in.Elem)
				if fault != nil {
					return nil, fault.in(string(in.Key)).in("b")
				}
				d.Binaries = append(d.Binaries, b)
			}
		}
		switch section {
		case deleteSection:
			d.Deletes = slices.Clip(d.names)
		case updateSection:
			d.Updates = fields[start:len(fields):len(fields)]
		case insertSection:
			d.Inserts = fields[start:len(fields):len(fields)]
		}
	}
	return d, d.checkNames(a)
}

// countSections counts the fields of each section of an object diff, and checks the
// sections and their order.
func countSections(diff []byte) (counts [subSections + 1]int, fault *DeltaError) {
	last := noSection
	it := rawbson.NewIter(diff)
	for it.Next() {
		section := sectionOf(it.Key)
		switch {
		case section == noSection:
			return counts, &DeltaError{What: fmt.Sprintf("unknown section %q", it.Key)}
		case section < last && last == subSections:
			return counts, &DeltaError{What: fmt.Sprintf("section %q after a sub-diff", it.Key)}
		case section < last:
			return counts, &DeltaError{What: fmt.Sprintf("section %q out of order", it.Key)}
		case section == last && section != subSections:
			return counts, &DeltaError{What: fmt.Sprintf("section %q twice", it.Key)}
		}
		if _, ok := it.Document(); !ok {
			fault = &DeltaError{What: fmt.Sprintf("type %s instead of a document", it.Type)}
			return counts, fault.in(string(it.Key))
		}
		last = section
		if section == subSections {
			counts[section]++
			continue
		}
		for in := rawbson.NewIter(it.Value); in.Next(); {
			counts[section]++
		}
	}
	if last == noSection {
		return counts, &DeltaError{What: "an empty diff"}
	}
	return counts, nil
}

// scanLimit is the maximum number of names that are searched linearly.
const scanLimit = 12

// checkNames checks that no name occurs twice. If there are many names it builds
// the table for lookups.
func (d *ObjectDiff) checkNames(a *Arena) *DeltaError {
	twice := func(name string) *DeltaError {
		return &DeltaError{What: fmt.Sprintf("field %q occurs twice", name)}
	}
	if len(d.names) <= scanLimit {
		for i, name := range d.names {
			if slices.Contains(d.names[:i], name) {
				return twice(name)
			}
		}
		return nil
	}
	size := 32
	for size < 2*len(d.names) {
		size *= 2
	}
	d.places = a.places.take(size, a.kept)[:size]
	for i, name := range d.names {
		slot := d.slot(name)
		if *slot != 0 {
			return twice(name)
		}
		*slot = int32(i) + 1
	}
	return nil
}

// slot returns the entry of d.places where name is, or would be inserted.
func (d *ObjectDiff) slot(name string) *int32 {
	mask := uint32(len(d.places) - 1)
	for i := nameHash(name) & mask; ; i = (i + 1) & mask {
		at := d.places[i]
		if at == 0 || d.names[at-1] == name {
			return &d.places[i]
		}
	}
}

// place returns the index of name in d.names, -1 if it is not there.
func (d *ObjectDiff) place(name string) int {
	if d.places != nil {
		return int(*d.slot(name)) - 1
	}
	for i, n := range d.names {
		if n == name {
			return i
		}
	}
	return -1
}

// HasBinary reports whether the diff changes binary data in part, at any depth,
// which only 8.0 and newer understand.
func (d *ObjectDiff) HasBinary() bool {
	return len(d.Binaries) > 0 || slices.ContainsFunc(d.Subs, func(f SubField) bool { return f.hasBinary() })
}

func (d *SubDiff) hasBinary() bool {
	if d.Object != nil {
		return d.Object.HasBinary()
	}
	return slices.ContainsFunc(d.Array.Mods, func(m ArrayMod) bool { return m.IsSub() && m.hasBinary() })
}

func (a *Arena) sub(diff []byte) (sub SubDiff, fault *DeltaError) {
	if string(firstKey(diff)) == "a" {
		sub.Array, fault = a.array(diff)
	} else {
		sub.Object, fault = a.object(diff)
	}
	return sub, fault
}

// array reads an array diff. The caller has checked that its first field is "a".
func (a *Arena) array(diff []byte) (*ArrayDiff, *DeltaError) {
	d := a.arrays.one(a.kept)
	it := rawbson.NewIter(diff)
	it.Next()
	if v, ok := it.Bool(); !ok || !v {
		return nil, (&DeltaError{What: "an array diff's mark that is not true"}).in("a")
	}
	count := 0
	for fork := it; fork.Next(); {
		count++
	}
	d.Mods = a.mods.take(count, a.kept)
	last := -1
	for first := true; it.Next(); first = false {
		name := it.Name()
		switch {
		case first && name == "l":
			n, ok := it.Int64()
			if !ok || it.Type != bson.TypeInt32 || n < 0 {
				return nil, (&DeltaError{What: "an array length that is not an int32 of at least 0"}).in("l")
			}
			d.HasLength, d.Length = true, int(n)
			continue
		case name == "" || name[0] != 'u' && name[0] != 's':
			return nil, &DeltaError{What: fmt.Sprintf("unknown field %q in an array diff", name)}
		}
		index, ok := parseIndex(name[1:])
		switch {
		case !ok:
			return nil, &DeltaError{What: fmt.Sprintf("field %q in an array diff: not an array index", name)}
		case index <= last:
			return nil, &DeltaError{What: fmt.Sprintf("field %q in an array diff: after index %d", name, last)}
		case d.HasLength && index >= d.Length:
			return nil, &DeltaError{What: fmt.Sprintf("field %q in an array diff of length %d", name, d.Length)}
		}
		last = index
		mod := ArrayMod{Index: index}
		if name[0] == 'u' {
			mod.Value = it.Raw()
		} else {
			doc, ok := it.Document()
			if !ok {
				return nil, (&DeltaError{What: fmt.Sprintf("type %s instead of a document", it.Type)}).in(string(it.Key))
			}
			var fault *DeltaError
			if mod.SubDiff, fault = a.sub(doc); fault != nil {
				return nil, fault.in(string(it.Key))
			}
		}
		d.Mods = append(d.Mods, mod)
	}
	return d, nil
}

// parseIndex reads an array index as the server writes it: decimal, unsigned,
// without leading zeros, within an int32.
func parseIndex(s string) (int, bool) {
	if s == "" || len(s) > 10 || s[0] == '0' && s != "0" {
		return 0, false
	}
	n := 0
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		n = n*10 + int(s[i]-'0')
	}
	return n, n <= math.MaxInt32
}

// parseBinary reads a field of a binary section: {o: offset, d: data}.
func parseBinary(e *rawbson.Elem) (BinaryField, *DeltaError) {
	b := BinaryField{Name: e.Name()}
	doc, ok := e.Document()
	if !ok {
		return b, &DeltaError{What: fmt.Sprintf("type %s instead of a document", e.Type)}
	}
	it := rawbson.NewIter(doc)
	if !it.Next() || !it.Is("o") {
		return b, &DeltaError{What: "a binary diff that does not start with its offset"}
	}
	n, ok := it.Int64()
	if !ok || it.Type == bson.TypeDouble || n < 0 || n > math.MaxInt32 {
		return b, (&DeltaError{What: "an offset that is not an integer from 0 to 2147483647"}).in("o")
	}
	b.Offset = int(n)
	if !it.Next() || !it.Is("d") {
		return b, &DeltaError{What: "a binary diff without data after its offset"}
	}
	if b.Subtype, b.Data, ok = it.Binary(); !ok {
		return b, (&DeltaError{What: fmt.Sprintf("type %s instead of binary data", it.Type)}).in("d")
	}
	if it.Next() {
		return b, &DeltaError{What: fmt.Sprintf("unknown field %q in a binary diff", it.Key)}
	}
	return b, nil
}
