package serverupdate

import (
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

const (
	// MaxDocumentSize is the largest document that a server stores, in bytes.
	MaxDocumentSize = 16 << 20
	// MaxStatementSize is the largest document that a server reads or builds, in
	// bytes: a command, a statement, the result of a pipeline before it is stored.
	MaxStatementSize = MaxDocumentSize + 16<<10
	// MaxStoredDepth is how deep the fields of a stored document may lie, the top
	// level being 1.
	MaxStoredDepth = 180
	// MaxStatementDepth is how many levels of objects and arrays a server reads in
	// one document, itself included.
	MaxStatementDepth = 200
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
// statements as a sequence of documents beside the command.
func CheckStatement(u bson.RawValue) error {
	if err := validateStatement(u); err != nil {
		return err
	}
	if n := len(u.Value) + statementOverhead; n > MaxStatementSize {
		return refuse(codeBSONObjectTooLarge, "send the statement: %d bytes, at most %d", n, MaxStatementSize)
	}
	if d := Depth(u) + 1; d > MaxStatementDepth {
		return refuse(codeOverflow, "send the statement: nested %d levels deep, at most %d", d, MaxStatementDepth)
	}
	return nil
}

// elementDepth is the level of the deepest field below a document, its own
// fields being at 1: the server's count for what is stored.
func elementDepth(doc []byte) int {
	deepest := 0
	for _, e := range elems(doc) {
		level := 1
		if e.Type == bson.TypeEmbeddedDocument || e.Type == bson.TypeArray {
			level += elementDepth(e.Value)
		}
		deepest = max(deepest, level)
	}
	return deepest
}

func checkElementDepth(level int) error {
	if level > MaxStoredDepth {
		return refuse(codeOverflow, "store the result: nested %d levels deep, at most %d", level, MaxStoredDepth)
	}
	return nil
}

// checkDocument is the server's check of a whole document before it is stored.
// Dollars says whether names with a dollar may stand at the top level.
func checkDocument(doc bson.Raw, dollars bool) error {
	list := elems(doc)
	for i, e := range list {
		if e.Is("_id") {
			if err := checkIDValue(e); err != nil {
				return err
			}
		}
		if !dollars && strings.HasPrefix(e.Name(), "$") {
			if err := checkDBRef(list, i); err != nil {
				return err
			}
		}
	}
	return checkElementDepth(elementDepth(doc))
}

func checkIDValue(e rawbson.Elem) error {
	switch e.Type {
	case bson.TypeRegex, bson.TypeArray, bson.TypeUndefined:
		return refuse(codeInvalidIDField, "store the result: _id is of type %s", typeName(e.Type))
	case bson.TypeEmbeddedDocument:
		return checkIDNames(e.Value)
	default:
		return nil
	}
}

func checkIDNames(doc []byte) error {
	list := elems(doc)
	for i, e := range list {
		if strings.HasPrefix(e.Name(), "$") {
			if err := checkDBRef(list, i); err != nil {
				return err
			}
		}
		if e.Type == bson.TypeEmbeddedDocument || e.Type == bson.TypeArray {
			if err := checkIDNames(e.Value); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkDBRef accepts a name with a dollar only as part of a reference: $ref, a
// string, then $id, then maybe $db, a string.
func checkDBRef(list []rawbson.Elem, at int) error {
	fault := func() error {
		return refuse(codeInvalidDBRef, "store the result: field %q is no part of a reference", list[at].Name())
	}
	i := at
	if list[i].Is("$db") {
		if i == 0 || list[i].Type != bson.TypeString || !list[i-1].Is("$id") {
			return fault()
		}
		i--
	}
	if list[i].Is("$id") {
		if i == 0 || !list[i-1].Is("$ref") {
			return fault()
		}
		i--
	}
	if !list[i].Is("$ref") {
		return refuse(codeDollarPrefixedFieldName, "store the result: field %q starts with a dollar", list[at].Name())
	}
	if list[i].Type != bson.TypeString || i+1 == len(list) || !list[i+1].Is("$id") {
		return fault()
	}
	return nil
}
