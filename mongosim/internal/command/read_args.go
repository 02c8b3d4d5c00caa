package command

import (
	"math"
	"math/big"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// argReader reads the arguments of a command whose name in messages it knows.
type argReader string

// wrong is the refusal of an argument's type.
func (a argReader) wrong(e *rawbson.Elem, want ...string) error {
	expected := "expected type '" + want[0] + "'"
	if len(want) > 1 { // the server misplaces the bracket
		expected = "expected types '[" + strings.Join(want, ", ") + "']"
	}
	return servererr.New(servererr.TypeMismatch, "BSON field '%s.%s' is the wrong type '%s', %s",
		string(a), e.Name(), bsontext.TypeName(e.Type), expected)
}

// bool reads a flag, which may be a number too.
func (a argReader) bool(e *rawbson.Elem, into *bool) error {
	if b, ok := e.Bool(); ok {
		*into = b
		return nil
	}
	n, ok := numberArg(e)
	if !ok {
		return a.wrong(e, "bool", "long", "int", "decimal", "double")
	}
	*into = n != 0
	return nil
}

// long reads a whole number; what is behind a point is cut off.
func (a argReader) long(e *rawbson.Elem, into *int64) error {
	n, ok := numberArg(e)
	if !ok {
		return a.wrong(e, "long", "int", "decimal", "double")
	}
	*into = n
	return nil
}

// count reads a number that must not be negative.
func (a argReader) count(e *rawbson.Elem, into *int64) error {
	if err := a.long(e, into); err != nil {
		return err
	}
	if *into < 0 {
		return servererr.New(servererr.Code(51024),
			"BSON field '%s' value must be >= 0, actual value '%d'", e.Name(), *into)
	}
	return nil
}

// object reads a document.
func (a argReader) object(e *rawbson.Elem, into *bson.Raw) error {
	doc, ok := e.Document()
	if !ok {
		return a.wrong(e, "object")
	}
	*into = doc
	return nil
}

// ownedObject reads a document of a find, which has a message of its own.
func ownedObject(e *rawbson.Elem, into *bson.Raw) error {
	doc, ok := e.Document()
	if !ok {
		return servererr.New(servererr.TypeMismatch, "Expected field %sto be of type object", e.Name())
	}
	*into = doc
	return nil
}

// text reads a string.
func (a argReader) text(e *rawbson.Elem, into *string) error {
	s, ok := e.Text()
	if !ok {
		return a.wrong(e, "string")
	}
	*into = strings.Clone(s)
	return nil
}

// each calls take for every argument behind the command's name that is not null.
func eachArg(cmd bson.Raw, take func(e *rawbson.Elem) error) error {
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

// numberArg converts any number to a whole one as the server does: cut off, and
// held at the limits of 64 bits.
func numberArg(e *rawbson.Elem) (int64, bool) {
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

// parseOpTimeArg reads {ts, t}.
func (a argReader) opTime(e *rawbson.Elem) (oplog.OpTime, error) {
	doc, ok := e.Document()
	if !ok {
		return oplog.OpTime{}, a.wrong(e, "object")
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

// batchSizeOf reads the argument cursor: {batchSize: n}; -1 if it does not say.
func (a argReader) batchSizeOf(e *rawbson.Elem) (int64, error) {
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
		if err := a.count(&it.Elem, &n); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// firstElem is the command's first argument, which carries its name.
func firstElem(cmd bson.Raw) rawbson.Elem {
	it := rawbson.NewIter(cmd)
	it.Next()
	return it.Elem
}

// mayOn is the check of commands that name a collection, or its UUID, first.
func mayOn(action string) func(r *request) error {
	return func(r *request) error {
		e := firstElem(r.cmd)
		if subtype, data, ok := e.Binary(); ok {
			return r.allowedOnUUID(action, subtype, data)
		}
		coll, _ := e.Text()
		return r.allowed(action, r.db, coll)
	}
}

// allowedOnUUID asks for the use of UUIDs, and for the action on the collection that
// has this one.
func (r *request) allowedOnUUID(action string, subtype byte, data []byte) error {
	if err := r.allowed("useUUID", "", ""); err != nil {
		return err
	}
	var u oplog.UUID
	if r.srv.cfg.Auth == nil || r.conn.Internal || subtype != bson.TypeBinaryUUID || copy(u[:], data) != len(u) {
		return nil // what it is not, the command itself says
	}
	var ns oplog.Namespace
	err := r.srv.cfg.Store.Read(func(rd *storage.Reader) error {
		if coll, ok := rd.View(bson.Timestamp{}).ByUUID(u); ok {
			ns = coll.NS.Clone()
		}
		return nil
	})
	if err != nil || ns == "" {
		return err
	}
	return r.allowed(action, ns.DB(), ns.Collection())
}
