package update

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// Guarantee states what the caller of [CompileDelta] knows about the document that
// the compiled update will be applied to.
type Guarantee uint8

const (
	// GuaranteeNone guarantees nothing: the document may have any shape, as when a
	// log is applied to a copy that is newer in places.
	GuaranteeNone Guarantee = iota
	// GuaranteePreImage guarantees that the document is exactly the one that the
	// source logged the delta for: the fields that the delta updates or changes
	// inside exist and have that type. It does not guarantee that inserted fields are
	// new, since a field moved to the end is logged as an insert only; nor that an
	// array reaches up to an element that is set, since an update beyond the end is
	// logged without the nulls in between.
	GuaranteePreImage
	// GuaranteeNewFields adds to GuaranteePreImage that none of the fields that the
	// delta inserts exist yet. A caller with the document checks it by
	// [ObjectDiff.AddsTo]; others may require the absence of the fields in the
	// statement's filter.
	GuaranteeNewFields
)

// Default limits of an update statement.
const (
	// defaultMaxSize is the default limit of the size of a compiled update, in bytes.
	// The server accepts commands of 16 MiB and 16 KiB.
	defaultMaxSize = 16 << 20
	// DefaultMaxDepth is the default limit of the nesting of a compiled update, in
	// levels. The server accepts 200 for the whole command, which adds up to four
	// levels around the update; stored documents have at most 180.
	DefaultMaxDepth = 190
)

// CompileOptions are the options for compiling a delta.
type CompileOptions struct {
	// Guarantee is the knowledge about the document. Zero means none.
	Guarantee Guarantee
	// MaxSize is the limit in bytes. Zero means defaultMaxSize.
	MaxSize int
	// MaxDepth is the limit in levels of nesting. Zero means DefaultMaxDepth.
	MaxDepth int
	// NoFieldOperators says that the target has no $setField, $unsetField and $getField, as
	// servers before 5.0. Some names can only be changed by these.
	NoFieldOperators bool
}

// CompiledForm is the form of a compiled update.
type CompiledForm uint8

const (
	// CompiledModifiers is a document of $set and $unset.
	CompiledModifiers CompiledForm = iota + 1
	// CompiledPipeline is an array of aggregation stages.
	CompiledPipeline
)

// Compiled is a delta as an update that a client can send.
type Compiled struct {
	// Form is the form of U.
	Form CompiledForm
	// U is the u of an update statement: a document or an array.
	U bson.RawValue
	// Depth is the nesting of U in levels, with U itself as the first.
	Depth int
}

// ErrNotCompilable matches every [*NotCompilableError] in errors.Is.
var ErrNotCompilable = errors.New("delta has no compiled form")

// NotCompilableError is a valid delta that no update statement can express. It has
// to be applied by reading, changing and writing the document.
type NotCompilableError struct {
	// Reason says why.
	Reason string
	// Size and Depth are those of the statement that would be needed, in bytes and
	// levels; zero if they are not the reason.
	Size, Depth int
}

func (e *NotCompilableError) Error() string {
	return "delta cannot be compiled: " + e.Reason
}

// Is reports whether target is [ErrNotCompilable].
func (e *NotCompilableError) Is(target error) bool { return target == ErrNotCompilable }

// CompileDelta turns the diff of a $v:2 update into an update that any client with
// the update privilege can send to MongoDB 5.0 or newer (with that feature
// compatibility version too), outside and inside of transactions, and that has the
// same result as [ApplyDelta], byte for byte, whatever the field names. Without a
// guarantee this is true for every shape of the document. There are two exceptions,
// which no driver writes: in a document with two fields of the same name at the
// same place, an update changes one of them or both; and an array whose elements
// are not numbered from 0 is renumbered by a pipeline.
//
// It compiles to modifiers, which execute fastest, if they are provably equivalent.
// Otherwise it compiles to a pipeline, which a client that requires the stable API
// (apiStrict) cannot send if a name is not usable in a path. The errors are a
// [*DeltaError] for an invalid delta, and a [*NotCompilableError]. A server may
// still refuse the update for a document that it makes too large; that document too
// has to be read, changed and written.
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
		opt.MaxSize = defaultMaxSize
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
	case b.byName && opt.NoFieldOperators:
		return Compiled{}, &NotCompilableError{Reason: "it changes fields whose names only $setField and $unsetField accept"}
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

// survey determines whether modifiers do exactly what a delta does.
//
// For a document of any shape they do for deletes and updates of top-level fields:
// $set replaces an existing field in place and appends a new one, as the delta
// does. Only the order of several appended fields differs: $set appends by name. At
// deeper levels $set would create or refuse parents where the delta does nothing or
// writes null.
//
// For the pre-image itself all parents exist, so modifiers are equivalent except
// for two things. $set would leave an existing field in its place, where an insert
// moves it to the end; if inserted fields are known to be new, only their order
// matters. And truncating an array would need a $push of nothing with a $slice,
// which takes time proportional to the length times the number of elements removed.
//
// A client must not modify _id by an operator, not even to an equal value of
// another type.
type survey struct {
	guarantee Guarantee
	// modifiers is set if they do.
	modifiers bool
	// binary is set if there is a change that cannot be compiled.
	binary bool
	// reach is the largest length that an array is extended to.
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
	// maxPath is the maximum number of names in a modifier's path. The server's limit
	// is that of nesting; longer paths do not occur in practice.
	maxPath = 100
	// maxMods is the maximum number of elements of one array changed by modifiers:
	// for each one the server walks the array from the start.
	maxMods = 64
	// maxElements is more elements than a document of 16 MiB can have.
	maxElements = 4 << 20
)

func (s *survey) name(name string) {
	s.bytes += len(name) + 32
	s.modifiers = s.modifiers && plain(name)
}

// value checks for values that modifiers may treat differently: names that start
// with a dollar, which the server checks, and the zero timestamp, which it replaces
// by the current time in some updates.
func (s *survey) value(v bson.RawValue) {
	s.bytes += len(v.Value)
	s.modifiers = s.modifiers && asTold(v)
}

// asTold reports whether $set stores a value unchanged.
func asTold(v bson.RawValue) bool {
	zero := v.Type == bson.TypeTimestamp && strings.Trim(rawbson.View(v.Value), "\x00") == ""
	return !zero && !hasDollarName(v.Type, v.Value)
}

// AddsTo reports whether doc has, at every depth, none of the fields that the diff
// inserts. For the document that the diff was computed from this means that
// [GuaranteeNewFields] is true.
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

// plain reports whether a name can be used literally in a path: it is not empty,
// has no dot and does not start with a dollar.
func plain(name string) bool {
	return name != "" && name[0] != '$' && strings.IndexByte(name, '.') < 0
}

// ordered reports whether $set would append the fields in this order: it sorts by
// name, and names of digits by number.
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
