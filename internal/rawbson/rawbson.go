package rawbson

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// MaxDepth is the deepest nesting that [Validate] accepts, in levels, the
// document itself being the first. MongoDB's own limit is 200 unless raised at
// start-up, to 250 at most.
const MaxDepth = 250

// MinSize is the size of an empty document: its length and its terminator.
const MinSize = 5

// CorruptError reports a byte sequence that is not BSON.
type CorruptError struct {
	// Offset is where the fault is, in bytes from the start of the document
	// that was being read.
	Offset int
	// What says which rule is broken.
	What string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("corrupt BSON at byte %d: %s", e.Offset, e.What)
}

// Elem is one element of a document, as views into it.
type Elem struct {
	// Type is the element's BSON type.
	Type bson.Type
	// Key is the field name without its terminator.
	Key []byte
	// Value is the value's bytes, without type and name.
	Value []byte
}

// Iter steps over the elements of one document, in order. It is a plain value:
// copying it forks the walk.
type Iter struct {
	doc []byte
	pos int
	err error
	// more is the result of the last call of Next.
	more bool
	// Elem is the element that the last call of Next stepped over.
	Elem
}

// NewIter returns an Iter before the first element of doc, which may be an
// array. Bytes after the document's stated length are a fault.
func NewIter(doc []byte) Iter {
	return Iter{doc: doc, pos: 4, err: checkFrame(doc)}
}

// checkFrame checks a document's length and terminator.
func checkFrame(doc []byte) error {
	if len(doc) < MinSize || binary.LittleEndian.Uint32(doc) != uint32(len(doc)) || doc[len(doc)-1] != 0 {
		return frameFault(doc)
	}
	return nil
}

func frameFault(doc []byte) error {
	switch {
	case len(doc) < MinSize:
		return &CorruptError{0, fmt.Sprintf("a document takes at least %d bytes, there are %d", MinSize, len(doc))}
	case doc[len(doc)-1] != 0 && binary.LittleEndian.Uint32(doc) == uint32(len(doc)):
		return &CorruptError{len(doc) - 1, "the document does not end with a zero byte"}
	default:
		return &CorruptError{0, fmt.Sprintf("the document's length says %d, there are %d bytes",
			int32(binary.LittleEndian.Uint32(doc)), len(doc))}
	}
}

// Next steps to the next element and reports whether there is one. After false,
// Err says whether that was the end.
//
// It is inlined, so that the views are written where the compiler sees that the Iter is a
// local variable: otherwise they are pointers that the garbage collector has to be told
// of while it marks, which takes longer than the rest of the step.
func (it *Iter) Next() bool {
	it.Key, it.Value = it.step()
	return it.more
}

// step steps to the next element, sets more, and returns its name and value. If there is
// none, it returns those of the last one again.
func (it *Iter) step() (key, value []byte) {
	it.more = false
	if it.err != nil {
		return it.Key, it.Value
	}
	doc := it.doc
	end := len(doc) - 1
	if it.pos >= end {
		return it.Key, it.Value
	}
	typ := bson.Type(doc[it.pos])
	start := it.pos + 1 // of the name; names are too short for bytes.IndexByte to pay
	for start < end && doc[start] != 0 {
		start++
	}
	start++ // of the value
	if start > end {
		if typ == 0 {
			it.fail(it.pos, "an element of type 0")
		} else {
			it.fail(it.pos+1, "a field name without an end")
		}
		return it.Key, it.Value
	}
	size, what := valueSize(typ, doc[start:end])
	if what != "" {
		it.fail(start, what)
		return it.Key, it.Value
	}
	key = doc[it.pos+1 : start-1 : start-1]
	it.Type, it.more = typ, true
	it.pos = start + size
	return key, doc[start : start+size : start+size]
}

// Err returns the fault that ended the walk, nil at the document's end.
func (it *Iter) Err() error { return it.err }

// Offset returns where the next element starts, in bytes from the start of the
// document. Before the first call of Next that is 4.
func (it *Iter) Offset() int { return it.pos }

func (it *Iter) fail(offset int, what string) {
	it.err = &CorruptError{offset, what}
}

