package inventory

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// InsertLog is a Log that also yields documents: *spool.Spool.
type InsertLog interface {
	Log
	// Inserts is like Commands, for entries that are inserts or commands: the latter
	// include groups of operations.
	Inserts(ctx context.Context, after oplog.OpTime, until bson.Timestamp, yield func(*oplog.Entry) error) error
}

// IDs is a set of _ids, by their bytes.
type IDs map[string]struct{}

func idKey(id bson.RawValue) string { return string(append([]byte{byte(id.Type)}, id.Value...)) }

// Add adds an _id.
func (s IDs) Add(id bson.RawValue) { s[idKey(id)] = struct{}{} }

// Has reports whether an _id is in the set.
func (s IDs) Has(id bson.RawValue) bool {
	_, ok := s[idKey(id)]
	return ok
}

// Inserted returns, for each of some collections, the _ids of all documents that the
// oplog inserted into it after begin: at least those that the member has shown to any
// reader before the call.
//
// An insert and its entry are one write of the member's storage, and a backward read of
// the oplog shows the entries that are there, despite earlier oplog holes. So the
// newest entry that is read now is not before that of any document that was read
// earlier.
func Inserted(ctx context.Context, member mongo.Caller, log InsertLog, begin oplog.OpTime, colls []oplog.UUID) (map[oplog.UUID]IDs, error) {
	all := make(map[oplog.UUID]IDs, len(colls))
	for _, id := range colls {
		all[id] = IDs{}
	}
	if len(all) == 0 {
		return all, nil
	}
	s := newSource(member)
	until, err := s.present(ctx)
	s.end(ctx)
	if err != nil {
		return nil, err
	}
	if err := log.WaitFor(ctx, until); err != nil {
		return nil, fmt.Errorf("await the log up to %d:%d: %w", until.T, until.I, err)
	}
	everything := oplog.OpTime{}
	err = log.Inserts(ctx, everything, until, func(e *oplog.Entry) error {
		if !e.OpTime.After(begin) {
			return nil
		}
		return insertsOf(&e.Op, all, 0)
	})
	if err != nil {
		return nil, fmt.Errorf("read the log's inserts after %s: %w", begin, err)
	}
	return all, nil
}

// insertsOf adds the _id of an insert, or those of a group of operations. Whether the
// group takes effect does not matter: an additional _id does no harm.
func insertsOf(op *oplog.Op, all map[oplog.UUID]IDs, depth int) error {
	switch {
	case op.Kind == oplog.KindInsert:
		if ids, ok := all[op.UI]; ok {
			ids.Add(op.ID)
		}
	case op.Kind == oplog.KindCommand && op.Command == oplog.CommandApplyOps:
		if depth == maxNested {
			return op.Fault("o", errNested)
		}
		group, err := op.ApplyOps()
		if err != nil {
			return err
		}
		for inner, err := range group.Ops() {
			if err == nil {
				err = insertsOf(&inner, all, depth+1)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}
