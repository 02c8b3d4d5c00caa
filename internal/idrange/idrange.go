package idrange

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// bracket is a group of types whose values a filter compares with each other, but not
// with those of other groups.
type bracket struct {
	name  string
	types []bson.Type
}

// number is the bracket with a value that cannot be compared: NaN is first in an index,
// and neither below nor above any number in a filter.
const number = "number"

// brackets are those in which a scan can resume after a value, in the order of an
// index. Other types of _id are rare: null, regular expressions, code, MinKey and
// MaxKey.
var brackets = []bracket{
	{number, []bson.Type{bson.TypeDouble, bson.TypeInt32, bson.TypeInt64, bson.TypeDecimal128}},
	{"string", []bson.Type{bson.TypeString, bson.TypeSymbol}},
	{"object", []bson.Type{bson.TypeEmbeddedDocument}},
	{"binData", []bson.Type{bson.TypeBinary}},
	{"objectId", []bson.Type{bson.TypeObjectID}},
	{"bool", []bson.Type{bson.TypeBoolean}},
	{"date", []bson.Type{bson.TypeDateTime}},
	{"timestamp", []bson.Type{bson.TypeTimestamp}},
}

func bracketOf(t bson.Type) (bracket, bool) {
	for _, b := range brackets {
		if slices.Contains(b.types, t) {
			return b, true
		}
	}
	return bracket{}, false
}

// Of returns the piece of all values of a bracket: of the types that a filter compares with t.
// It returns false if t is in none.
func Of(t bson.Type) (Piece, bool) {
	b, ok := bracketOf(t)
	return Piece{bracket: b.name}, ok
}

// From returns the piece of the values of a bracket from v on. It returns false for a value
// that a filter cannot begin at.
func From(v bson.RawValue) (Piece, bool) {
	p, ok := Of(v.Type)
	p.from = v
	return p, ok && !isNaN(v)
}

func bracketNamed(name string) (bracket, bool) {
	i := slices.IndexFunc(brackets, func(b bracket) bool { return b.name == name })
	if i < 0 {
		return bracket{}, false
	}
	return brackets[i], true
}

// Piece is a part of a collection that one filter on _id selects: a bracket, or the
// part of it from `from` (inclusive) to `to` (exclusive); or, if bracket is empty,
// everything that is in none of the brackets in except.
type Piece struct {
	bracket  string
	from, to bson.RawValue // Type 0 means no bound
	except   []string
}

// All returns the pieces of a whole collection.
func All() []Piece {
	list := make([]Piece, 0, len(brackets)+1)
	var names []string
	for _, b := range brackets {
		list = append(list, Piece{bracket: b.name})
		names = append(names, b.name)
	}
	return append(list, Piece{except: names})
}

// Buckets returns those of a collection of buckets, which is ordered by _id, an
// ObjectId, and may have no index.
func Buckets() []Piece {
	return []Piece{{bracket: "objectId"}, {except: []string{"objectId"}}}
}

// Cut cuts a collection at values of its _ids, which are in the order of the
// index. The parts together have every document exactly once, whatever the values.
// Values at which it cannot cut are skipped. Each part is the pieces of one range.
func Cut(cuts []bson.RawValue) [][]Piece {
	var ranges [][]Piece
	var cut []string
	for _, b := range brackets {
		var from bson.RawValue
		for _, v := range cuts {
			if in, ok := bracketOf(v.Type); !ok || in.name != b.name || isNaN(v) || v.Type == bson.TypeBoolean {
				continue
			}
			ranges = append(ranges, []Piece{{bracket: b.name, from: from, to: v}})
			from = v
		}
		if from.Type != 0 {
			ranges = append(ranges, []Piece{{bracket: b.name, from: from}})
			cut = append(cut, b.name)
		}
	}
	if len(cut) == 0 {
		return [][]Piece{nil}
	}
	// One range for all brackets without samples.
	rest := slices.DeleteFunc(All(), func(p Piece) bool { return slices.Contains(cut, p.bracket) })
	return append(ranges, rest)
}

// isNaN reports whether a value is a NaN of any type.
func isNaN(v bson.RawValue) bool {
	switch v.Type {
	case bson.TypeDouble:
		f, ok := v.DoubleOK()
		return ok && math.IsNaN(f)
	case bson.TypeDecimal128:
		d, ok := v.Decimal128OK()
		return ok && d.IsNaN()
	}
	return false
}

// Encode returns the piece as a document, which Parse reads.
func (p *Piece) Encode() bson.Raw {
	b := bsoncore.NewDocumentBuilder()
	if p.bracket == "" {
		list := bsoncore.NewArrayBuilder()
		for _, name := range p.except {
			list.AppendString(name)
		}
		return bson.Raw(b.AppendArray("except", list.Build()).Build())
	}
	b.AppendString("bracket", p.bracket)
	if p.from.Type != 0 {
		b.AppendValue("from", coreValue(p.from))
	}
	if p.to.Type != 0 {
		b.AppendValue("to", coreValue(p.to))
	}
	return bson.Raw(b.Build())
}

func coreValue(v bson.RawValue) bsoncore.Value {
	return bsoncore.Value{Type: bsoncore.Type(v.Type), Data: v.Value}
}