// valueSize returns the length of the value of type t at the start of b, or its
// fault.
func valueSize(t bson.Type, b []byte) (size int, what string) {
	const short = "a value that ends after its document"
	switch t {
	case bson.TypeDouble, bson.TypeDateTime, bson.TypeTimestamp, bson.TypeInt64:
		size = 8
	case bson.TypeInt32:
		size = 4
	case bson.TypeObjectID:
		size = 12
	case bson.TypeDecimal128:
		size = 16
	case bson.TypeNull, bson.TypeUndefined, bson.TypeMinKey, bson.TypeMaxKey:
		return 0, ""
	case bson.TypeBoolean:
		if len(b) > 0 && b[0] > 1 {
			return 0, "a boolean that is neither 0 nor 1"
		}
		size = 1
	case bson.TypeString, bson.TypeSymbol, bson.TypeJavaScript:
		return stringSize(b)
	case bson.TypeDBPointer:
		n, what := stringSize(b)
		if what != "" {
			return 0, what
		}
		size = n + 12
	case bson.TypeEmbeddedDocument, bson.TypeArray:
		return documentSize(b)
	case bson.TypeBinary:
		return binarySize(b)
	case bson.TypeRegex:
		pattern := bytes.IndexByte(b, 0)
		if pattern < 0 {
			return 0, "a regular expression without an end"
		}
		options := bytes.IndexByte(b[pattern+1:], 0)
		if options < 0 {
			return 0, "regular expression options without an end"
		}
		return pattern + 1 + options + 1, ""
	case bson.TypeCodeWithScope:
		return codeWithScopeSize(b)
	default:
		return 0, fmt.Sprintf("an element of unknown type 0x%02x", byte(t))
	}
	if len(b) < size {
		return 0, short
	}
	return size, ""
}

// length reads the int32 at the start of b, at least low, such that extra
// bytes more than it says are there.
func length(b []byte, low, extra int) (n int, what string) {
	if len(b) < 4 {
		return 0, "a length that ends after its document"
	}
	n = int(int32(binary.LittleEndian.Uint32(b)))
	switch {
	case n < low:
		return 0, fmt.Sprintf("a length of %d", n)
	case n > len(b)-extra:
		return 0, fmt.Sprintf("a length of %d with %d bytes left", n, max(len(b)-extra, 0))
	}
	return n, ""
}

func stringSize(b []byte) (int, string) {
	n, what := length(b, 1, 4)
	if what != "" {
		return 0, "a string with " + what
	}
	if b[4+n-1] != 0 {
		return 0, "a string without its terminator"
	}
	return 4 + n, ""
}

func documentSize(b []byte) (int, string) {
	n, what := length(b, MinSize, 0)
	if what != "" {
		return 0, "an embedded document with " + what
	}
	if b[n-1] != 0 {
		return 0, "an embedded document without its terminator"
	}
	return n, ""
}

func binarySize(b []byte) (int, string) {
	n, what := length(b, 0, 5)
	if what != "" {
		return 0, "binary data with " + what
	}
	// The deprecated subtype 2 repeats the length inside. The server stores it
	// unchecked, so a wrong inner length is passed on as it is.
	return 5 + n, ""
}

func codeWithScopeSize(b []byte) (int, string) {
	total, what := length(b, 4+5+MinSize, 0)
	if what != "" {
		return 0, "code with " + what
	}
	code, what := stringSize(b[4:total])
	if what != "" {
		return 0, "code with scope: " + what
	}
	scope, what := documentSize(b[4+code : total])
	if what != "" {
		return 0, "code with scope: " + what
	}
	if 4+code+scope != total {
		return 0, "code with scope whose parts do not fill its length"
	}
	return total, ""
}

// Validate checks doc and everything inside it.
func Validate(doc []byte) error { return validate(doc, 0, 1) }

func validate(doc []byte, base, depth int) error {
	if depth > MaxDepth {
		return &CorruptError{base, fmt.Sprintf("nested deeper than %d levels", MaxDepth)}
	}
	it := NewIter(doc)
	for it.Next() {
		inner := it.Value
		switch it.Type {
		case bson.TypeEmbeddedDocument, bson.TypeArray:
		case bson.TypeCodeWithScope:
			inner = Scope(it.Value)
		default:
			continue
		}
		if err := validate(inner, base+it.pos-len(inner), depth+1); err != nil {
			return err
		}
	}
	if c, ok := it.err.(*CorruptError); ok { //nolint:errorlint // set here and never wrapped
		return &CorruptError{base + c.Offset, c.What}
	}
	return nil
}

// Scope returns the scope document of a valid code-with-scope value.
func Scope(value []byte) []byte {
	code := int(binary.LittleEndian.Uint32(value[4:]))
	return value[4+4+code:]
}

