package update

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// EnvelopePadding is the padding for [Diff] that the server uses when it logs a
// pipeline update: its estimate of the size of {$v: 2, diff: …}, in bytes.
const EnvelopePadding = 15

// Diff computes the delta that a server logs, in the entry's diff field, for a
// pipeline update that turned pre into post. It returns false if the server logs
// post as a replacement instead, because the delta would not be smaller. The
// server's size estimate (5.0) decides that, for embedded values too; padding, in
// bytes and not negative, is added to it.
//
// For equal documents the diff is the empty document: there is nothing to log, and
// [ParseDelta] refuses it. Otherwise [ObjectDiff.AppendApply] turns pre into post,
// byte for byte, and [Apply] into the document that the server stores: post with
// _id first, which is pre's if post has none. Post is the pipeline's result before
// that step, so the diff may contain _id.
//
// Diff also returns false if no delta can express the difference: if the value of
// _id changes, if a changed document has two fields of the same name (the server
// stops at that), and if pre, post or the diff are not valid BSON with a nesting of
// at most rawbson.MaxDepth.
func Diff(pre, post bson.Raw, padding int) (diff bson.Raw, ok bool) {
	if rawbson.Validate(pre) != nil || rawbson.Validate(post) != nil {
		return nil, false
	}
	if bytes.Equal(pre, post) {
		return closeDocument([]byte{0, 0, 0, 0}, 0), true
	}
	before, had := rawbson.Lookup(pre, "_id")
	after, has := rawbson.Lookup(post, "_id")
	if has && (!had || !sameID(&before, &after)) {
		return nil, false
	}
	d := diffObject(pre, post, max(padding, 0))
	if d == nil {
		return nil, false
	}
	diff = d.append(make([]byte, 0, d.size))
	if rawbson.Validate(diff) != nil {
		return nil, false
	}
	return diff, true
}

// diffNode is a diff under construction. Its elements are views into the documents.
type diffNode struct {
	isArray bool
	// size is the server's estimate of the diff's size in bytes while it builds one.
	// For the outermost node it includes the padding.
	size int
	// resize is the new length of an array that got shorter, otherwise -1.
	resize int
	// deletes to subs are for objects; in subs, node is set.
	deletes []string
	updates []rawbson.Elem
	inserts []rawbson.Elem
	subs    []diffMod
	// mods are for arrays.
	mods []diffMod
}

// diffMod is a changed field or array element: a new value, or a diff inside it.
type diffMod struct {
	index  int
	elem   rawbson.Elem
	inside *diffNode
}

const (
	// sizeOfArrayDiff is {a: true}.
	sizeOfArrayDiff = rawbson.MinSize + 4
	// sizeOfSection is an empty section.
	sizeOfSection = rawbson.MinSize + 3
	// sizeOfLength is l: int32.
	sizeOfLength = 7
	// sizeOfHeader is an element's type and the terminator of its name.
	sizeOfHeader = 2
)

// diffObject returns the diff of two documents, nil if it is not smaller than post.
func diffObject(pre, post []byte, padding int) *diffNode {
	d := &diffNode{size: rawbson.MinSize + padding, resize: -1}
	a, b := rawbson.NewIter(pre), rawbson.NewIter(post)
	// missed are the fields of pre that were skipped. They are deleted, or occur
	// later in post and are inserted again.
	var missed []string
	moreA, moreB := a.Next(), b.Next()
	for moreA && moreB {
		if len(post) < d.size {
			// The size only grows, so returning early does not change the result.
			return nil
		}
		switch {
		case a.Type == b.Type && bytes.Equal(a.Key, b.Key) && bytes.Equal(a.Value, b.Value):
		case !bytes.Equal(a.Key, b.Key):
			missed = append(missed, a.Name())
			moreA = a.Next()
			continue
		default:
			d.change(&a.Elem, &b.Elem)
		}
		moreA, moreB = a.Next(), b.Next()
	}
	for ; moreA; moreA = a.Next() {
		d.delete(a.Name())
	}
	for ; moreB; moreB = b.Next() {
		d.insert(b.Elem)
	}
	d.deleteMissed(missed)
	if len(post) <= d.size || !d.isEmpty() && (repeats(pre) || repeats(post)) {
		return nil
	}
	return d
}

// deleteMissed adds the deletes of the missed fields that are not inserted, by
// ascending name: the server keeps them in a sorted set.
func (d *diffNode) deleteMissed(missed []string) {
	if len(missed) == 0 {
		return
	}
	inserted := make(map[string]bool, len(d.inserts))
	for i := range d.inserts {
		inserted[d.inserts[i].Name()] = true
	}
	slices.Sort(missed)
	for _, name := range missed {
		if !inserted[name] {
			d.delete(name)
		}
	}
}

// diffArray returns the diff of two arrays, nil if it is not smaller than post.
func diffArray(pre, post []byte) *diffNode {
	d := &diffNode{isArray: true, size: sizeOfArrayDiff, resize: -1}
	a, b := rawbson.NewIter(pre), rawbson.NewIter(post)
	n := 0
	moreA, moreB := a.Next(), b.Next()
	for ; moreA && moreB; moreA, moreB = a.Next(), b.Next() {
		if len(post) < d.size {
			return nil
		}
		if a.Type != b.Type || !bytes.Equal(a.Key, b.Key) || !bytes.Equal(a.Value, b.Value) {
			d.mod(n, &b.Elem, diffInside(&a.Elem, &b.Elem))
		}
		n++
	}
	for ; moreB; moreB = b.Next() {
		d.mod(n, &b.Elem, nil)
		n++
	}
	if moreA {
		d.resize = n
		d.size += sizeOfLength
	}
	if len(post) <= d.size || !numbered(post) {
		return nil
	}
	return d
}

