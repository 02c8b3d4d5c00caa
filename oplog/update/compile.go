package update

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// Guarantee is what a caller of [CompileDelta] knows about the document that the
// compiled update will meet.
type Guarantee uint8

const (
	// GuaranteeNone is no knowledge: the document may have any shape, as while
	// a log is applied to a copy that is newer in places.
	GuaranteeNone Guarantee = iota
	// GuaranteePreImage is the knowledge that the document is exactly the one
	// that the source logged the delta for: the fields that the delta updates or
	// goes into are there, and of that type. It does not follow that what it
	// inserts is new, as a field that was moved to the end is logged as an insert
	// and nothing else; nor that an array reaches up to an element that is set,
	// as an update beyond the end is logged without the nulls in between.
	GuaranteePreImage
	// GuaranteeNewFields is GuaranteePreImage and the knowledge that no field
	// that the delta inserts is there yet. A caller that has the document finds out by
	// [ObjectDiff.AddsTo]; others may ask for the absence of the fields in the
	// statement's filter.
	GuaranteeNewFields
)

// Limits of an update statement, where CompileOptions names none.
const (
	// DefaultMaxSize is the size of the largest compiled update, in bytes. The
	// server takes commands of 16 MiB and 16 KiB.
	DefaultMaxSize = 16 << 20
	// DefaultMaxDepth is the deepest nesting of a compiled update, in levels.
	// The server takes 200 for the command as a whole, which puts up to four
	// around the update; stored documents have at most 180.
	DefaultMaxDepth = 190
)

// CompileOptions tell how to compile a delta.
type CompileOptions struct {
	// Guarantee is what is known about the document. Zero means nothing.
	Guarantee Guarantee
	// MaxSize is in bytes. Zero means DefaultMaxSize.
	MaxSize int
	// MaxDepth is in levels of nesting. Zero means DefaultMaxDepth.
	MaxDepth int
}

// CompiledForm is the kind of update that a delta was compiled to.
type CompiledForm uint8

const (
	// CompiledModifiers is a document of $set and $unset.
	CompiledModifiers CompiledForm = iota + 1
	// CompiledPipeline is an array of aggregation stages.
	CompiledPipeline
)

// Compiled is a delta as an update that a client may send.
type Compiled struct {
	// Form tells what U is.
	Form CompiledForm
	// U is the u of an update statement: a document or an array.
	U bson.RawValue
	// Depth is U's nesting, in levels, U itself being the first.
	Depth int
}

// ErrNotCompilable is what every [*NotCompilableError] is, for errors.Is.
var ErrNotCompilable = errors.New("delta has no compiled form")

// NotCompilableError is a delta that is valid, but that no update statement can
// carry. It has to be applied by reading, changing and writing the document.
type NotCompilableError struct {
	// Reason says what is in the way.
	Reason string
	// Size and Depth are of the statement that would have been needed, in bytes
	// and levels; zero where they are not the reason.
	Size, Depth int
}

func (e *NotCompilableError) Error() string {
	return "delta cannot be compiled: " + e.Reason
}

// Is makes the error an [ErrNotCompilable].
func (e *NotCompilableError) Is(target error) bool { return target == ErrNotCompilable }

// CompileDelta turns the diff of a $v:2 update into an update that any client
// with the privilege to update can send to MongoDB 5.0 or newer (by feature
// compatibility version too), outside and inside of transactions, and that gives
// the same document as [ApplyDelta], byte for byte, whatever the field names.
// Without a guarantee that holds for every shape of the document. Two oddities
// that no driver writes are outside of it: in a document with one field name
// twice in one place updates change one of the two or both, and arrays whose
// elements are not numbered from 0 come out of a pipeline numbered anew.
//
// It compiles to modifiers where they are provably the same: they are the
// fastest to execute. Otherwise it compiles to a pipeline, which a client that
// insists on the stable API (apiStrict) cannot send where a name is no path.
// Errors are a [*DeltaError] for what is no delta, and a [*NotCompilableError].
// A server may still refuse the update when it meets a document that makes it
// too large; then too the document has to be read, changed and written.
func CompileDelta(diff bson.Raw, opt CompileOptions) (Compiled, error) {
	d, err := ParseDelta(diff)
	if err != nil {
		return Compiled{}, err
	}
	return CompileDiff(d, opt)
}

