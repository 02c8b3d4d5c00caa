package oplog

import (
	"fmt"
	"iter"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// ApplyOps is a group of operations in one entry: a transaction or a part of one, a
// client's applyOps command, or a batch of writes that the server logged together.
type ApplyOps struct {
	// Prepare marks the last part of a prepared transaction: it takes effect with a
	// later commitTransaction, or not at all.
	Prepare bool
	// PartialTxn marks a part that is followed by others.
	PartialTxn bool
	// Count is the number of operations in all parts; see HasCount.
	Count int64
	// HasCount distinguishes a zero from an absent count. Only the last of several
	// parts has one.
	HasCount bool
	// AlwaysUpsert makes updates insert if the document is missing: true unless the
	// command says otherwise. Transactions do not use it.
	AlwaysUpsert bool

	entry *Op
	array bson.Raw
}

// ApplyOps reads an applyOps command, without its operations.
func (o *Op) ApplyOps() (ApplyOps, error) {
	a := ApplyOps{AlwaysUpsert: true, entry: o}
	array := func(f *rawbson.Elem) bool {
		var ok bool
		a.array, ok = f.Array()
		return ok
	}
	err := o.payload(CommandApplyOps, array, func(f *rawbson.Elem) error {
		ok := true
		switch f.Name() {
		case "prepare":
			a.Prepare, ok = f.Bool()
		case "partialTxn":
			a.PartialTxn, ok = f.Bool()
		case "count":
			a.Count, ok = f.Int64()
			a.HasCount = true
		case "alwaysUpsert":
			a.AlwaysUpsert, ok = f.Bool()
		}
		if !ok {
			return o.bad("o."+f.Name(), "it is %s", describe(f))
		}
		return nil
	})
	if err == nil && a.Prepare && a.PartialTxn {
		err = o.bad("o", "an applyOps that is prepared and partial at once")
	}
	return a, err
}

// Size returns the size of the operations in bytes.
func (a *ApplyOps) Size() int { return len(a.array) }

// Ops yields the operations in order, each with the optime of the entry. The first
// operation that cannot be read ends the sequence, with its error. A nested
// applyOps is yielded as it is.
func (a *ApplyOps) Ops() iter.Seq2[Op, error] {
	return func(yield func(Op, error) bool) {
		it := rawbson.NewIter(a.array)
		for n := 0; it.Next(); n++ {
			op := Op{OpTime: a.entry.OpTime}
			err := op.parse(&it.Elem)
			if f, ok := err.(*EntryError); ok { //nolint:errorlint // made by parse and never wrapped
				err = f.Within("o.applyOps." + strconv.Itoa(n))
			}
			if !yield(op, err) || err != nil {
				return
			}
		}
		if err := it.Err(); err != nil {
			yield(Op{}, a.entry.corrupt("o.applyOps", err))
		}
	}
}

// parse reads one element of an applyOps.
func (o *Op) parse(f *rawbson.Elem) error {
	doc, ok := f.Document()
	if !ok {
		return o.bad("", "it is %s", describe(f))
	}
	var seen fields
	it := rawbson.NewIter(doc)
	for it.Next() {
		if _, err := o.field(&it.Elem, &seen); err != nil {
			return err
		}
	}
	if err := it.Err(); err != nil {
		return o.corrupt("", err)
	}
	return o.check(seen)
}

// CommitTimestamp reads a commitTransaction command: the timestamp as of which
// the prepared transaction is visible.
func (o *Op) CommitTimestamp() (bson.Timestamp, error) {
	var ts bson.Timestamp
	var has bool
	err := o.payload(CommandCommitTransaction, func(*rawbson.Elem) bool { return true }, func(f *rawbson.Elem) error {
		if !f.Is("commitTimestamp") {
			return nil
		}
		if ts, has = f.Timestamp(); !has {
			return o.bad("o.commitTimestamp", "it is %s", describe(f))
		}
		return nil
	})
	if err == nil && !has {
		err = o.missing("o.commitTimestamp")
	}
	return ts, err
}

// ImportError returns the error that refuses an importCollection command: it adds
// data files that are not in the log, so the collection has to be copied again.
func (o *Op) ImportError() error {
	return o.Fault("o", fmt.Errorf("%w: %s brings in data that are not in the oplog; copy the collection again", ErrUnsupported, o.Command))
}
