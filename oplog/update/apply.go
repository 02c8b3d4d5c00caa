package update

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// MaxResult is the size in bytes beyond which applying an update fails with
// [ErrTooLarge]. It is four times the maximum document size; the server's document
// builder has the same limit.
const MaxResult = 64 << 20

var (
	// ErrTooLarge is an update whose result would be larger than [MaxResult], or
	// whose $set would put more than [MaxPadding] nulls before an element.
	ErrTooLarge = errors.New("result too large")
	// ErrBinaryDiff is a binary diff for a field of another type. Its result is not
	// defined: the server stops.
	ErrBinaryDiff = errors.New("binary diff of a field that is not binary data")
	// ErrIDChanged is an update that would change the value of _id.
	ErrIDChanged = errors.New("update changes _id")
	// ErrUnknownForm is an o field that has none of the three forms of update.
	ErrUnknownForm = errors.New("unknown form of update")
)

// Form is the form of the o field of an update entry.
type Form int

// The forms of an update entry's o field.
const (
	// FormReplacement is the whole new document.
	FormReplacement Form = iota + 1
	// FormDelta is {$v: 2, diff: …}.
	FormDelta
	// FormModifiers is {$v: 1, $set: …, $unset: …}, where $v may be missing.
	FormModifiers
)

// String returns the form's name, for messages.
func (f Form) String() string {
	switch f {
	case FormReplacement:
		return "replacement"
	case FormDelta:
		return "delta"
	case FormModifiers:
		return "modifiers"
	}
	return "Form(" + strconv.Itoa(int(f)) + ")"
}

// Classify returns the form of the o field of an update entry, by the server's
// rule: with an _id it is a replacement, even if it has a field $v too; otherwise
// $v decides, and a missing $v counts as 1. It checks nothing else. Any other $v is
// an [ErrUnknownForm].
func Classify(o bson.Raw) (Form, error) {
	form := FormModifiers
	var fault error
	it := rawbson.NewIter(o)
	for it.Next() {
		switch it.Name() {
		case "_id":
			return FormReplacement, nil
		case "$v":
			switch n, ok := it.Int64(); {
			case ok && n == 1:
			case ok && n == 2:
				form = FormDelta
			default:
				fault = fmt.Errorf("classify update: $v of type %s is neither 1 nor 2: %w", it.Type, ErrUnknownForm)
			}
		}
	}
	if err := it.Err(); err != nil {
		return 0, fmt.Errorf("classify update: %w", err)
	}
	if fault != nil {
		return 0, fault
	}
	return form, nil
}

// DeltaOf returns the diff of the o field of a delta update entry, as a view. It
// checks the other fields of o but not the diff, which [ParseDelta] does. An error
// is a [*DeltaError].
func DeltaOf(o bson.Raw) (bson.Raw, error) {
	var diff bson.Raw
	version := false
	it := rawbson.NewIter(o)
	for it.Next() {
		var ok bool
		switch {
		case it.Is("$v") && !version:
			n, isInt := it.Int64()
			version, ok = true, isInt && n == 2
		case it.Is("diff") && diff == nil:
			diff, ok = it.Document()
		default:
			return nil, &DeltaError{Path: "o", What: fmt.Sprintf("field %q unknown or twice", it.Key)}
		}
		if !ok {
			return nil, &DeltaError{Path: "o", What: fmt.Sprintf("field %q of type %s with a value that is out of place", it.Key, it.Type)}
		}
	}
	switch err := it.Err(); {
	case err != nil:
		return nil, &DeltaError{Path: "o", What: err.Error(), Err: err}
	case diff == nil:
		return nil, &DeltaError{Path: "o", What: "no diff"}
	case !version:
		return nil, &DeltaError{Path: "o", What: "no $v"}
	}
	return diff, nil
}

// Apply applies the o field of an update entry to doc and returns the result in a
// new buffer. As in the server, _id comes first in the result wherever it was,
// unless the update changes nothing at all. Doc must be a valid document; o is
// checked.
//
// Errors are [ErrUnknownForm], [ErrBadDelta], [ErrBadModifiers], [ErrIDChanged],
// [ErrBinaryDiff], [ErrTooLarge], or a [*rawbson.CorruptError].
func Apply(doc, o bson.Raw) (bson.Raw, error) {
	return AppendApply(make([]byte, 0, len(doc)+len(o)), doc, o)
}

// AppendApply appends the result of [Apply] to dst and returns the extended buffer.
// Doc and o must not share memory with dst. On an error it returns nil.
func AppendApply(dst []byte, doc, o bson.Raw) ([]byte, error) {
	form, err := Classify(o)
	if err != nil {
		return nil, err
	}
	start := len(dst)
	switch form {
	case FormReplacement:
		if err = rawbson.Validate(o); err == nil {
			dst = append(dst, o...)
		}
	case FormDelta:
		var diff bson.Raw
		if diff, err = DeltaOf(o); err == nil {
			var d *ObjectDiff
			if d, err = ParseDelta(diff); err == nil {
				dst, err = d.AppendApply(dst, doc)
			}
		}
	case FormModifiers:
		dst, err = appendModified(dst, doc, o)
	}
	if err == nil {
		dst, err = finish(dst, start, doc)
	}
	if err != nil {
		return nil, fmt.Errorf("apply %s: %w", form, err)
	}
	return dst, nil
}

