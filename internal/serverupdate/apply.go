package serverupdate

import (
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// Options are the parts of the server's environment that updates use. The zero
// Options have none of them: an update that needs one is refused as
// NotImplemented.
type Options struct {
	// Clock returns the wall clock, in milliseconds since the epoch: what
	// $currentDate writes, and $$NOW when a pipeline is compiled.
	Clock func() bson.DateTime
	// Tick advances the cluster time by one and returns it. The server writes such
	// times in place of zero timestamps at the top level of a replacement and of an
	// inserted document, and for $currentDate. Without it zero timestamps stay, as
	// when the server is told to keep them.
	Tick func() bson.Timestamp
	// NewID makes the _id of a document that has none, an ObjectID of the
	// driver's where it is nil.
	NewID func() bson.ObjectID
	// Match compiles a query filter, a document. The returned function reports
	// whether a document matches. Values are put into a document of one field, in
	// the filter as in the matched value, so that both are always documents. Other
	// errors than [*Error] are passed on.
	Match func(filter bson.RawValue) (Matcher, error)
	// ArrayFilters is the statement's array of filters, nil if it has none.
	ArrayFilters bson.Raw
	// Collator compares strings, by their bytes where it is nil.
	Collator *bsonorder.Collator
	// Multi says that the statement updates every document that matches, which
	// replacements may not.
	Multi bool
	// Log chooses the form in which a Result has the changes of modifiers.
	Log LogForm
	// NoDollars says that the server refuses what a replacement or a pipeline makes, and what modifiers write, if a name in
	// it, at any depth, starts with a dollar, but for references: before the feature compatibility version 5.0. Inserts may
	// have such names below the top level. (update/storage_validation.cpp, ops/insert.cpp)
	NoDollars bool
}

// Matcher reports whether a document matches a filter.
type Matcher func(doc bson.RawValue) (bool, error)

// LogForm is the form in which the server logs the changes of modifiers.
type LogForm int

const (
	// LogNone makes no log entry.
	LogNone LogForm = iota
	// LogDelta makes the $v: 2 form of servers from 5.0 on: [Result].Delta.
	LogDelta
	// LogModifiers makes the $v: 1 form that they write while the feature
	// compatibility version is 4.4, as older servers do: [Result].Modifiers.
	LogModifiers
)

// Kind is which of the three forms a statement has.
type Kind int

const (
	// Replacement is a document without operators.
	Replacement Kind = iota
	// Modifiers is a document whose first field starts with a dollar.
	Modifiers
	// Pipeline is an array of stages.
	Pipeline
)

// NoMatch says that a query matched through no array, as index for
// [Statement.Apply].
const NoMatch = -1

// Statement is a parsed update. It keeps views into its source, which must not
// change while it is in use. It may be used for any number of documents, by one
// goroutine at a time.
type Statement struct {
	opts        Options
	kind        Kind
	replacement bson.Raw
	pipeline    []stage
	tree        *branch
	positional  bool
	filters     map[string]arrayFilter
}

// Result is the result of an update of a document.
type Result struct {
	// Doc is the document to store. It may share memory with the arguments.
	Doc bson.Raw
	// Made is the result of a pipeline or a replacement, before the server added a
	// missing _id and moved it to the front. It is nil for modifiers.
	Made bson.Raw
	// NoOp is true if the server neither writes nor logs anything. An update
	// that writes the present value may be logged nevertheless.
	NoOp bool
	// Kind is the statement's form. The server logs a replacement as Made, or Doc
	// if Made has no _id; a pipeline as the difference between the document and
	// Made, or like a replacement if that is smaller; modifiers always as the
	// paths that they changed.
	Kind Kind
	// Delta is the diff of a $v: 2 entry, without the document around it. It is nil
	// unless Options.Log asks for it, and for other kinds.
	Delta bson.Raw
	// Modifiers is the whole o of a $v: 1 entry. It is nil unless Options.Log asks
	// for it, and for other kinds.
	Modifiers bson.Raw
}

// Apply runs the update statement's argument u on the stored document doc with
// the zero [Options]. See [Options.Apply].
func Apply(doc bson.Raw, u bson.RawValue) (bson.Raw, error) { return Options{}.Apply(doc, u) }

// Apply returns the document that a server stores after an update of doc by u:
// a pipeline (array), modifiers or a replacement (documents). The result may
// share memory with the arguments, which are not changed.
//
// A refusal is an [*Error]. Arguments that are not BSON are another error, which
// wraps a [*rawbson.CorruptError].
func (o Options) Apply(doc bson.Raw, u bson.RawValue) (bson.Raw, error) {
	if err := rawbson.Validate(doc); err != nil {
		return nil, fmt.Errorf("serverupdate: read the document: %w", err)
	}
	s, err := Compile(u, o)
	if err != nil {
		return nil, err
	}
	r, err := s.Apply(doc, NoMatch)
	return r.Doc, err
}

// Compile parses a statement's argument u. The server refuses the same
// statements before it reads any document, and not with an error of the plan
// executor. An unrecognized stage (code 40324) fails the whole command there.
func Compile(u bson.RawValue, opts Options) (*Statement, error) {
	if err := validateStatement(u); err != nil {
		return nil, err
	}
	s := &Statement{opts: opts}
	switch {
	case u.Type == bson.TypeArray:
		s.kind = Pipeline
		if len(opts.ArrayFilters) > len(emptyDocument) {
			return nil, refuse(codeFailedToParse, "arrayFilters may not be specified for pipeline-style updates")
		}
		return s, s.parsePipeline(u.Value)
	case isModifiers(u.Value):
		s.kind = Modifiers
		return s, s.parseModifiers(u.Value)
	default:
		if opts.Multi {
			return nil, refuse(codeFailedToParse, "multi update is not supported for replacement-style update")
		}
		s.replacement = opts.stamp(u.Value)
		return s, nil
	}
}

func isModifiers(u []byte) bool {
	it := rawbson.NewIter(u)
	return it.Next() && strings.HasPrefix(it.Name(), "$")
}

func validateStatement(u bson.RawValue) error {
	if u.Type != bson.TypeArray && u.Type != bson.TypeEmbeddedDocument {
		return refuse(codeFailedToParse, "Update argument must be either an object or an array")
	}
	if err := rawbson.Validate(u.Value); err != nil {
		return fmt.Errorf("serverupdate: read the statement: %w", err)
	}
	return nil
}

// parsePipeline parses all stages: a fault in a later one comes before the
// evaluation of an earlier one.
func (s *Statement) parsePipeline(pipeline []byte) error {
	var vars *scope
	if s.opts.Clock != nil {
		// It is the same for all documents and stages of a command.
		vars = vars.with("NOW", value{typ: bson.TypeDateTime, raw: int64Value(int64(s.opts.Clock())).raw})
	}
	for it := rawbson.NewIter(pipeline); it.Next(); {
		if err := checkStageName(it.Elem); err != nil {
			return err
		}
		st, err := parseStage(it.Elem, vars)
		if err != nil {
			return err
		}
		s.pipeline = append(s.pipeline, st)
	}
	return nil
}

// checkStageName refuses the stages that are unknown to the server or not
// permitted in an update, with its messages.
func checkStageName(elem rawbson.Elem) error {
	doc, ok := elem.Document()
	if !ok {
		return nil // the parser reports the fault
	}
	it := rawbson.NewIter(doc)
	if !it.Next() {
		return nil
	}
	name := it.Name()
	switch name {
	case "$set", "$addFields", "$unset", "$project", "$replaceWith", "$replaceRoot":
		return nil
	}
	if forbiddenStages[name] {
		return refuse(codeInvalidOptions, "%s is not allowed to be used within an update", name)
	}
	return refuse(40324, "Unrecognized pipeline stage name: '%s'", name)
}

// Positional reports whether a path has the part $, so that [Statement.Apply] needs
// the index of the array element that the query matched.
func (s *Statement) Positional() bool { return s.positional }

// Apply runs the statement on a stored document, which must be valid BSON. Matched
// is the index of the array element through which the query matched, or [NoMatch].
// A refusal is an [*Error]; the server reports it as an error of the plan executor
// in the reply to a findAndModify.
func (s *Statement) Apply(doc bson.Raw, matched int) (Result, error) {
	r, err := s.run(doc, matched, false)
	if err != nil {
		return Result{}, err
	}
	if r.NoOp {
		return r, nil
	}
	r.Doc = idFirst(r.Doc)
	if len(r.Doc) > MaxDocumentSize {
		return Result{}, refuse(codeResultTooLarge, "Resulting document after update is larger than %d", MaxDocumentSize)
	}
	return r, nil
}

// run has the steps common to an update and an upsert. insert is true if doc is
// new.
func (s *Statement) run(doc bson.Raw, matched int, insert bool) (Result, error) {
	r := Result{Doc: doc, Kind: s.kind}
	var err error
	switch s.kind {
	case Pipeline:
		var made bson.Raw
		if made, err = s.runPipeline(doc); err == nil {
			err = r.replace(made, true)
		}
	case Replacement:
		err = r.replace(s.replacement, false)
	case Modifiers:
		err = s.runModifiers(&r, matched, insert)
	}
	if err == nil && s.kind != Modifiers && s.opts.NoDollars && !r.NoOp {
		err = checkNoDollars(r.Doc, "")
	}
	return r, err
}

func (s *Statement) runPipeline(doc bson.Raw) (bson.Raw, error) {
	steps := maxSteps
	d := newDocument(doc)
	for _, st := range s.pipeline {
		var err error
		if d, err = st(d, &steps); err != nil {
			return nil, err
		}
	}
	result, err := d.toBSON()
	if err != nil {
		return nil, err
	}
	return result, checkObjectSize(result)
}

// checkObjectSize refuses documents that exceed the server's limit in memory.
func checkObjectSize(doc bson.Raw) error {
	if len(doc) <= maxStatementSize {
		return nil
	}
	first := ""
	if it := rawbson.NewIter(doc); it.Next() {
		first = bsontext.Element(it.Name(), it.Raw())
	}
	return refuse(codeBSONObjectTooLarge, "BSONObj size: %d (0x%X) is invalid. Size must be between 0 and %d(16MB) First element: %s",
		len(doc), len(doc), maxStatementSize, first)
}

// stamp replaces the zero timestamps at the top level of a document, but for
// _id.
func (o Options) stamp(doc bson.Raw) bson.Raw {
	if o.Tick == nil || !hasZeroTimestamp(doc) {
		return doc
	}
	start, dst := bsoncore.AppendDocumentStart(nil)
	for it := rawbson.NewIter(doc); it.Next(); {
		dst = o.appendStamped(dst, &it.Elem)
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, start) // fails on a bad start only
	return dst
}

func (o Options) appendStamped(dst []byte, e *rawbson.Elem) []byte {
	if o.Tick != nil && isZeroTimestamp(e) {
		now := o.Tick()
		return bsoncore.AppendTimestampElement(dst, e.Name(), now.T, now.I)
	}
	return appendRaw(dst, e.Type, e.Name(), e.Value)
}

func hasZeroTimestamp(doc []byte) bool {
	for it := rawbson.NewIter(doc); it.Next(); {
		if isZeroTimestamp(&it.Elem) {
			return true
		}
	}
	return false
}

func isZeroTimestamp(e *rawbson.Elem) bool {
	ts, ok := e.Timestamp()
	return ok && ts == (bson.Timestamp{}) && !e.Is("_id")
}

// replace puts made in the place of the document: the end of pipelines and
// replacements.
func (r *Result) replace(made bson.Raw, dollars bool) error {
	doc := r.Doc
	r.Made = made
	if string(doc) == string(made) {
		r.NoOp = true
		return nil
	}
	if _, ok := rawbson.Lookup(made, "_id"); !ok {
		made = withIDs(doc, made)
	}
	if err := checkDocument(made, dollars); err != nil {
		return err
	}
	if err := checkID(doc, made); err != nil {
		return err
	}
	r.Doc = made
	return nil
}

// withIDs puts the fields named _id of doc before those of result.
func withIDs(doc, result bson.Raw) bson.Raw {
	start, dst := bsoncore.AppendDocumentStart(nil)
	for it := rawbson.NewIter(doc); it.Next(); {
		if it.Is("_id") {
			dst = appendRaw(dst, it.Type, it.Name(), it.Value)
		}
	}
	dst = append(dst, result[4:len(result)-1]...)
	dst, _ = bsoncore.AppendDocumentEnd(dst, start) // fails on a bad start only
	return dst
}

// checkID refuses an _id that differs from the stored one. Numbers of different
// types may be equal; then the new form is stored.
func checkID(doc, result bson.Raw) error {
	after, has := rawbson.Lookup(result, "_id")
	if has && after.Type == bson.TypeArray {
		return refuse(codeNotSingleValueField,
			"After applying the update to the document, the (immutable) field '_id' was found to be an array or array descendant.")
	}
	before, had := rawbson.Lookup(doc, "_id")
	if !had || !has {
		return nil
	}
	if bsonorder.Compare(before.Raw(), after.Raw(), nil) != 0 {
		return refuse(codeImmutableField, "After applying the update, the (immutable) field '_id' was found to have been altered to %s",
			bsontext.Element("_id", after.Raw()))
	}
	return nil
}

// idFirst moves _id to the front, as the server does in whatever it writes.
func idFirst(doc bson.Raw) bson.Raw {
	it := rawbson.NewIter(doc)
	if !it.Next() || it.Is("_id") {
		return doc
	}
	id, ok := rawbson.Lookup(doc, "_id")
	if !ok {
		return doc
	}
	start, dst := bsoncore.AppendDocumentStart(make([]byte, 0, len(doc)))
	dst = appendRaw(dst, id.Type, "_id", id.Value)
	moved := false
	for it := rawbson.NewIter(doc); it.Next(); {
		if it.Is("_id") && !moved {
			moved = true
			continue
		}
		dst = appendRaw(dst, it.Type, it.Name(), it.Value)
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, start) // fails on a bad start only
	return dst
}