// diffInside returns the diff of two different values, nil if the new value has to
// be written in full.
func diffInside(a, b *rawbson.Elem) *diffNode {
	switch {
	case a.Type != b.Type:
	case a.Type == bson.TypeEmbeddedDocument:
		return diffObject(a.Value, b.Value, 0)
	case a.Type == bson.TypeArray:
		return diffArray(a.Value, b.Value)
	}
	return nil
}

func (d *diffNode) isEmpty() bool {
	return len(d.deletes)+len(d.updates)+len(d.inserts)+len(d.subs)+len(d.mods) == 0 && d.resize < 0
}

// change adds a field with a new value.
func (d *diffNode) change(a, b *rawbson.Elem) {
	if inside := diffInside(a, b); inside != nil {
		d.size += sizeOfHeader + 1 + len(b.Key) + inside.size
		d.subs = append(d.subs, diffMod{elem: *b, inside: inside})
		return
	}
	if d.updates == nil {
		d.size += sizeOfSection
	}
	d.size += sizeOfHeader + len(b.Key) + len(b.Value)
	d.updates = append(d.updates, *b)
}

func (d *diffNode) delete(name string) {
	if d.deletes == nil {
		d.size += sizeOfSection
	}
	d.size += sizeOfHeader + len(name) + 1
	d.deletes = append(d.deletes, name)
}

func (d *diffNode) insert(e rawbson.Elem) {
	if d.inserts == nil {
		d.size += sizeOfSection
	}
	d.size += sizeOfHeader + len(e.Key) + len(e.Value)
	d.inserts = append(d.inserts, e)
}

func (d *diffNode) mod(index int, e *rawbson.Elem, inside *diffNode) {
	d.size += sizeOfHeader + 1 + len(strconv.Itoa(index))
	if inside != nil {
		d.size += inside.size
	} else {
		d.size += len(e.Value)
	}
	d.mods = append(d.mods, diffMod{index: index, elem: *e, inside: inside})
}

// append encodes the diff.
func (d *diffNode) append(dst []byte) []byte {
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	if d.isArray {
		dst = append(appendHeader(dst, bson.TypeBoolean, "a"), 1)
		if d.resize >= 0 {
			dst = appendHeader(dst, bson.TypeInt32, "l")
			dst = binary.LittleEndian.AppendUint32(dst, uint32(d.resize))
		}
	}
	for i := range d.mods {
		m := &d.mods[i]
		if m.inside == nil {
			dst = appendHeader(dst, m.elem.Type, "u"+strconv.Itoa(m.index))
			dst = append(dst, m.elem.Value...)
			continue
		}
		dst = appendHeader(dst, bson.TypeEmbeddedDocument, "s"+strconv.Itoa(m.index))
		dst = m.inside.append(dst)
	}
	if d.deletes != nil {
		dst = appendHeader(dst, bson.TypeEmbeddedDocument, "d")
		section := len(dst)
		dst = append(dst, 0, 0, 0, 0)
		for _, name := range d.deletes {
			dst = append(appendHeader(dst, bson.TypeBoolean, name), 0)
		}
		dst = closeDocument(dst, section)
	}
	dst = appendSection(dst, "u", d.updates)
	dst = appendSection(dst, "i", d.inserts)
	for i := range d.subs {
		dst = appendHeader(dst, bson.TypeEmbeddedDocument, "s"+d.subs[i].elem.Name())
		dst = d.subs[i].inside.append(dst)
	}
	return closeDocument(dst, start)
}

func appendSection(dst []byte, name string, elems []rawbson.Elem) []byte {
	if elems == nil {
		return dst
	}
	dst = appendHeader(dst, bson.TypeEmbeddedDocument, name)
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	for i := range elems {
		dst = appendHeader(dst, elems[i].Type, elems[i].Name())
		dst = append(dst, elems[i].Value...)
	}
	return closeDocument(dst, start)
}

// repeats reports whether two fields of a document have the same name.
func repeats(doc []byte) bool {
	var few [scanLimit]string
	names := few[:0]
	var many map[string]bool
	for it := rawbson.NewIter(doc); it.Next(); {
		name := it.Name()
		switch {
		case many != nil:
			if many[name] {
				return true
			}
			many[name] = true
			continue
		case slices.Contains(names, name):
			return true
		}
		if names = append(names, name); len(names) == scanLimit {
			many = make(map[string]bool, 2*scanLimit)
			for _, n := range names {
				many[n] = true
			}
		}
	}
	return false
}

// numbered reports whether the elements of an array are numbered from 0. The
// applier numbers them so, hence no diff can result in another numbering.
func numbered(array []byte) bool {
	var buf [20]byte
	n := int64(0)
	for it := rawbson.NewIter(array); it.Next(); n++ {
		if string(strconv.AppendInt(buf[:0], n, 10)) != string(it.Key) {
			return false
		}
	}
	return true
}
