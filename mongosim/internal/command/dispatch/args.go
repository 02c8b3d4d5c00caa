package dispatch

import (
	"math"
	"math/big"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// ArgReader reads the arguments of a command whose name in messages it knows.
type ArgReader string

// Wrong is the refusal of an argument's type.
func (a ArgReader) Wrong(e *rawbson.Elem, want ...string) error {
	expected := "expected type '" + want[0] + "'"
	if len(want) > 1 { // the server misplaces the bracket
		expected = "expected types '[" + strings.Join(want, ", ") + "']"
	}
	return servererr.New(servererr.TypeMismatch, "BSON field '%s.%s' is the wrong type '%s', %s",
		string(a), e.Name(), bsontext.TypeName(e.Type), expected)
}

// Bool reads a flag, which may be a number too.
func (a ArgReader) Bool(e *rawbson.Elem, into *bool) error {
	if b, ok := e.Bool(); ok {
		*into = b
		return nil
	}
	n, ok := NumberArg(e)
	if !ok {
		return a.Wrong(e, "bool", "long", "int", "decimal", "double")
	}
	*into = n != 0
	return nil
}

// Long reads a whole number; a fraction is cut off.
func (a ArgReader) Long(e *rawbson.Elem, into *int64) error {
	n, ok := NumberArg(e)
	if !ok {
		return a.Wrong(e, "long", "int", "decimal", "double")
	}
	*into = n
	return nil
}

// Count reads a number that must not be negative.
func (a ArgReader) Count(e *rawbson.Elem, into *int64) error {
	if err := a.Long(e, into); err != nil {
		return err
	}
	if *into < 0 {
		return servererr.New(servererr.Code(51024),
			"BSON field '%s' value must be >= 0, actual value '%d'", e.Name(), *into)
	}
	return nil
}

// Object reads a document.
func (a ArgReader) Object(e *rawbson.Elem, into *bson.Raw) error {
	doc, ok := e.Document()
	if !ok {
		return a.Wrong(e, "object")
	}
	*into = doc
	return nil
}

// OwnedObject reads a document of a find, which has a message of its own.
func OwnedObject(e *rawbson.Elem, into *bson.Raw) error {
	doc, ok := e.Document()
	if !ok {
		return servererr.New(servererr.TypeMismatch, "Expected field %sto be of type object", e.Name())
	}
	*into = doc
	return nil
}

// Text reads a string.
func (a ArgReader) Text(e *rawbson.Elem, into *string) error {
	s, ok := e.Text()
	if !ok {
		return a.Wrong(e, "string")
	}
	*into = strings.Clone(s)
	return nil
}

// EachArg calls take for every argument after the command's name that is not null.
func EachArg(cmd bson.Raw, take func(e *rawbson.Elem) error) error {
	it := rawbson.NewIter(cmd)
	for first := true; it.Next(); first = false {
		if first || it.Type == bson.TypeNull || it.Type == bson.TypeUndefined {
			continue
		}
		if err := take(&it.Elem); err != nil {
			return err
		}
	}
	if err := it.Err(); err != nil {
		return servererr.New(servererr.InvalidBSON, "read the command's arguments: %s", err)
	}
	return nil
}

// NumberArg converts any number to a whole one as the server does: cut off, and
// limited to 64 bits.
func NumberArg(e *rawbson.Elem) (int64, bool) {
	switch e.Type {
	case bson.TypeInt32, bson.TypeInt64:
		return e.Int64()
	case bson.TypeDouble:
		f := e.Raw().Double()
		switch {
		case math.IsNaN(f):
			return 0, true
		case f >= math.MaxInt64:
			return math.MaxInt64, true
		case f <= math.MinInt64:
			return math.MinInt64, true
		}
		return int64(f), true
	case bson.TypeDecimal128:
		rat, ok := bsonorder.Finite(e.Raw())
		if !ok {
			return 0, true
		}
		n := new(big.Int).Quo(rat.Num(), rat.Denom())
		if !n.IsInt64() {
			if n.Sign() < 0 {
				return math.MinInt64, true
			}
			return math.MaxInt64, true
		}
		return n.Int64(), true
	default:
		return 0, false
	}
}

// OpTime reads {ts, t}.
func (a ArgReader) OpTime(e *rawbson.Elem) (oplog.OpTime, error) {
	doc, ok := e.Document()
	if !ok {
		return oplog.OpTime{}, a.Wrong(e, "object")
	}
	ts, hasTS := rawbson.Lookup(doc, "ts")
	t, hasTerm := rawbson.Lookup(doc, "t")
	stamp, okTS := ts.Timestamp()
	term, okTerm := int64(0), false
	if hasTerm {
		term, okTerm = t.Int64()
	}
	if !hasTS || !okTS || !okTerm {
		return oplog.OpTime{}, servererr.New(servererr.TypeMismatch, "BSON field '%s.%s' is no optime", string(a), e.Name())
	}
	return oplog.OpTime{TS: stamp, Term: term}, nil
}

// BatchSizeOf reads the argument cursor: {batchSize: n}; -1 if it is not given.
func (a ArgReader) BatchSizeOf(e *rawbson.Elem) (int64, error) {
	doc, ok := e.Document()
	if !ok {
		return 0, servererr.New(servererr.TypeMismatch, "cursor field must be missing or an object")
	}
	n := int64(-1)
	it := rawbson.NewIter(doc)
	for it.Next() {
		if !it.Is("batchSize") {
			return 0, servererr.New(servererr.Code(40415), "BSON field 'cursor.%s' is an unknown field.", it.Name())
		}
		if err := a.Count(&it.Elem, &n); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// FirstElem is the command's first argument, which carries its name.
func FirstElem(cmd bson.Raw) rawbson.Elem {
	it := rawbson.NewIter(cmd)
	it.Next()
	return it.Elem
}

// FlagOf reads an argument that is true if it is there and not false or 0.
func FlagOf(cmd bson.Raw, name string) bool {
	e, ok := rawbson.Lookup(cmd, name)
	return ok && e.Truth()
}