// CompileDiff is [CompileDelta] for a delta that has been parsed.
func CompileDiff(d *ObjectDiff, opt CompileOptions) (Compiled, error) {
	if opt.MaxSize == 0 {
		opt.MaxSize = DefaultMaxSize
	}
	if opt.MaxDepth == 0 {
		opt.MaxDepth = DefaultMaxDepth
	}
	s := survey{guarantee: opt.Guarantee}
	s.root(d)
	switch {
	case s.binary:
		return Compiled{}, &NotCompilableError{Reason: "it changes binary data in part, for which there is no operator"}
	case s.reach > maxElements:
		return Compiled{}, &NotCompilableError{
			Reason: fmt.Sprintf("it makes an array of %d elements, and no document holds more than %d", s.reach, maxElements),
		}
	}
	b := builder{buf: make([]byte, 0, s.bytes+256), guarantee: opt.Guarantee}
	var c Compiled
	if s.modifiers && b.modifiers(d) {
		c.Form = CompiledModifiers
		c.U = bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: b.buf}
	} else {
		b = builder{buf: b.buf[:0], guarantee: opt.Guarantee}
		b.pipeline(d)
		c.Form = CompiledPipeline
		c.U = bson.RawValue{Type: bson.TypeArray, Value: b.buf}
	}
	c.Depth = b.deepest
	switch {
	case c.Depth > opt.MaxDepth:
		return Compiled{}, &NotCompilableError{
			Reason: fmt.Sprintf("the update is nested %d levels deep, and %d is the limit", c.Depth, opt.MaxDepth),
			Depth:  c.Depth,
		}
	case len(b.buf) > opt.MaxSize:
		return Compiled{}, &NotCompilableError{
			Reason: fmt.Sprintf("the update takes %d bytes, and %d is the limit", len(b.buf), opt.MaxSize),
			Size:   len(b.buf),
		}
	}
	return c, nil
}

// survey finds out whether modifiers do exactly what a delta does.
//
// On a document of any shape that is so for deletes and updates of top-level
// fields. $set replaces an existing field in place and appends a new one, as the
// delta does; only the order in which several new ones are appended differs:
// $set goes by name. Deeper down $set would create or refuse parents where the
// delta does nothing or writes null.
//
// On the pre-image itself all parents are there, so modifiers do for anything
// but inserts, since $set would leave a field that is there already in its place
// instead of moving it to the end, and the cutting of arrays: a $push of nothing
// with a $slice does that, but takes time in proportion to the length times the
// number of elements cut. Where inserts are known to be new, only their order
// matters.
//
// A client may not modify _id by an operator, not even to an equal value of
// another type, so there modifiers do not.
type survey struct {
	guarantee Guarantee
	// modifiers is whether they do.
	modifiers bool
	// binary is whether there is a change that nothing can be compiled to.
	binary bool
	// reach is the most elements that an array is made to have.
	reach int
	// bytes estimates the size of names and values.
	bytes int
}

func (s *survey) root(d *ObjectDiff) {
	s.modifiers = d.place("_id") < 0
	if s.guarantee == GuaranteeNone && (len(d.Subs) > 0 || !ordered(d.Updates)) {
		s.modifiers = false
	}
	s.object(d, 1)
}

func (s *survey) object(d *ObjectDiff, depth int) {
	s.binary = s.binary || len(d.Binaries) > 0
	if depth > maxPath || len(d.Inserts) > 0 && (s.guarantee < GuaranteeNewFields || !ordered(d.Inserts)) {
		s.modifiers = false
	}
	for _, name := range d.Deletes {
		s.name(name)
	}
	for _, f := range d.Updates {
		s.name(f.Name)
		s.value(f.Value)
	}
	for _, f := range d.Inserts {
		s.name(f.Name)
		s.value(f.Value)
	}
	for i := range d.Subs {
		s.name(d.Subs[i].Name)
		s.sub(&d.Subs[i].SubDiff, depth+1)
	}
}

