package clone

import (
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/idrange"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// order is the order in which documents are read.
type order string

const (
	// natural is by record id.
	natural order = "natural"
	// byID is by _id, one bracket of types after the other.
	byID order = "_id"
)

// spec is the definition of a range.
type spec struct {
	order order
	// from and to bound natural order: documents after record id from, up to and
	// including record id to. Zero means no bound; a negative to is before all documents.
	from, to int64
	// before are record ids below from, ascending, to resume after if from is gone.
	before []int64
	// pieces are those of byID, in order. The zero list means those of a whole
	// collection.
	pieces []idrange.Piece
}

// whole reports whether a range is a whole collection.
func (s *spec) whole() bool {
	if s.order == natural {
		return s.from == 0 && s.to == 0
	}
	return len(s.pieces) == 0
}

// place is the progress of a range.
type place struct {
	// order is that of the spec, or byID if natural order turned out to be impossible.
	order order
	// record is the record id of the last document that was copied, 0 for none.
	record int64
	// anchors are record ids of earlier documents.
	anchors anchors
	// piece is the piece that is being read, last the _id of its last document; its
	// Type is zero for none.
	piece int
	last  bson.RawValue
}

func (s *spec) encode() bson.Raw {
	b := bsoncore.NewDocumentBuilder().AppendString("order", string(s.order))
	if s.order == natural {
		if s.from != 0 {
			b.AppendInt64("from", s.from)
		}
		if s.to != 0 {
			b.AppendInt64("to", s.to)
		}
		if len(s.before) > 0 {
			b.AppendArray("before", longs(s.before))
		}
		return bson.Raw(b.Build())
	}
	if len(s.pieces) > 0 {
		list := bsoncore.NewArrayBuilder()
		for i := range s.pieces {
			list.AppendDocument(bsoncore.Document(s.pieces[i].Encode()))
		}
		b.AppendArray("pieces", list.Build())
	}
	return bson.Raw(b.Build())
}

func longs(list []int64) bsoncore.Array {
	b := bsoncore.NewArrayBuilder()
	for _, n := range list {
		b.AppendInt64(n)
	}
	return b.Build()
}

var errNoOrder = errors.New("it has no known order")

func parseSpec(doc bson.Raw) (s spec, err error) {
	err = eachField(doc, func(e *rawbson.Elem) (ok bool, err error) {
		switch e.Name() {
		case "order":
			s.order, ok = orderOf(e)
		case "from":
			s.from, ok = e.Int64()
		case "to":
			s.to, ok = e.Int64()
		case "before":
			s.before, ok = parseLongs(e)
		case "pieces":
			s.pieces, err = idrange.Parse(e)
			ok = err == nil
		default:
			ok = true
		}
		return ok, err
	})
	if err == nil && s.order == "" {
		err = errNoOrder
	}
	if err != nil {
		return spec{}, fmt.Errorf("read what the range is: %w", err)
	}
	return s, nil
}

// eachField calls set with the fields of a document, until it returns false or an error. Both
// are errors of eachField.
func eachField(doc bson.Raw, set func(e *rawbson.Elem) (ok bool, err error)) error {
	it := rawbson.NewIter(doc)
	for it.Next() {
		switch ok, err := set(&it.Elem); {
		case err != nil:
			return err
		case !ok:
			return fmt.Errorf("field %q has a value that it cannot have", it.Key)
		}
	}
	return it.Err()
}

func orderOf(e *rawbson.Elem) (order, bool) {
	s, ok := e.Text()
	switch order(s) {
	case natural:
		return natural, ok
	case byID:
		return byID, ok
	}
	return "", false
}

func parseLongs(e *rawbson.Elem) ([]int64, bool) {
	array, ok := e.Array()
	if !ok {
		return nil, false
	}
	var list []int64
	it := rawbson.NewIter(array)
	for it.Next() {
		n, ok := it.Int64()
		if !ok {
			return nil, false
		}
		list = append(list, n)
	}
	return list, it.Err() == nil
}

func (p *place) encode() bson.Raw {
	b := bsoncore.NewDocumentBuilder().AppendString("order", string(p.order))
	if p.order == natural {
		b.AppendInt64("record", p.record)
		if len(p.anchors) > 0 {
			b.AppendArray("anchors", longs(p.anchors))
		}
	} else {
		b.AppendInt32("piece", int32(p.piece)) //nolint:gosec // There are few.
		if p.last.Type != 0 {
			b.AppendValue("last", bsoncore.Value{Type: bsoncore.Type(p.last.Type), Data: p.last.Value})
		}
	}
	return bson.Raw(b.Build())
}

// parsePlace reads the progress of a range; doc is nil if it has not started.
func parsePlace(doc bson.Raw) (place, error) {
	var p place
	if len(doc) == 0 {
		return p, nil
	}
	err := eachField(doc, func(e *rawbson.Elem) (ok bool, err error) {
		switch e.Name() {
		case "order":
			p.order, ok = orderOf(e)
		case "record":
			p.record, ok = e.Int64()
		case "anchors":
			var list []int64
			list, ok = parseLongs(e)
			p.anchors = list
		case "piece":
			var n int64
			n, ok = e.Int64()
			p.piece = int(n)
		case "last":
			p.last, ok = bson.RawValue{Type: e.Type, Value: slices.Clone(e.Value)}, true
		default:
			ok = true
		}
		return ok, nil
	})
	if err == nil && p.order == "" {
		err = errNoOrder
	}
	if err != nil {
		return place{}, fmt.Errorf("read how far the range is: %w", err)
	}
	return p, nil
}

// maxAnchors is how many record ids are kept to resume after.
const maxAnchors = 16

// anchors are record ids that existed when they were read, ascending: the further back,
// the sparser.
type anchors []int64

// add appends a record id. It returns a copy of the list.
func (a anchors) add(record int64) anchors {
	if len(a) > 0 && record <= a[len(a)-1] {
		return a
	}
	if len(a) < maxAnchors {
		return append(slices.Clone(a), record)
	}
	// Every other one of the older half is dropped.
	out := make(anchors, 0, maxAnchors)
	for i, n := range a {
		if i >= maxAnchors/2 || i%2 == 0 {
			out = append(out, n)
		}
	}
	return append(out, record)
}
