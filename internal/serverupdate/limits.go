package serverupdate

import (
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/rawbson"
)

const (
	// MaxDocumentSize is the largest document that a server stores, in bytes.
	MaxDocumentSize = 16 << 20
	// maxStatementSize is the largest document that a server reads or builds, in
	// bytes: a command, a statement, the result of a pipeline before it is stored.
	maxStatementSize = MaxDocumentSize + 16<<10
	// maxStoredDepth is how deep the fields of a stored document may lie, the top
	// level being 1.
	maxStoredDepth = 180
	// maxStatementDepth is how many levels of objects and arrays a server reads in
	// one document, itself included.
	maxStatementDepth = 200
)

// statementOverhead is an estimate, in bytes, of what stands around u in the
// smallest statement: {q: {_id: ObjectId}, u: ...}.
const statementOverhead = 5 + 3 + 22 + 3

// Depth returns how many levels of objects and arrays v has, itself included: 0
// for a value of another type, 1 for {} and {a: 1}, 2 for {a: []}. The scope of
// code counts as an object. The value must be valid BSON.
func Depth(v bson.RawValue) int {
	inner := v.Value
	switch v.Type {
	case bson.TypeEmbeddedDocument, bson.TypeArray:
	case bson.TypeCodeWithScope:
		inner = rawbson.Scope(v.Value)
	default:
		return 0
	}
	deepest := 0
	for _, e := range elems(inner) {
		deepest = max(deepest, Depth(e.Raw()))
	}
	return deepest + 1
}

// CheckStatement returns an [*Error] if a server would not read an update
// statement with the argument u, because of its type, size or nesting. It counts
// the statement that stands around u, but no command around that: drivers send
// statements as a sequence of documents outside of the command.
func CheckStatement(u bson.RawValue) error {
	if err := validateStatement(u); err != nil {
		return err
	}
	if n := len(u.Value) + statementOverhead; n > maxStatementSize {
		return refuse(codeBSONObjectTooLarge, "send the statement: %d bytes, at most %d", n, maxStatementSize)
	}
	if d := Depth(u) + 1; d > maxStatementDepth {
		return refuse(codeOverflow, "send the statement: nested %d levels deep, at most %d", d, maxStatementDepth)
	}
	return nil
}

// elementDepth is the level of the deepest field below a document, its own
// fields being at 1: the server's count for stored documents.
func elementDepth(doc []byte) int {
	deepest := 0
	for it := rawbson.NewIter(doc); it.Next(); {
		level := 1
		if it.Type == bson.TypeEmbeddedDocument || it.Type == bson.TypeArray {
			level += elementDepth(it.Value)
		}
		deepest = max(deepest, level)
	}
	return deepest
}

func checkElementDepth(level int) error {
	if level > maxStoredDepth {
		return refuse(codeOverflow, "Document exceeds maximum nesting depth of %d", maxStoredDepth)
	}
	return nil
}

// checkDocument is the server's check of a whole document before it is stored.
// Dollars says whether names with a dollar may stand at the top level.
func checkDocument(doc bson.Raw, dollars bool) error {
	list, at := []rawbson.Elem(nil), -1
	for it := rawbson.NewIter(doc); it.Next(); {
		at++
		if it.Is("_id") {
			if err := checkIDValue(it.Elem); err != nil {
				return err
			}
		}
		if !dollars && strings.HasPrefix(it.Name(), "$") {
			if list == nil {
				list = elems(doc)
			}
			if err := checkDBRef(list, at, it.Name(), notReplaced); err != nil {
				return err
			}
		}
	}
	return checkElementDepth(elementDepth(doc))
}

func checkIDValue(e rawbson.Elem) error {
	switch e.Type {
	case bson.TypeRegex, bson.TypeArray, bson.TypeUndefined:
		return refuse(codeInvalidIDField, "The '_id' value cannot be of type %s", bsontext.TypeName(e.Type))
	case bson.TypeEmbeddedDocument:
		return checkIDNames(e.Value)
	default:
		return nil
	}
}

// checkIDNames refuses names with a dollar in an _id, but for a reference: $ref, a
// string, and $id at the start of an object, then maybe $db, a string.
func checkIDNames(doc []byte) error {
	list := elems(doc)
	for i, e := range list {
		if strings.HasPrefix(e.Name(), "$") && !inReference(list, i) {
			return refuse(codeDollarPrefixedFieldName,
				"_id fields may not contain '$'-prefixed fields: %s is not valid for storage.", e.Name())
		}
		if e.Type == bson.TypeEmbeddedDocument || e.Type == bson.TypeArray {
			if err := checkIDNames(e.Value); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkNoDollars refuses names with a dollar anywhere in a document, but for references. The path is that of the document.
func checkNoDollars(doc []byte, path string) error {
	list := elems(doc)
	for i, e := range list {
		name := path + e.Name()
		if strings.HasPrefix(e.Name(), "$") {
			if err := checkDBRef(list, i, name, notStored); err != nil {
				return err
			}
		}
		if e.Type == bson.TypeEmbeddedDocument || e.Type == bson.TypeArray {
			if err := checkNoDollars(e.Value, name+"."); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkNoDollarAt refuses the name at a place of list if it starts with a dollar, but in a reference.
func checkNoDollarAt(list []rawbson.Elem, at int) error {
	if name := list[at].Name(); strings.HasPrefix(name, "$") {
		return checkDBRef(list, at, name, notStored)
	}
	return nil
}

func inReference(list []rawbson.Elem, at int) bool {
	if len(list) < 2 || !list[0].Is("$ref") || list[0].Type != bson.TypeString || !list[1].Is("$id") {
		return false
	}
	return at < 2 || at == 2 && list[2].Is("$db") && list[2].Type == bson.TypeString
}

// What a server says of a name with a dollar that is of no reference: one before 5.0 anywhere, and a later one at the top level.
const (
	notStored   = "is not valid for storage."
	notReplaced = "is not allowed in the context of an update's replacement document. Consider using an aggregation pipeline with $replaceWith."
)

// checkDBRef accepts a name with a dollar, which is at that path, only as part of a
// reference: $ref, a string, then $id, then maybe $db, a string.
func checkDBRef(list []rawbson.Elem, at int, path, refusal string) error {
	i := at
	if list[i].Is("$db") {
		if list[i].Type != bson.TypeString {
			return refuse(codeInvalidDBRef, "The DBRef $db field must be a String, not a %s", bsontext.TypeName(list[i].Type))
		}
		if i == 0 || !list[i-1].Is("$id") {
			return refuse(codeInvalidDBRef, "Found $db field without a $id before it, which is invalid.")
		}
		i--
	}
	if list[i].Is("$id") {
		if i == 0 || !list[i-1].Is("$ref") {
			return refuse(codeInvalidDBRef, "Found $id field without a $ref before it, which is invalid.")
		}
		i--
	}
	switch {
	case !list[i].Is("$ref"):
		return refuse(codeDollarPrefixedFieldName, "The dollar ($) prefixed field '%s' in '%s' %s", list[at].Name(), path, refusal)
	case list[i].Type != bson.TypeString:
		return refuse(codeInvalidDBRef, "The DBRef $ref field must be a String, not a %s", bsontext.TypeName(list[i].Type))
	case i+1 == len(list) || !list[i+1].Is("$id"):
		return refuse(codeInvalidDBRef, "The DBRef $ref field must be followed by a $id field")
	}
	return nil
}
