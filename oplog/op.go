package oplog

import (
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// Op is one operation on one namespace. Its fields are views into the entry
// that it was parsed from.
type Op struct {
	// OpTime is the optime of the entry that contains the operation. For the
	// operations of a transaction, package txn sets it to the optime at which it took
	// effect.
	OpTime OpTime
	// Kind is never zero in a parsed operation.
	Kind Kind
	// Command is set for KindCommand only.
	Command Command
	// Upsert is the field b: the update inserts if the document is missing.
	Upsert bool
	// FromMigrate marks writes of a chunk migration between shards.
	FromMigrate bool
	// NS is the collection, or DB.$cmd for a command. A dbCheck batch has the
	// collection too.
	NS Namespace
	// UI is the collection's UUID, zero if the entry has none.
	UI UUID
	// O is the payload: the new document (insert), the change (update), the
	// document's key (delete), the command, or a note (noop).
	O bson.Raw
	// O2 is the key of the document that an update changes; for some commands, the
	// previous state. It is nil if the entry has none.
	O2 bson.Raw
	// ID is the _id of the document that a CRUD operation writes.
	ID bson.RawValue
}

// Clone returns a copy that has no views into other memory.
func (o *Op) Clone() Op {
	c := *o
	c.NS = o.NS.Clone()
	c.O, c.O2, c.ID.Value = slices.Clone(o.O), slices.Clone(o.O2), slices.Clone(o.ID.Value)
	return c
}

// field reads the fields that entries and elements of applyOps share. It reports
// whether it knows the field.
func (o *Op) field(f *rawbson.Elem, seen *fields) (known bool, err error) {
	var bit fields
	ok := true
	switch f.Name() {
	case "op":
		bit = fieldOp
		var name string
		if name, ok = f.Text(); ok {
			var isKind bool
			if o.Kind, isKind = kindOf(name); !isKind {
				return true, o.Fault("op", fmt.Errorf("%w %s", ErrUnknownOp, quoted(name)))
			}
		}
	case "ns":
		bit = fieldNS
		var ns string
		ns, ok = f.Text()
		o.NS = Namespace(ns)
	case "ui":
		bit = fieldUI
		o.UI, ok = uuidOf(f)
	case "o":
		bit = fieldO
		o.O, ok = f.Document()
	case "o2":
		bit = fieldO2
		o.O2, ok = f.Document()
	case "b":
		bit = fieldB
		o.Upsert, ok = f.Bool()
	case "fromMigrate":
		bit = fieldFromMigrate
		o.FromMigrate, ok = f.Bool()
	case "v":
		bit = fieldV
		version, isWhole := f.Int64()
		if !isWhole || version != 2 {
			return true, o.Fault("v", fmt.Errorf("%w: it is %s", ErrVersion, describe(f)))
		}
	case "tid":
		// A tenant's namespaces cannot be interpreted without the tenant.
		return true, o.Fault("tid", fmt.Errorf("%w: the source is a multitenant server", ErrUnsupported))
	default:
		return false, nil
	}
	if !ok {
		return true, o.bad(f.Name(), "it is %s", describe(f))
	}
	return true, seen.add(bit, o, f)
}

// check checks that the operation has the fields that its kind requires, and finds
// the _id and the command's name.
func (o *Op) check(seen fields) error {
	switch {
	case seen&fieldOp == 0:
		return o.missing("op")
	case seen&fieldNS == 0:
		return o.missing("ns")
	case seen&fieldO == 0:
		return o.missing("o")
	}
	switch o.Kind {
	case KindNoop:
		return nil
	case KindCommand:
		return o.checkCommand()
	case KindUpdate:
		if seen&fieldO2 == 0 {
			return o.missing("o2")
		}
		return o.checkCRUD("o2", o.O2)
	default:
		return o.checkCRUD("o", o.O)
	}
}

func (o *Op) checkCRUD(keyField string, key bson.Raw) error {
	if !o.NS.IsCollection() || o.NS.IsCommand() {
		return o.bad("ns", "%s is no collection", quoted(string(o.NS)))
	}
	it := rawbson.NewIter(key)
	for it.Next() {
		if it.Is("_id") {
			o.ID = it.Raw()
			return nil
		}
	}
	if err := it.Err(); err != nil {
		return o.corrupt(keyField, err)
	}
	return o.missing(keyField + "._id")
}

// checkCommand finds the command's name. Commands are logged at DB.$cmd, except for
// dbCheck batches, which are logged at the collection (_logOp in dbcheck.cpp, from
// 4.4 to 8.0).
func (o *Op) checkCommand() error {
	it := rawbson.NewIter(o.O)
	if !it.Next() {
		if err := it.Err(); err != nil {
			return o.corrupt("o", err)
		}
		return o.bad("o", "a command without a name")
	}
	var ok bool
	if o.Command, ok = commandOf(it.Name()); !ok {
		return o.Fault("o", fmt.Errorf("%w %s", ErrUnknownCommand, quoted(it.Name())))
	}
	if !o.NS.IsCommand() && (o.Command != CommandDBCheck || !o.NS.IsCollection()) {
		return o.bad("ns", "%s is not where commands are logged", quoted(string(o.NS)))
	}
	return nil
}

// fields is the set of fields seen so far.
type fields uint32

const (
	fieldOp fields = 1 << iota
	fieldNS
	fieldUI
	fieldO
	fieldO2
	fieldB
	fieldFromMigrate
	fieldV
	fieldTS
	fieldT
	fieldWall
	fieldLSID
	fieldTxnNumber
	fieldStmtID
	fieldPrevOpTime
	fieldMultiOpType
)

// add records a field. The server writes each once, so a second one means that the
// entry cannot be trusted.
func (s *fields) add(bit fields, o *Op, f *rawbson.Elem) error {
	if *s&bit != 0 {
		return o.bad(f.Name(), "it is there twice")
	}
	*s |= bit
	return nil
}

func uuidOf(f *rawbson.Elem) (UUID, bool) {
	subtype, data, ok := f.Binary()
	if !ok || subtype != bson.TypeBinaryUUID || len(data) != len(UUID{}) {
		return UUID{}, false
	}
	return UUID(data), true
}