// Parse reads an array of encoded pieces. The pieces are not views of it.
func Parse(e *rawbson.Elem) ([]Piece, error) {
	array, ok := e.Array()
	if !ok {
		return nil, errors.New("its pieces are no array")
	}
	var list []Piece
	it := rawbson.NewIter(array)
	for it.Next() {
		doc, ok := it.Document()
		if !ok {
			return nil, errors.New("a piece is no document")
		}
		p, err := parsePiece(doc)
		if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	return list, it.Err()
}

func parsePiece(doc bson.Raw) (Piece, error) {
	var p Piece
	it := rawbson.NewIter(doc)
	for it.Next() {
		switch it.Name() {
		case "bracket":
			name, _ := it.Text()
			b, ok := bracketNamed(name)
			if !ok {
				return Piece{}, fmt.Errorf("no types are called %q", name)
			}
			p.bracket = b.name
		case "from":
			p.from = bson.RawValue{Type: it.Type, Value: slices.Clone(it.Value)}
		case "to":
			p.to = bson.RawValue{Type: it.Type, Value: slices.Clone(it.Value)}
		case "except":
			array, _ := it.Array()
			names := rawbson.NewIter(array)
			for names.Next() {
				name, _ := names.Text()
				b, ok := bracketNamed(name)
				if !ok {
					return Piece{}, fmt.Errorf("no types are called %q", name)
				}
				p.except = append(p.except, b.name)
			}
			if names.Err() != nil {
				return Piece{}, names.Err()
			}
		}
	}
	if it.Err() == nil && p.bracket == "" && len(p.except) == 0 {
		return Piece{}, errors.New("a piece is of no types")
	}
	return p, it.Err()
}

// Resumable reports whether a scan of the piece can resume after a value.
func (p *Piece) Resumable() bool { return p.bracket != "" }

// AppendFilter appends the element filter of a find for the documents of the piece after last,
// or for all of them if last has no Type.
func (p *Piece) AppendFilter(dst []byte, last bson.RawValue) []byte {
	f, dst := bsoncore.AppendDocumentElementStart(dst, "filter")
	if p.bracket == "" {
		var types []bson.Type
		for _, name := range p.except {
			b, _ := bracketNamed(name)
			types = append(types, b.types...)
		}
		i, dst := bsoncore.AppendDocumentElementStart(dst, "_id")
		return closeDocument(closeDocument(appendType(dst, otherThan(types)), i), f)
	}
	i, dst := bsoncore.AppendDocumentElementStart(dst, "_id")
	switch {
	case last.Type != 0 && isNaN(last):
		// NaN is the first number, and all NaNs are equal.
		dst = p.appendType(dst)
		dst = bsoncore.AppendValueElement(dst, "$ne", coreValue(last))
	case last.Type != 0:
		dst = bsoncore.AppendValueElement(dst, "$gt", coreValue(last))
	case p.from.Type != 0:
		dst = bsoncore.AppendValueElement(dst, "$gte", coreValue(p.from))
	default:
		dst = p.appendType(dst)
	}
	switch {
	case p.to.Type == 0:
	case p.bracket == number && p.from.Type == 0:
		// Negated, as NaN is not below any number.
		n, d := bsoncore.AppendDocumentElementStart(dst, "$not")
		dst = closeDocument(bsoncore.AppendValueElement(d, "$gte", coreValue(p.to)), n)
	default:
		dst = bsoncore.AppendValueElement(dst, "$lt", coreValue(p.to))
	}
	return closeDocument(closeDocument(dst, i), f)
}

// idTypes are all types that an _id may have: a server accepts no array.
var idTypes = []bson.Type{
	bson.TypeMinKey, bson.TypeUndefined, bson.TypeNull, bson.TypeDouble, bson.TypeInt32, bson.TypeInt64, bson.TypeDecimal128,
	bson.TypeSymbol, bson.TypeString, bson.TypeEmbeddedDocument, bson.TypeBinary, bson.TypeObjectID, bson.TypeBoolean,
	bson.TypeDateTime, bson.TypeTimestamp, bson.TypeRegex, bson.TypeDBPointer, bson.TypeJavaScript, bson.TypeCodeWithScope, bson.TypeMaxKey,
}

// otherThan returns the other types of _ids. To ask for those, in place of none of the given
// ones, lets a server read just them from the index: it has no bounds for "not of a type",
// and would fetch every document of the collection. An array among them would have the same effect.
func otherThan(types []bson.Type) []bson.Type {
	return slices.DeleteFunc(slices.Clone(idTypes), func(t bson.Type) bool { return slices.Contains(types, t) })
}

func (p *Piece) appendType(dst []byte) []byte {
	b, _ := bracketNamed(p.bracket)
	return appendType(dst, b.types)
}

func appendType(dst []byte, types []bson.Type) []byte {
	list := bsoncore.NewArrayBuilder()
	for _, t := range types {
		list.AppendInt32(int32(int8(t))) // MinKey is -1
	}
	return bsoncore.AppendArrayElement(dst, "$type", list.Build())
}

func closeDocument(dst []byte, at int32) []byte {
	dst, _ = bsoncore.AppendDocumentEnd(dst, at)
	return dst
}
