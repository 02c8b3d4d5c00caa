package serverquery

import (
	"errors"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// Options are the inputs of a query other than its text.
type Options struct {
	// Collator compares strings; nil compares bytes.
	Collator *bsonorder.Collator
}

// Matcher is a compiled filter.
type Matcher struct{ root node }

// Compile compiles a filter. A nil one, like an empty one, finds everything. A
// filter that the server refuses, or that is not implemented, is a
// [*servererr.Error].
func Compile(filter bson.Raw, o Options) (*Matcher, error) {
	return compile(filter, &parser{coll: o.Collator})
}

func compile(filter bson.Raw, p *parser) (*Matcher, error) {
	if len(filter) == 0 {
		return &Matcher{&allNode{}}, nil
	}
	if err := validate(filter); err != nil {
		return nil, err
	}
	root, err := p.filter(filter, 1)
	if err != nil {
		return nil, err
	}
	return &Matcher{root}, nil
}

// Match reports whether the filter finds doc. There is an error if an expression
// ($expr) cannot be computed on it, and only then.
func (m *Matcher) Match(doc bson.Raw) (bool, error) {
	o := m.root.match(doc)
	return o.ok, o.err
}

// MatchIndex is Match, and says which array element made the document match: the
// number that stands for the positional operator ($). It is -1 if no array was
// searched. Of several arrays the last condition's counts, and the outermost of
// nested ones.
func (m *Matcher) MatchIndex(doc bson.Raw) (ok bool, index int, err error) {
	o := m.root.match(doc)
	return o.ok, o.index - 1, o.err
}

// MatchPull compiles the operand of $pull: a document of fields that elements
// which are documents have to match, operators or a regular expression for the
// element itself, or a value that it has to be equal to. It is what
// [serverupdate.Options] asks for.
func (o Options) MatchPull(cond bson.RawValue) (func(elem bson.RawValue) bool, error) {
	v := fromRaw(cond)
	p := &parser{coll: o.Collator, plain: true}
	switch {
	case v.t == bson.TypeRegex || isOperators(v):
		m, err := compile(wrap("", v), p)
		if err != nil {
			return nil, err
		}
		return func(elem bson.RawValue) bool { return m.root.match(wrap("", fromRaw(elem))).ok }, nil
	case v.t == bson.TypeEmbeddedDocument:
		m, err := compile(v.b, p)
		if err != nil {
			return nil, err
		}
		return func(elem bson.RawValue) bool {
			return elem.Type == bson.TypeEmbeddedDocument && m.root.match(elem.Value).ok
		}, nil
	default:
		return func(elem bson.RawValue) bool { return fromRaw(elem).equal(v, o.Collator) }, nil
	}
}

// wrap makes a document of one value.
func wrap(name string, v val) []byte {
	dst := make([]byte, 0, len(name)+len(v.b)+7)
	start, dst := bsoncore.AppendDocumentStart(dst)
	dst = append(bsoncore.AppendHeader(dst, bsoncore.Type(v.t), name), v.b...)
	dst, _ = bsoncore.AppendDocumentEnd(dst, start) // fails on a bad start only
	return dst
}

// ArrayFilter compiles one of an update's arrayFilters. Identifier is the name
// that all of its paths begin with, and that the update's paths refer to.
func (o Options) ArrayFilter(filter bson.Raw) (identifier string, match func(elem bson.RawValue) bool, err error) {
	m, err := compile(filter, &parser{coll: o.Collator, plain: true})
	if err != nil {
		if e, ok := errors.AsType[*servererr.Error](err); ok {
			err = e.Within("Error parsing array filter")
		}
		return "", nil, err
	}
	names := map[string]bool{}
	collectNames(m.root, names)
	for name := range names {
		identifier = name
	}
	switch {
	case len(names) == 0:
		return "", nil, failedToParse("Cannot use an expression without a top-level field name in arrayFilters")
	case len(names) > 1:
		return "", nil, failedToParse("Error parsing array filter :: caused by :: Expected a single top-level field name")
	case !isIdentifier(identifier):
		return "", nil, badValue("Error parsing array filter :: caused by :: The top-level field name must be an "+
			"alphanumeric string beginning with a lowercase letter, found '%s'", identifier)
	}
	return identifier, func(elem bson.RawValue) bool { return m.root.match(wrap(identifier, fromRaw(elem))).ok }, nil
}

func isIdentifier(s string) bool {
	for i, c := range []byte(s) {
		lower, other := c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !lower && (i == 0 || !other) {
			return false
		}
	}
	return s != ""
}

// collectNames collects the first parts of all paths.
func collectNames(n node, names map[string]bool) {
	switch n := n.(type) {
	case *pathNode:
		names[n.path[0]] = true
	case *allNode:
		for _, part := range n.parts {
			collectNames(part, names)
		}
	case *anyNode:
		for _, part := range n.parts {
			collectNames(part, names)
		}
	case *notNode:
		collectNames(n.part, names)
	}
}

// Validator is a compiled validator of a collection. Unlike a [Matcher] it can
// say why a document does not fit.
type Validator struct{ root node }

// CompileValidator compiles a validator. The refusals are those of [Compile].
func CompileValidator(filter bson.Raw, o Options) (*Validator, error) {
	m, err := compile(filter, &parser{coll: o.Collator, notes: true})
	if err != nil {
		return nil, err
	}
	return &Validator{m.root}, nil
}

// Check refuses a document that the validator does not find, the way the server
// does: DocumentValidationFailure, with errInfo.
func (v *Validator) Check(doc bson.Raw) error {
	o := v.root.match(doc)
	switch {
	case o.err != nil:
		return o.err
	case o.ok:
		return nil
	}
	info := []byte(nil)
	if id, ok := rawbson.Lookup(doc, "_id"); ok {
		id.Key = []byte("failingDocumentId")
		info = appendElem(info, &id)
	}
	if details := v.root.describe(doc, false); details != nil {
		info = bsoncore.AppendDocumentElement(info, "details", details)
	}
	return servererr.New(servererr.DocumentValidationFailure, "Document failed validation").WithInfo(
		bsoncore.BuildDocument(nil, bsoncore.AppendDocumentElement(nil, "errInfo", bsoncore.BuildDocument(nil, info))))
}

// within reports whether path is prefix, or lies below it.
func within(path, prefix string) bool {
	return strings.HasPrefix(path, prefix) && (len(path) == len(prefix) || path[len(prefix)] == '.')
}