func (s *survey) sub(d *SubDiff, depth int) {
	if d.Object != nil {
		s.object(d.Object, depth)
		return
	}
	s.reach = max(s.reach, d.Array.Length)
	if d.Array.HasLength || len(d.Array.Mods) > maxMods || depth > maxPath {
		s.modifiers = false
	}
	for i := range d.Array.Mods {
		m := &d.Array.Mods[i]
		s.reach = max(s.reach, m.Index+1)
		if m.Index > MaxPadding {
			s.modifiers = false
		}
		s.bytes += 16
		if m.IsSub() {
			s.sub(&m.SubDiff, depth+1)
		} else {
			s.value(m.Value)
		}
	}
}

const (
	// maxPath is how many names a modifier's path may have. The server's limit
	// is that of nesting; a path that long is not worth finding out its edge.
	maxPath = 100
	// maxMods is how many elements of one array are changed by modifiers: each
	// walks there from the start.
	maxMods = 64
	// maxElements is more elements than a document of 16 MiB can have.
	maxElements = 4 << 20
)

func (s *survey) name(name string) {
	s.bytes += len(name) + 32
	s.modifiers = s.modifiers && plain(name)
}

// value looks for what modifiers may treat otherwise than they are told: names
// that start with a dollar, which the server checks there, and the zero
// timestamp, which it replaces in some updates by the time of day.
func (s *survey) value(v bson.RawValue) {
	s.bytes += len(v.Value)
	s.modifiers = s.modifiers && asTold(v)
}

// asTold reports whether $set stores a value as it is.
func asTold(v bson.RawValue) bool {
	zero := v.Type == bson.TypeTimestamp && strings.Trim(rawbson.View(v.Value), "\x00") == ""
	return !zero && !hasDollarName(v.Type, v.Value)
}

// AddsTo reports whether doc, at every depth, has none of the fields that the diff
// inserts. For the document that the diff was computed from it reports whether
// [GuaranteeNewFields] holds.
func (d *ObjectDiff) AddsTo(doc bson.Raw) bool {
	for i := range d.Inserts {
		if _, ok := rawbson.Lookup(doc, d.Inserts[i].Name); ok {
			return false
		}
	}
	for i := range d.Subs {
		if e, ok := rawbson.Lookup(doc, d.Subs[i].Name); ok && !d.Subs[i].addsTo(&e) {
			return false
		}
	}
	return true
}

func (d *SubDiff) addsTo(e *rawbson.Elem) bool {
	if d.Object != nil {
		doc, ok := e.Document()
		return !ok || d.Object.AddsTo(doc)
	}
	array, _ := e.Array()
	mods := d.Array.Mods
	it := rawbson.NewIter(array)
	for i := 0; len(mods) > 0 && it.Next(); i++ {
		if mods[0].Index != i {
			continue
		}
		if mods[0].IsSub() && !mods[0].addsTo(&it.Elem) {
			return false
		}
		mods = mods[1:]
	}
	return true
}

func hasDollarName(t bson.Type, v []byte) bool {
	if t != bson.TypeEmbeddedDocument && t != bson.TypeArray || !slices.Contains(v, '$') {
		return false
	}
	it := rawbson.NewIter(v)
	for it.Next() {
		if strings.HasPrefix(it.Name(), "$") || hasDollarName(it.Type, it.Value) {
			return true
		}
	}
	return false
}

// plain reports whether a name stands for itself in a path: it is not empty, has
// no dot and does not start with a dollar.
func plain(name string) bool {
	return name != "" && name[0] != '$' && strings.IndexByte(name, '.') < 0
}

// ordered reports whether $set would append the fields in this order: it goes by
// name, and among names of digits by number.
func ordered(fields []Field) bool {
	for i := range fields {
		if i > 0 && fields[i-1].Name >= fields[i].Name {
			return false
		}
		if len(fields) > 1 && fields[i].Name != "" && fields[i].Name[0] <= '9' {
			return false
		}
	}
	return true
}