// ApplyDelta applies a diff, as returned by [DeltaOf], to doc and returns the
// result in a new buffer. The result is that of [Apply] for the whole o field, with
// _id first. Doc must be a valid document; the diff is checked. For errors see
// [Apply].
func ApplyDelta(doc, diff bson.Raw) (bson.Raw, error) {
	d, err := ParseDelta(diff)
	if err != nil {
		return nil, err
	}
	return d.Apply(doc)
}

// Apply is [ApplyDelta] for a delta that has been parsed.
func (d *ObjectDiff) Apply(doc bson.Raw) (bson.Raw, error) {
	post, err := d.AppendApply(make([]byte, 0, len(doc)+len(doc)/8+64), doc)
	if err != nil {
		return nil, err
	}
	return finish(post, 0, doc)
}

// CheckID returns an [ErrIDChanged] if the diff changes the value of the document's
// _id. The parameter is the _id after the update, as in the entry's o2.
func (d *ObjectDiff) CheckID(id bson.RawValue) error {
	if section, _ := d.section("_id"); section == noSection || section == deleteSection {
		return nil
	}
	doc := append(appendHeader([]byte{0, 0, 0, 0}, id.Type, "_id"), id.Value...)
	if _, err := d.Apply(closeDocument(doc, 0)); errors.Is(err, ErrIDChanged) {
		return err
	}
	return nil
}

// finish does what the server does before it writes the result of an update to doc,
// which is in dst from start on: _id comes first, and is doc's if the update
// removed it. A result equal to doc is not written by the server, so it is not
// changed here. Another value of _id is an [ErrIDChanged].
func finish(dst []byte, start int, doc []byte) ([]byte, error) {
	post := dst[start:]
	if bytes.Equal(post, doc) {
		return dst, nil
	}
	old, had := rawbson.Lookup(doc, "_id")
	id, has := rawbson.Lookup(post, "_id")
	switch {
	case has && had && (id.Type != old.Type || !bytes.Equal(id.Value, old.Value)) && !sameID(&old, &id):
		return nil, ErrIDChanged
	case has:
		moveIDFirst(post)
	case had:
		elem := append(appendHeader(nil, old.Type, "_id"), old.Value...)
		dst = slices.Insert(dst, start+4, elem...)
		binary.LittleEndian.PutUint32(dst[start:], uint32(len(dst)-start))
	}
	return dst, nil
}

// moveIDFirst moves the _id of a valid document before its other fields.
func moveIDFirst(doc []byte) {
	it := rawbson.NewIter(doc)
	for from := it.Offset(); it.Next(); from = it.Offset() {
		if !it.Is("_id") {
			continue
		}
		if from > 4 {
			id := slices.Clone(doc[from:it.Offset()])
			copy(doc[4+len(id):], doc[4:from])
			copy(doc[4:], id)
		}
		return
	}
}

// AppendApply applies the diff to doc, appends the result to dst, and returns the
// extended buffer. It treats _id like any other field; [Apply] and [ApplyDelta]
// ensure that it comes first and keeps its value. Doc must be a valid document and
// must not share memory with dst. The errors are [ErrBinaryDiff], [ErrTooLarge] and
// a [*rawbson.CorruptError] in doc; on an error it returns nil.
//
// The rules are those of the server's applier. If doc is not the document that the
// diff was computed from: a missing field to update is appended, an existing field
// to insert moves to the end, a missing field to change inside stays missing, and
// one of another type becomes null, to be overwritten by a later entry. If several
// fields have the same name, all are treated alike.
func (d *ObjectDiff) AppendApply(dst []byte, doc bson.Raw) ([]byte, error) {
	a := applier{limit: len(dst) + MaxResult}
	return a.object(dst, doc, d)
}

// applier has the parameters of applying one diff.
type applier struct {
	// limit is the maximum length of the buffer, in bytes.
	limit int
}

