package serverquery

import (
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// unwinding is a compiled $unwind.
type unwinding struct {
	path []string
	// keep is preserveNullAndEmptyArrays.
	keep bool
}

func compileUnwind(e *rawbson.Elem) (stage, error) {
	u, err := parseUnwind(e)
	if err != nil {
		return nil, err
	}
	return func(in documents) documents {
		return func(yield func(bson.Raw, error) bool) {
			for doc, err := range in {
				if err != nil {
					yield(nil, err)
					return
				}
				if !u.each(doc, func(out bson.Raw) bool { return yield(out, nil) }) {
					return
				}
			}
		}
	}, nil
}

func parseUnwind(e *rawbson.Elem) (*unwinding, error) {
	u := &unwinding{}
	path, given := e.Text()
	doc, isDoc := e.Document()
	if !given && !isDoc {
		return nil, servererr.New(15981, "expected either a string or an object as specification for $unwind stage, got %s", bsontext.TypeName(e.Type))
	}
	for _, f := range elems(doc) {
		var ok bool
		switch f.Name() {
		case "path":
			if path, ok = f.Text(); !ok {
				return nil, servererr.New(28808, "expected a string as the path for $unwind stage, got %s", bsontext.TypeName(f.Type))
			}
			given = true
		case "preserveNullAndEmptyArrays":
			if u.keep, ok = f.Bool(); !ok {
				return nil, servererr.New(28809, "expected a boolean for the preserveNullAndEmptyArrays option to $unwind stage, got %s", bsontext.TypeName(f.Type))
			}
		case "includeArrayIndex":
			return nil, notImplemented("the option includeArrayIndex of $unwind")
		default:
			return nil, servererr.New(28811, "unrecognized option to $unwind stage: %s", f.Name())
		}
	}
	switch {
	case !given || path == "":
		return nil, servererr.New(28812, "no path specified to $unwind stage")
	case path[0] != '$':
		return nil, servererr.New(28818, "path option to $unwind stage should be prefixed with a '$': %s", path)
	}
	if err := checkFieldPath(path[1:]); err != nil {
		return nil, err
	}
	u.path = strings.Split(path[1:], ".")
	return u, nil
}

// each yields the results for a document. An array on the way to the last field is not
// searched: the field is missing. It returns false once yield does.
func (u *unwinding) each(doc bson.Raw, yield func(bson.Raw) bool) bool {
	v, array := u.find(doc)
	switch {
	case v.missing() || v.t == bson.TypeNull || v.t == bson.TypeUndefined:
		return !u.keep || yield(doc)
	case !array:
		return yield(doc)
	}
	list := elems(v.b)
	if len(list) == 0 {
		return !u.keep || yield(withValue(doc, u.path, val{}))
	}
	for i := range list {
		if !yield(withValue(doc, u.path, valueOf(&list[i]))) {
			return false
		}
	}
	return true
}

// find returns the value at the path, and whether it is an array.
func (u *unwinding) find(doc []byte) (v val, array bool) {
	for i, name := range u.path {
		e, ok := rawbson.Lookup(doc, name)
		switch {
		case !ok:
			return val{}, false
		case i == len(u.path)-1:
			return valueOf(&e), e.Type == bson.TypeArray
		case e.Type != bson.TypeEmbeddedDocument:
			return val{}, false
		}
		doc = e.Value
	}
	return val{}, false
}

// withValue returns a document with another value at a path that leads to one; without the field
// if v is missing.
func withValue(doc []byte, path []string, v val) bson.Raw {
	i, dst := bsoncore.AppendDocumentStart(nil)
	done := false
	for _, e := range elems(doc) {
		switch {
		case done || !e.Is(path[0]):
			dst = append(bsoncore.AppendHeader(dst, bsoncore.Type(e.Type), e.Name()), e.Value...)
			continue
		case len(path) > 1:
			dst = bsoncore.AppendDocumentElement(dst, e.Name(), bsoncore.Document(withValue(e.Value, path[1:], v)))
		case !v.missing():
			dst = append(bsoncore.AppendHeader(dst, bsoncore.Type(v.t), e.Name()), v.b...)
		}
		done = true
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, i)
	return dst
}
