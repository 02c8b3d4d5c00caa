package guard

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// ErrNotReached reports that an oplog does not reach back to where it is to be examined from.
var ErrNotReached = errors.New("the oplog does not reach back that far")

// Flushes is the filter of the entries that a link's lanes write, and of what every link writes all
// the time: flushes, whose first statement moves a lane, checkpoints of other links, and updates of
// their documents in the metadata. It does not match the entry but.
func Flushes(db, link string, lanes []bson.Raw, but oplog.OpTime) bson.Raw {
	ids := bsoncore.NewArrayBuilder()
	for _, lane := range lanes {
		_, id := lane.Lookup("id").Binary()
		ids.AppendBinary(bson.TypeBinaryUUID, id)
	}
	doc := bsoncore.NewDocumentBuilder
	another := doc().AppendString("$ne", link).Build()
	const first = "o.applyOps.0."
	some := bsoncore.NewArrayBuilder().
		AppendDocument(doc().AppendDocument("lsid.id", doc().AppendArray("$in", ids.Build()).Build()).Build()).
		AppendDocument(doc().AppendString("ns", "admin.$cmd").AppendString(first+"ns", db+"."+metadata.Lanes).Build()).
		AppendDocument(doc().AppendString("ns", "admin.$cmd").AppendString(first+"ns", db+"."+metadata.Links).
			AppendString(first+"op", "u").AppendDocument(first+"o2._id", another).Build()).
		AppendDocument(doc().AppendString("op", "u").
			AppendDocument("ns", doc().AppendString("$gte", db+".").AppendString("$lt", db+"/").Build()). // The slash follows the dot.
			AppendDocument("o2._id", another).Build()).
		Build()
	return bson.Raw(doc().
		AppendDocument("ts", doc().AppendTimestamp("$ne", but.TS.T, but.TS.I).Build()).
		AppendArray("$or", some).
		Build())
}

// errEnough ends Examine.
var errEnough = errors.New("enough is found")

// Examine examines the oplog of a set after the entry from.At, up to an entry that a majority has: for a time in
// which little but flushes was written. It returns the writes of that time
// that are foreign, and the state then. Without is the filter of the entries that are not read, nil
// for none. It ends once enough returns true for the writes found. The error wraps ErrNotReached if the oplog does not reach back to from.At.
func Examine(ctx context.Context, set mongo.Caller, cfg WatchConfig, from State, upTo oplog.OpTime, without bson.Raw, enough func(found []Write) bool) ([]Write, State, error) {
	if err := reaches(ctx, set, from.At); err != nil {
		return nil, from, fmt.Errorf("examine the oplog after %s: %w", from.At, err)
	}
	w := NewWatch(cfg, from)
	var found []Write
	var failed error
	see := func(docs []bson.Raw) error {
		for _, raw := range docs {
			var e oplog.Entry
			var writes []Write
			if failed = e.Parse(raw); failed == nil {
				writes, failed = w.See(ctx, &e)
			}
			if found = append(found, writes...); failed == nil && len(writes) > 0 && enough(found) {
				failed = errEnough
			}
			if failed != nil {
				return failed
			}
		}
		return nil
	}
	for {
		after := w.State().At
		err := mongo.Retry{}.ReadEach(ctx, opening{set, after}, "local", examining(after, upTo, without), see)
		switch {
		case err == nil, errors.Is(failed, errEnough):
			return found, w.State(), nil
		case failed != nil || !mongo.PassesRead(err) || w.State().At.Equal(after): // otherwise it continues after the last entry
			return nil, from, fmt.Errorf("examine the oplog after %s: %w", from.At, err)
		}
	}
}

// reaches returns ErrNotReached if an oplog does not reach back to an entry.
func reaches(ctx context.Context, set mongo.Caller, at oplog.OpTime) error {
	oldest, err := replset.OldestEntry(ctx, set)
	if err == nil && oplog.CompareTimestamps(oldest.OpTime.TS, at.TS) > 0 {
		err = fmt.Errorf("%w: it begins with %s", ErrNotReached, oldest.OpTime)
	}
	return err
}

// opening is a set whose oplog is read after an entry: once a cursor is open, the oplog must still reach back to it. Entries
// that were overwritten before that would be passed over. If entries are overwritten later, the cursor ends.
type opening struct {
	mongo.Caller
	after oplog.OpTime
}

// Call implements mongo.Caller.
func (o opening) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	reply, err := o.Caller.Call(ctx, cmd)
	if it := rawbson.NewIter(cmd.Body); err == nil && it.Next() && it.Is("find") {
		err = reaches(ctx, o.Caller, o.after)
	}
	return reply, err
}

// examining is the command that reads the entries after one, up to another one, without those that match a filter.
func examining(after, upTo oplog.OpTime, without bson.Raw) bson.Raw {
	doc := bsoncore.NewDocumentBuilder
	filter := doc().AppendDocument("ts", doc().AppendTimestamp("$gt", after.TS.T, after.TS.I).AppendTimestamp("$lte", upTo.TS.T, upTo.TS.I).Build())
	if without != nil {
		filter = filter.AppendArray("$nor", bsoncore.NewArrayBuilder().AppendDocument(bsoncore.Document(without)).Build())
	}
	return bson.Raw(doc().AppendString("find", "oplog.rs").AppendDocument("filter", filter.Build()).
		AppendDocument("readConcern", doc().AppendString("level", "majority").Build()).Build())
}
