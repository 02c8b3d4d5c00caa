package serverquery

import (
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

// wrap makes a document of one value.
func wrap(name string, v val) []byte {
	dst := make([]byte, 0, len(name)+len(v.b)+7)
	start, dst := bsoncore.AppendDocumentStart(dst)
	dst = append(bsoncore.AppendHeader(dst, bsoncore.Type(v.t), name), v.b...)
	dst, _ = bsoncore.AppendDocumentEnd(dst, start) // fails on a bad start only
	return dst
}

// Validator is a compiled validator of a collection. Unlike a [Matcher] it says why a
// document does not fit, if it has a single condition.
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
	if n, ok := v.root.(*pathNode); ok {
		info = bsoncore.AppendDocumentElement(info, "details", bsoncore.Document(n.describe(doc)))
	}
	return servererr.New(servererr.DocumentValidationFailure, "Document failed validation").WithInfo(
		bsoncore.BuildDocument(nil, bsoncore.AppendDocumentElement(nil, "errInfo", bsoncore.BuildDocument(nil, info))))
}

// within reports whether path is prefix, or lies below it.
func within(path, prefix string) bool {
	return strings.HasPrefix(path, prefix) && (len(path) == len(prefix) || path[len(prefix)] == '.')
}
