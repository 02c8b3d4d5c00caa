package request

import (
	"errors"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// StillDiffers begins the outcome of a Repair whose documents still differ at a later cut.
const StillDiffers = "still different"

// RepairArgs are the arguments of Repair: documents of a collection, or a range of them. An _id is
// the document {_id: …} as BSON, as replicator verify prints it (idBSON).
type RepairArgs struct {
	// Namespace is the collection, as the source names it.
	Namespace string   `json:"namespace"`
	IDs       [][]byte `json:"ids,omitempty"`
	// From and To are the first and the last _id of a range, both included.
	From []byte `json:"from,omitempty"`
	To   []byte `json:"to,omitempty"`
	// Target, if not empty, is the collection as the target names it: the request is refused if
	// the link has another name for it.
	Target string `json:"target,omitempty"`
}

// MostRepairBytes is how many bytes the arguments of one Repair may have.
const MostRepairBytes = mostArgs

// NS returns the collection.
func (a *RepairArgs) NS() oplog.Namespace { return oplog.Namespace(a.Namespace) }

// Values returns the _ids.
func (a *RepairArgs) Values() ([]bson.RawValue, error) {
	all := make([]bson.RawValue, 0, len(a.IDs))
	for i, doc := range a.IDs {
		v, err := ReadID(doc)
		if err != nil {
			return nil, fmt.Errorf("ids: number %d: %w", i, err)
		}
		all = append(all, v)
	}
	return all, nil
}

// Range returns the first and the last _id of a range, false if there is none.
func (a *RepairArgs) Range() (from, to bson.RawValue, is bool, err error) {
	if len(a.From) == 0 && len(a.To) == 0 {
		return from, to, false, nil
	}
	if from, err = ReadID(a.From); err != nil {
		return from, to, true, fmt.Errorf("from: %w", err)
	}
	if to, err = ReadID(a.To); err != nil {
		return from, to, true, fmt.Errorf("to: %w", err)
	}
	return from, to, true, nil
}

// AppendID returns an _id as in RepairArgs.
func AppendID(v bson.RawValue) []byte {
	return bsoncore.BuildDocument(nil, bsoncore.AppendValueElement(nil, "_id", bsoncore.Value{Type: bsoncore.Type(v.Type), Data: v.Value}))
}

// ReadID reads an _id of RepairArgs.
func ReadID(doc []byte) (bson.RawValue, error) {
	if err := rawbson.Validate(doc); err != nil {
		return bson.RawValue{}, fmt.Errorf("want the document {_id: …} as BSON in base64: %w", err)
	}
	it := rawbson.NewIter(doc)
	if !it.Next() || !it.Is("_id") {
		return bson.RawValue{}, errors.New("want the document {_id: …} as BSON in base64: it has another field")
	}
	v := it.Raw()
	switch v.Type {
	case bson.TypeRegex, bson.TypeArray, bson.TypeUndefined:
		return v, fmt.Errorf("no document has an _id of the type %s", v.Type)
	}
	if it.Next() {
		return v, errors.New("want the document {_id: …} as BSON in base64: it has more fields")
	}
	return v, nil
}

// Repair reads the arguments of a Repair.
func (r *Record) Repair() (a RepairArgs, err error) {
	if err := decode(r.Args, &a); err != nil {
		return a, err
	}
	if err := checkNamespace(a.Namespace); err != nil {
		return a, err
	}
	ids, err := a.Values()
	if err != nil {
		return a, err
	}
	_, _, is, err := a.Range()
	switch {
	case err != nil:
		return a, err
	case is == (len(ids) > 0):
		return a, errors.New("want either ids, or from and to; a whole collection is copied again by a request of the kind resync")
	}
	return a, nil
}

// checkNamespace checks the name of a collection of the source.
func checkNamespace(ns string) error {
	db, coll, _ := strings.Cut(ns, ".")
	switch {
	case db == "" || coll == "":
		return fmt.Errorf("%q is not of the form DB.COLLECTION", ns)
	case oplog.IsServerDB(db):
		return fmt.Errorf("%q belongs to the server", ns)
	}
	return nil
}
