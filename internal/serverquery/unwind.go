package serverquery

import (
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// set writes a field at a path, replacing obstacles by documents.
func (t *tree) set(path []string, v tree) {
	if len(path) == 0 {
		*t = v
		return
	}
	if t.t != bson.TypeEmbeddedDocument {
		*t = tree{val: val{t: bson.TypeEmbeddedDocument}, fields: []treeField{}}
	}
	t.open()
	for i := range t.fields {
		if t.fields[i].name == path[0] {
			t.fields[i].tree.set(path[1:], v)
			return
		}
	}
	if v.missing() {
		return
	}
	t.fields = append(t.fields, treeField{name: path[0]})
	t.fields[len(t.fields)-1].tree.set(path[1:], v)
}

// nested follows a path through documents only.
func nested(doc []byte, path []string) val {
	v := val{bson.TypeEmbeddedDocument, doc}
	for _, name := range path {
		if v.t != bson.TypeEmbeddedDocument {
			return val{}
		}
		e, ok := rawbson.Lookup(v.b, name)
		if !ok {
			return val{}
		}
		v = valueOf(&e)
	}
	return v
}

// unwind is $unwind.
type unwind struct {
	path, index []string
	keepEmpty   bool
}

func compileUnwind(e *rawbson.Elem) (stage, error) {
	u := &unwind{}
	path, ok := e.Text()
	if !ok {
		doc, isDoc := e.Document()
		if !isDoc {
			return nil, servererr.New(15981, "expected either a string or an object as specification for $unwind stage, got %s",
				bsontext.TypeName(e.Type))
		}
		for _, f := range elems(doc) {
			switch f.Name() {
			case "path":
				if path, ok = f.Text(); !ok {
					return nil, servererr.New(28808, "expected a string as the path for $unwind stage, got %s", bsontext.TypeName(f.Type))
				}
			case "preserveNullAndEmptyArrays":
				if u.keepEmpty, ok = f.Bool(); !ok {
					return nil, servererr.New(28809, "expected a boolean for the preserveNullAndEmptyArrays option to $unwind stage, got %s",
						bsontext.TypeName(f.Type))
				}
			case "includeArrayIndex":
				name, isText := f.Text()
				if !isText || name == "" {
					return nil, servererr.New(28810, "expected a non-empty string for the includeArrayIndex  option to $unwind stage, got %s",
						bsontext.TypeName(f.Type))
				}
				if name[0] == '$' {
					return nil, servererr.New(28822, "includeArrayIndex option to $unwind stage should not be prefixed with a '$': %s", name)
				}
				if err := checkFieldPath(name); err != nil {
					return nil, err
				}
				u.index = splitPath(name)
			default:
				return nil, servererr.New(28811, "unrecognized option to $unwind stage: %s", f.Name())
			}
		}
	}
	switch {
	case path == "":
		return nil, servererr.New(28812, "no path specified to $unwind stage")
	case path[0] != '$':
		return nil, servererr.New(28818, "path option to $unwind stage should be prefixed with a '$': %s", path)
	}
	if err := checkFieldPath(path[1:]); err != nil {
		return nil, err
	}
	u.path = splitPath(path[1:])
	return u.stage, nil
}

func (u *unwind) stage(in documents) documents {
	return func(yield func(bson.Raw, error) bool) {
		for doc, err := range in {
			if err != nil {
				yield(nil, err)
				return
			}
			if !u.take(doc, yield) {
				return
			}
		}
	}
}

// take yields the documents that one document becomes.
func (u *unwind) take(doc bson.Raw, yield func(bson.Raw, error) bool) bool {
	v := nested(doc, u.path)
	switch {
	case v.t == bson.TypeArray && len(v.b) > rawbson.MinSize:
		for i, e := range elems(v.b) {
			out := tree{val: val{bson.TypeEmbeddedDocument, doc}}
			out.set(u.path, tree{val: valueOf(&e)})
			if !yield(u.number(out, val{bson.TypeInt64, bsoncore.AppendInt64(nil, int64(i))}), nil) {
				return false
			}
		}
		return true
	case v.t == bson.TypeArray, v.nullish():
		if !u.keepEmpty {
			return true
		}
	}
	out := tree{val: val{bson.TypeEmbeddedDocument, doc}}
	if v.t == bson.TypeArray {
		out.set(u.path, tree{})
	}
	return yield(u.number(out, val{t: bson.TypeNull}), nil)
}

func (u *unwind) number(t tree, n val) bson.Raw {
	if u.index != nil {
		t.set(u.index, tree{val: n})
	}
	return t.appendValue(nil)
}