func (a *applier) object(dst []byte, pre []byte, d *ObjectDiff) ([]byte, error) {
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	updates := len(d.Deletes)
	inserts := updates + len(d.Updates)
	binaries := inserts + len(d.Inserts)
	subs := binaries + len(d.Binaries)
	var few [2]uint64
	seen := bitset(few[:])
	if len(d.Updates) > 64*len(few) {
		seen = make(bitset, (len(d.Updates)+63)/64)
	}

	it := rawbson.NewIter(pre)
	copied := it.Offset()
	var err error
	for from := copied; it.Next(); from = it.Offset() {
		place := d.place(it.Name())
		if place < 0 {
			continue
		}
		dst = append(dst, pre[copied:from]...)
		copied = it.Offset()
		switch {
		case place < updates:
		case place < inserts:
			seen.set(place - updates)
			dst = appendField(dst, &d.Updates[place-updates])
		case place < binaries:
		case place < subs:
			dst, err = appendBinary(dst, &it.Elem, &d.Binaries[place-binaries])
		default:
			dst = appendHeader(dst, it.Type, it.Name())
			dst, err = a.inside(dst, &it.Elem, &d.Subs[place-subs].SubDiff, len(dst)-len(it.Key)-2)
		}
		if err != nil {
			return nil, fmt.Errorf("field %q: %w", it.Key, err)
		}
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("read document: %w", err)
	}
	dst = append(dst, pre[copied:it.Offset()]...)
	for i := range d.Updates {
		if !seen.has(i) {
			dst = appendField(dst, &d.Updates[i])
		}
	}
	for i := range d.Inserts {
		dst = appendField(dst, &d.Inserts[i])
	}
	return a.end(dst, start)
}

// inside appends the result of applying sub to e's value. It corrects the type byte
// at typeAt if e has another type than sub expects.
func (a *applier) inside(dst []byte, e *rawbson.Elem, sub *SubDiff, typeAt int) ([]byte, error) {
	switch {
	case sub.Object != nil && e.Type == bson.TypeEmbeddedDocument:
		return a.object(dst, e.Value, sub.Object)
	case sub.Array != nil && e.Type == bson.TypeArray:
		return a.array(dst, e.Value, sub.Array)
	}
	dst[typeAt] = byte(bson.TypeNull)
	return dst, nil
}

func (a *applier) array(dst []byte, pre []byte, d *ArrayDiff) ([]byte, error) {
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	mods := d.Mods
	w := arrayWriter{dst: dst, pre: pre}
	it := rawbson.NewIter(pre)
	for (!d.HasLength || w.next < d.Length) && it.Next() {
		if len(mods) == 0 || mods[0].Index != w.next {
			w.keep(&it)
			continue
		}
		mod := &mods[0]
		mods = mods[1:]
		if !mod.IsSub() {
			w.set(mod.Value.Type, mod.Value.Value)
			continue
		}
		typeAt := w.header(it.Type)
		var err error
		if w.dst, err = a.inside(w.dst, &it.Elem, &mod.SubDiff, typeAt); err != nil {
			return nil, fmt.Errorf("element %d: %w", mod.Index, err)
		}
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("read array: %w", err)
	}
	end := d.Length
	if !d.HasLength && len(mods) > 0 {
		end = mods[len(mods)-1].Index + 1
	}
	if err := w.reserve(end, a.limit); err != nil {
		return nil, err
	}
	for w.next < end {
		if len(mods) == 0 || mods[0].Index != w.next {
			w.set(bson.TypeNull, nil)
			continue
		}
		if mod := &mods[0]; mod.IsSub() {
			w.set(bson.TypeNull, nil)
		} else {
			w.set(mod.Value.Type, mod.Value.Value)
		}
		mods = mods[1:]
	}
	w.flush()
	return a.end(w.dst, start)
}

// end closes the document that starts at start.
func (a *applier) end(dst []byte, start int) ([]byte, error) {
	if len(dst) >= a.limit {
		return nil, ErrTooLarge
	}
	return closeDocument(dst, start), nil
}

// closeDocument terminates the document that starts at start and fills in its
// length.
func closeDocument(dst []byte, start int) []byte {
	dst = append(dst, 0)
	binary.LittleEndian.PutUint32(dst[start:], uint32(len(dst)-start))
	return dst
}

func appendHeader(dst []byte, t bson.Type, name string) []byte {
	dst = append(dst, byte(t))
	dst = append(dst, name...)
	return append(dst, 0)
}

func appendField(dst []byte, f *Field) []byte {
	dst = appendHeader(dst, f.Value.Type, f.Name)
	return append(dst, f.Value.Value...)
}

// appendBinary appends e with the new tail from b. If e is too short, b has been
// applied before and a later entry shortens e again, so e stays as it is.
func appendBinary(dst []byte, e *rawbson.Elem, b *BinaryField) ([]byte, error) {
	subtype, old, ok := e.Binary()
	if !ok {
		return nil, fmt.Errorf("%w but %s", ErrBinaryDiff, e.Type)
	}
	dst = appendHeader(dst, e.Type, e.Name())
	if len(old) < b.Offset {
		return append(dst, e.Value...), nil
	}
	dst = binary.LittleEndian.AppendUint32(dst, uint32(b.Offset+len(b.Data)))
	dst = append(dst, subtype)
	dst = append(dst, old[:b.Offset]...)
	return append(dst, b.Data...), nil
}
