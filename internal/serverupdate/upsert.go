package serverupdate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// Equality is a path of a query and the value that it must have there.
type Equality struct {
	// Path is dotted.
	Path string
	// Value must be valid BSON.
	Value bson.RawValue
}

// Upsert returns the document that the server inserts where nothing matched: made
// of the query's equalities, in the order of their paths, and then updated,
// $setOnInsert included. A replacement takes only _id from the query. The _id
// comes first, made if it is in neither. A refusal is an [*Error].
func (s *Statement) Upsert(equalities []Equality) (bson.Raw, error) {
	doc, err := s.fromQuery(equalities)
	if err != nil {
		return nil, err
	}
	r, err := s.run(doc, NoMatch, true)
	if err != nil {
		return nil, err
	}
	if id, ok := rawbson.Lookup(r.Doc, "_id"); ok {
		if err := checkIDValue(id); err != nil {
			return nil, err
		}
	}
	made := s.opts.withID(r.Doc)
	if len(made) > MaxDocumentSize {
		return nil, refuse(codeUpsertTooLarge, "Document to upsert is larger than %d", MaxDocumentSize)
	}
	return made, nil
}

// codeNotExactValueField is of a part of _id that a replacement cannot take over.
const codeNotExactValueField = 111

func (s *Statement) fromQuery(equalities []Equality) (bson.Raw, error) {
	list := slices.Clone(equalities)
	slices.SortStableFunc(list, func(a, b Equality) int { return cmp.Compare(a.Path, b.Path) })
	w := &walk{s: s, root: rootNode(emptyDocument)}
	for i, e := range list {
		if err := e.Value.Validate(); err != nil {
			return nil, fmt.Errorf("serverupdate: read the equality of %q: %w", e.Path, err)
		}
		path := strings.Split(e.Path, ".")
		if s.kind == Replacement {
			if path[0] != "_id" {
				continue
			}
			if len(path) > 1 {
				return nil, refuse(codeNotExactValueField, "field at '_id' must be exactly specified, field at sub-path '%s'found", e.Path)
			}
		}
		if i > 0 && list[i-1].Path == e.Path {
			return nil, refuse(codeNotSingleValueField, "cannot infer query fields to set, path '%s' is matched twice", e.Path)
		}
		if err := w.setFromQuery(path, e); err != nil {
			return nil, err
		}
	}
	return w.root.bytes(), nil
}

func (w *walk) setFromQuery(path []string, e Equality) error {
	at := w.root
	for i, name := range path {
		next := at.child(name)
		if next != nil {
			at = next
			continue
		}
		w.taken, w.pending = make([]step, i), path[i:]
		for k := range w.taken {
			w.taken[k].name = path[k]
		}
		if i > 0 && path[0] == "_id" {
			w.taken[0].name = "" // nothing is immutable yet
		}
		return w.attach(at, newNode("", e.Value.Type, e.Value.Value))
	}
	return refuse(codeNotSingleValueField, "cannot infer query fields to set, path '%s' is matched twice", e.Path)
}

// withID moves _id to the front, or makes one.
func (o Options) withID(doc bson.Raw) bson.Raw {
	if _, ok := rawbson.Lookup(doc, "_id"); ok {
		return idFirst(doc)
	}
	start, dst := bsoncore.AppendDocumentStart(make([]byte, 0, len(doc)+17))
	dst = bsoncore.AppendObjectIDElement(dst, "_id", o.newID())
	return end(append(dst, doc[4:len(doc)-1]...), start)
}

func (o Options) newID() bson.ObjectID {
	if o.NewID != nil {
		return o.NewID()
	}
	return bson.NewObjectID()
}

// CheckInsert returns doc as the server stores it: _id first, generated if there
// is none, and zero timestamps at the top level replaced. It returns doc itself
// where nothing is to be changed. A refusal is an [*Error]; for invalid BSON the
// error wraps a [*rawbson.CorruptError].
func (o Options) CheckInsert(doc bson.Raw) (bson.Raw, error) {
	if err := rawbson.Validate(doc); err != nil {
		return nil, fmt.Errorf("serverupdate: read the document: %w", err)
	}
	if len(doc) > MaxDocumentSize {
		return nil, refuse(codeBadValue, "object to insert too large. size in bytes: %d, max size: %d", len(doc), MaxDocumentSize)
	}
	if elementDepth(doc) > maxStoredDepth {
		return nil, refuse(codeOverflow, "cannot insert document because it exceeds %d levels of nesting", maxStoredDepth)
	}
	ids := 0
	for it := rawbson.NewIter(doc); it.Next(); {
		if o.NoDollars && strings.HasPrefix(it.Name(), "$") {
			return nil, refuse(codeBadValue, "Document can't have $ prefixed field names: %s", it.Name())
		}
		if !it.Is("_id") {
			continue
		}
		if ids++; ids > 1 {
			return nil, refuse(codeBadValue, "can't have multiple _id fields in one document")
		}
		if err := checkIDValue(it.Elem); err != nil {
			return nil, err
		}
	}
	return o.withID(o.stamp(doc)), nil
}
