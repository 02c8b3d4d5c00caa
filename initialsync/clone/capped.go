package clone

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/initialsync/progress"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// Since identifies the documents inserted into a capped collection since the copy
// began.
type Since struct {
	// Newest is the record id of its newest document at some time after the beginning,
	// 0 if it had none: the result of Cloner.Newest.
	Newest int64
	// Has reports whether the oplog has an insert of an _id after the beginning. It
	// covers at least the inserts up to the time of Newest.
	Has func(id bson.RawValue) bool
}

// nothing is the end of an empty range: all record ids are greater.
const nothing = -1

// Newest returns the record id of the newest document of a capped collection, 0 if it
// has none. It returns ErrGone if the collection is gone.
func (c *Cloner) Newest(ctx context.Context, coll *progress.Collection) (int64, error) {
	newest := int64(0)
	err := c.backward(ctx, coll, 1, func(record int64, _ bson.RawValue) bool {
		newest = record
		return false
	})
	if err != nil {
		return 0, fmt.Errorf("clone %s (%s): find its newest document: %w", coll.NS, coll.UUID, goneAs(err))
	}
	return newest, nil
}

// oldest returns the end of the range of documents that were in a capped collection
// when the copy began.
//
// Record ids ascend in the order of insertion. So the documents that the oplog has
// inserted since then are at the end, after the newest document that it has not
// inserted. An older document with the same _id as an inserted one may be left out too:
// the oplog deletes it before it inserts the other one.
func (c *Cloner) oldest(ctx context.Context, coll *progress.Collection, since Since) (int64, error) {
	to := int64(nothing)
	if since.Newest == 0 {
		return to, nil
	}
	err := c.backward(ctx, coll, c.batch, func(record int64, id bson.RawValue) bool {
		if record > since.Newest || since.Has(id) {
			return true
		}
		to = record
		return false
	})
	if err != nil {
		return 0, fmt.Errorf("find the documents from before %s: %w", oplog.NewOpTime(c.cfg.After.T, c.cfg.After.I, 0), err)
	}
	return to, nil
}

// backward yields record ids and _ids, the newest first, until yield returns false. If
// the document to resume after was discarded, so were all before it: backward restarts
// from the newest.
func (c *Cloner) backward(ctx context.Context, coll *progress.Collection, batch int32, yield func(record int64, id bson.RawValue) bool) error {
	rd := newReader(c, coll, spec{order: natural}, place{})
	defer rd.closeCursor(ctx)
	return rd.persist(ctx, func() error {
		if rd.cursor == 0 {
			rd.seen = 0
		}
		for more := true; more; {
			var err error
			if more, err = rd.back(ctx, batch, yield); err != nil {
				return err
			}
		}
		return nil
	})
}

// back reads one reply, from the newest on. It returns false at the end.
func (r *reader) back(ctx context.Context, batch int32, yield func(record int64, id bson.RawValue) bool) (bool, error) {
	cmd := r.getMoreCommand()
	if r.cursor == 0 {
		start, body := find(r.coll.UUID)
		body = appendIDOnly(appendNatural(body, "hint", -1))
		body = bsoncore.AppendBooleanElement(body, "showRecordId", true)
		body = bsoncore.AppendInt32Element(body, "batchSize", batch)
		cmd = r.command(r.coll.NS.DB(), start, r.appendConcern(body, r.cfg.After))
	}
	reply, err := r.cfg.Source.Call(ctx, cmd)
	if err != nil {
		return false, err
	}
	cursor, err := parseCursor(reply)
	if err != nil {
		return false, err
	}
	r.cursor, r.name = cursor.id, cursor.ns.Collection()
	it := rawbson.NewIter(cursor.batch)
	for it.Next() {
		doc, _ := it.Document()
		at, _ := rawbson.Lookup(doc, recordField)
		record, ok := at.Int64()
		if !ok || at.Type != bson.TypeInt64 {
			return false, errNoRecord
		}
		id, _ := rawbson.Lookup(doc, idField)
		if !yield(record, id.Raw()) {
			return false, nil
		}
	}
	return r.cursor != 0, it.Err()
}
