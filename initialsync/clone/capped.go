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

// Since is what was inserted into a capped collection since the copy began.
type Since struct {
	// Newest is the record id of its newest document at some time after the
	// beginning, 0 where it had none: what Newest returned.
	Newest int64
	// Has reports whether the log has an insert of an _id after the beginning. It
	// knows at least of those up to the time of Newest.
	Has func(id bson.RawValue) bool
}

// nothing is the end of a range in which there is nothing: record ids are greater.
const nothing = -1

// Newest returns the record id of the newest document of a capped collection, 0
// where it has none. A collection that is gone is an ErrGone.
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

// oldest returns the end of the range that has what was in a capped collection when
// the copy began.
//
// Record ids ascend in the order of insertion. So what the log has inserted since
// then is at the end, and begins after the newest document that the log has not
// inserted. One that it has inserted, and that is an older one of the same _id all
// the same, may be left out with them: the log deletes it before it inserts the
// other one.
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
		return 0, fmt.Errorf("find what was there before %s: %w", oplog.NewOpTime(c.cfg.After.T, c.cfg.After.I, 0), err)
	}
	return to, nil
}

// backward yields record ids and _ids, the newest first, until yield returns false.
// A place that is lost was pushed out, and so was everything before it: it begins
// anew.
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

// back reads one reply in the order from the newest on. It is false at the end.
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
