package pipeline

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// StartAt says where a new link begins to read.
type StartAt struct {
	// Timestamp is the last point in time that the target already has: the link
	// begins after the newest entry that is not later. Zero means now.
	Timestamp bson.Timestamp
}

// startPoint is a pair that a new link can begin with.
type startPoint struct {
	applied   oplog.OpTime
	wall      int64 // milliseconds since the epoch
	fetchFrom oplog.OpTime
}

// ErrStartTooOld is a start that the source's oplog no longer reaches.
var ErrStartTooOld = errors.New("the source's oplog begins later")

// resolveStart finds where a new link begins.
//
// For now, the order is that of the server's own initial sync: the newest entry,
// then the oldest open transaction, then the newest entry again. A transaction
// that ends between the second and the third step began after the first, or is
// seen in the second; so reading from the earlier of the first two shows all of
// whatever commits after the third.
func resolveStart(ctx context.Context, source mongo.Caller, at StartAt) (startPoint, error) {
	if at.Timestamp.T != 0 {
		p, err := newestEntry(ctx, source, &at.Timestamp)
		if err != nil {
			return startPoint{}, fmt.Errorf("find the entry to start after: %w", err)
		}
		p.fetchFrom = p.applied
		return p, nil
	}
	first, err := newestEntry(ctx, source, nil)
	if err != nil {
		return startPoint{}, fmt.Errorf("find the newest entry of the source: %w", err)
	}
	open, found, err := oldestTransaction(ctx, source)
	if err != nil {
		return startPoint{}, fmt.Errorf("find the oldest open transaction of the source: %w", err)
	}
	p, err := newestEntry(ctx, source, nil)
	if err != nil {
		return startPoint{}, fmt.Errorf("find the newest entry of the source: %w", err)
	}
	p.fetchFrom = first.applied
	if found && open.Before(p.fetchFrom) {
		p.fetchFrom = open
	}
	return p, nil
}

// newestEntry returns the newest entry that a majority has, of those not later
// than limit.
func newestEntry(ctx context.Context, source mongo.Caller, limit *bson.Timestamp) (startPoint, error) {
	filter := bson.D{}
	if limit != nil {
		filter = bson.D{{Key: "ts", Value: bson.D{{Key: "$lte", Value: *limit}}}}
	}
	docs, err := find(ctx, source, "local", bson.D{
		{Key: "find", Value: "oplog.rs"},
		{Key: "filter", Value: filter},
		{Key: "sort", Value: bson.D{{Key: "$natural", Value: int32(-1)}}},
		{Key: "projection", Value: bson.D{{Key: "ts", Value: 1}, {Key: "t", Value: 1}, {Key: "wall", Value: 1}}},
		{Key: "limit", Value: int32(1)},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}}},
	})
	if err != nil {
		return startPoint{}, err
	}
	if len(docs) == 0 {
		return startPoint{}, ErrStartTooOld
	}
	return readPoint(docs[0])
}

// entryAt returns the entry with this timestamp, false if there is none.
func entryAt(ctx context.Context, source mongo.Caller, ts bson.Timestamp) (bson.Raw, bool, error) {
	docs, err := find(ctx, source, "local", bson.D{
		{Key: "find", Value: "oplog.rs"},
		{Key: "filter", Value: bson.D{{Key: "ts", Value: bson.D{{Key: "$gte", Value: ts}, {Key: "$lte", Value: ts}}}}},
		{Key: "limit", Value: int32(1)},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}}},
	})
	if err != nil || len(docs) == 0 {
		return nil, false, err
	}
	return docs[0], true, nil
}

// chainStart follows a chain of entries back from the one at prev to its first.
func chainStart(ctx context.Context, source mongo.Caller, prev oplog.OpTime) (oplog.OpTime, error) {
	for {
		raw, found, err := entryAt(ctx, source, prev.TS)
		if err != nil {
			return oplog.OpTime{}, fmt.Errorf("follow a transaction back to %s: %w", prev, err)
		}
		if !found {
			return oplog.OpTime{}, fmt.Errorf("follow a transaction back to %s: %w", prev, ErrStartTooOld)
		}
		e, err := oplog.ParseEntry(raw)
		if err != nil {
			return oplog.OpTime{}, fmt.Errorf("follow a transaction back to %s: %w", prev, err)
		}
		if !e.HasPrevOpTime || e.PrevOpTime.IsNull() {
			return e.OpTime, nil
		}
		prev = e.PrevOpTime
	}
}

func oldestTransaction(ctx context.Context, source mongo.Caller) (oplog.OpTime, bool, error) {
	docs, err := find(ctx, source, "config", bson.D{
		{Key: "find", Value: "transactions"},
		{Key: "filter", Value: bson.D{{Key: "state", Value: bson.D{{Key: "$in", Value: bson.A{"prepared", "inProgress"}}}}}},
		{Key: "sort", Value: bson.D{{Key: "startOpTime", Value: 1}}},
		{Key: "limit", Value: int32(1)},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "local"}}},
	})
	if err != nil || len(docs) == 0 {
		return oplog.OpTime{}, false, err
	}
	start, ok := docs[0].Lookup("startOpTime").DocumentOK()
	if !ok {
		return oplog.OpTime{}, false, nil
	}
	p, err := readPoint(start)
	return p.applied, err == nil, err
}

func readPoint(doc bson.Raw) (startPoint, error) {
	t, i, ok := doc.Lookup("ts").TimestampOK()
	if !ok {
		return startPoint{}, errors.New("read an optime: ts is missing or no timestamp")
	}
	p := startPoint{applied: oplog.OpTime{TS: bson.Timestamp{T: t, I: i}, Term: oplog.UninitializedTerm}}
	if term, ok := doc.Lookup("t").AsInt64OK(); ok {
		p.applied.Term = term
	}
	if wall, ok := doc.Lookup("wall").DateTimeOK(); ok {
		p.wall = wall
	}
	return p, nil
}

// find runs a find command that one reply answers.
func find(ctx context.Context, source mongo.Caller, db string, cmd bson.D) ([]bson.Raw, error) {
	body, err := bson.Marshal(cmd)
	if err != nil {
		return nil, fmt.Errorf("build a find: %w", err)
	}
	reply, err := source.Call(ctx, mongo.Command{DB: db, Body: body})
	if err != nil {
		return nil, err
	}
	batch, ok := reply.Lookup("cursor", "firstBatch").ArrayOK()
	if !ok {
		return nil, errors.New("read a reply to find: no cursor.firstBatch")
	}
	values, err := batch.Values()
	if err != nil {
		return nil, fmt.Errorf("read a reply to find: %w", err)
	}
	docs := make([]bson.Raw, 0, len(values))
	for _, v := range values {
		doc, ok := v.DocumentOK()
		if !ok {
			return nil, fmt.Errorf("read a reply to find: an element is %s", v.Type)
		}
		docs = append(docs, doc)
	}
	return docs, nil
}