// View returns b as a string without copying it. The string is as short-lived
// as the buffer that b is a view into.
func View(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// Name returns the field name as a view.
func (e *Elem) Name() string { return View(e.Key) }

// Is reports whether the element has this field name.
func (e *Elem) Is(name string) bool { return string(e.Key) == name }

// Raw returns the value in the driver's form, still a view.
func (e *Elem) Raw() bson.RawValue { return bson.RawValue{Type: e.Type, Value: e.Value} }

// Document returns an embedded document. It is false for any other type.
func (e *Elem) Document() (bson.Raw, bool) {
	return bson.Raw(e.Value), e.Type == bson.TypeEmbeddedDocument
}

// Array returns an array as the document that it is stored as.
func (e *Elem) Array() (bson.Raw, bool) {
	return bson.Raw(e.Value), e.Type == bson.TypeArray
}

// Text returns a string as a view.
func (e *Elem) Text() (string, bool) {
	if e.Type != bson.TypeString {
		return "", false
	}
	return View(e.Value[4 : len(e.Value)-1]), true
}

// Timestamp returns a timestamp.
func (e *Elem) Timestamp() (bson.Timestamp, bool) {
	if e.Type != bson.TypeTimestamp {
		return bson.Timestamp{}, false
	}
	return bson.Timestamp{
		I: binary.LittleEndian.Uint32(e.Value),
		T: binary.LittleEndian.Uint32(e.Value[4:]),
	}, true
}

// Int64 returns a number of any type that holds a whole number, as the
// server's readers take it: int32, int64, or a double without a fraction.
func (e *Elem) Int64() (int64, bool) {
	switch e.Type {
	case bson.TypeInt32:
		return int64(int32(binary.LittleEndian.Uint32(e.Value))), true
	case bson.TypeInt64:
		return int64(binary.LittleEndian.Uint64(e.Value)), true
	case bson.TypeDouble:
		f := math.Float64frombits(binary.LittleEndian.Uint64(e.Value))
		if n := int64(f); f >= -(1<<53) && f <= 1<<53 && float64(n) == f {
			return n, true
		}
	}
	return 0, false
}

// Bool returns a boolean.
func (e *Elem) Bool() (value, ok bool) {
	if e.Type != bson.TypeBoolean {
		return false, false
	}
	return e.Value[0] != 0, true
}

// Truth returns the server's reading of a value as a flag, where it takes any type:
// false, numbers that are 0, null, undefined and no value at all are false.
func (e *Elem) Truth() bool {
	switch e.Type {
	case 0, bson.TypeNull, bson.TypeUndefined:
		return false
	case bson.TypeBoolean:
		return e.Value[0] != 0
	case bson.TypeInt32, bson.TypeInt64, bson.TypeDouble:
		n, whole := e.Int64()
		return !whole || n != 0
	case bson.TypeDecimal128:
		low, high := binary.LittleEndian.Uint64(e.Value), binary.LittleEndian.Uint64(e.Value[8:])
		n, _, err := bson.NewDecimal128(high, low).BigInt()
		return err != nil || n.Sign() != 0 // an error: infinite, or no number
	}
	return true
}

// DateTime returns a date in milliseconds since the epoch.
func (e *Elem) DateTime() (int64, bool) {
	if e.Type != bson.TypeDateTime {
		return 0, false
	}
	return int64(binary.LittleEndian.Uint64(e.Value)), true
}

// Binary returns binary data and its subtype.
func (e *Elem) Binary() (subtype byte, data []byte, ok bool) {
	if e.Type != bson.TypeBinary {
		return 0, nil, false
	}
	return e.Value[4], e.Value[5:], true
}

// Lookup returns the first element of doc with this name. It is false where
// there is none, and where doc is malformed before it.
func Lookup(doc []byte, name string) (Elem, bool) {
	it := NewIter(doc)
	for it.Next() {
		if it.Is(name) {
			return it.Elem, true
		}
	}
	return Elem{}, false
}

const (
	cacheLine = 64
	// prefetchBytes is how much of a document is prefetched: after that, a processor itself reads
	// ahead.
	prefetchBytes = 512
)

// Prefetch reads a byte of each cache line at the beginning of a document. A walk over a document
// that no cache has waits for one line after the other; of several documents that are prefetched
// one after the other, it waits for all together. It returns the sum of what it has read: a caller
// must store it, or the compiler leaves the reads out.
func Prefetch(doc []byte) (sum byte) {
	for at := 0; at < min(len(doc), prefetchBytes); at += cacheLine {
		sum += doc[at]
	}
	return sum
}
