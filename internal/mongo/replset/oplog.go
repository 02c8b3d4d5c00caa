package replset

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

var (
	// ErrEmptyOplog reports that a member's oplog has no entry.
	ErrEmptyOplog = errors.New("the oplog is empty")
	// ErrOpTime reports that a document has no valid optime.
	ErrOpTime = errors.New("unreadable optime")
	// ErrTooOld reports that an entry is older than the source's oplog.
	ErrTooOld = errors.New("the source's oplog begins after the start point")
)

// Entry is the optime and wall time of an oplog entry.
type Entry struct {
	OpTime oplog.OpTime
	// Wall is its wall time, in milliseconds since the epoch, 0 for none.
	Wall int64
}

// ReadEntry reads an entry, or another document that has an optime.
func ReadEntry(doc bson.Raw) (Entry, error) {
	e := Entry{OpTime: oplog.OpTime{Term: oplog.UninitializedTerm}} // entries of protocol version 0 have no term
	ts, found := rawbson.Lookup(doc, "ts")
	var ok bool
	switch e.OpTime.TS, ok = ts.Timestamp(); {
	case !found:
		return Entry{}, fmt.Errorf("%w: it has no timestamp", ErrOpTime)
	case !ok:
		return Entry{}, fmt.Errorf("%w: its ts is %s", ErrOpTime, ts.Type)
	case e.OpTime.IsNull():
		return Entry{}, fmt.Errorf("%w: its timestamp is null", ErrOpTime)
	}
	if term, found := rawbson.Lookup(doc, "t"); found {
		if e.OpTime.Term, ok = term.Int64(); !ok {
			return Entry{}, fmt.Errorf("%w: its term is %s", ErrOpTime, term.Type)
		}
	}
	wall, _ := rawbson.Lookup(doc, "wall")
	e.Wall, _ = wall.DateTime()
	return e, nil
}

// Oldest returns the find of the oldest entry.
func Oldest() Find { return optimes(document().AppendInt32("$natural", 1).Build()) }

// newest returns the find of the newest entry. It reads backwards, so a primary returns
// an entry before which there may still be oplog holes. A forward read would stop at
// them.
func newest(level Level) Find {
	f := optimes(document().AppendInt32("$natural", -1).Build())
	f.Level = level
	return f
}

// At returns the find of the entry with a timestamp. With both bounds in the filter the
// server seeks to it.
func At(ts bson.Timestamp) Find {
	bounds := document().AppendTimestamp("$gte", ts.T, ts.I).AppendTimestamp("$lte", ts.T, ts.I).Build()
	return Find{DB: "local", Collection: "oplog.rs", Filter: document().AppendDocument("ts", bounds).Build()}
}

func optimes(sort bsoncore.Document) Find {
	return Find{
		DB: "local", Collection: "oplog.rs", Sort: sort,
		Projection: document().AppendInt32("ts", 1).AppendInt32("t", 1).AppendInt32("wall", 1).Build(),
	}
}

// OldestEntry returns the member's oldest entry.
func OldestEntry(ctx context.Context, member mongo.Caller) (Entry, error) {
	return entry(ctx, member, Oldest(), "oldest")
}

// NewestEntry returns the member's newest entry at a read concern level.
func NewestEntry(ctx context.Context, member mongo.Caller, level Level) (Entry, error) {
	return entry(ctx, member, newest(level), "newest")
}

// NewestCommitted returns an entry that a majority has, at or after all that the member had when it was asked. NewestEntry at Majority may return one
// before a write that was confirmed: a primary that was just elected does not know at once what a majority has. So this waits until it knows.
func NewestCommitted(ctx context.Context, member mongo.Caller) (Entry, error) {
	has, err := NewestEntry(ctx, member, Local)
	if err != nil {
		return has, err
	}
	f := newest(Majority)
	f.After = has.OpTime.TS
	return entry(ctx, member, f, "newest")
}

func entry(ctx context.Context, member mongo.Caller, f Find, which string) (Entry, error) {
	_, doc, err := f.Run(ctx, member)
	var e Entry
	switch {
	case err != nil:
	case doc == nil:
		err = ErrEmptyOplog
	default:
		e, err = ReadEntry(doc)
	}
	if err != nil {
		return Entry{}, fmt.Errorf("read the %s entry: %w", which, err)
	}
	return e, nil
}

// oldestTransaction returns the optime of the first entry of the oldest transaction
// that has entries and has not ended, false if there is none.
func oldestTransaction(ctx context.Context, member mongo.Caller) (oplog.OpTime, bool, error) {
	states := bsoncore.NewArrayBuilder().AppendString("prepared").AppendString("inProgress").Build()
	f := Find{
		DB: "config", Collection: "transactions",
		Filter: document().AppendDocument("state", document().AppendArray("$in", states).Build()).Build(),
		Sort:   document().AppendInt32("startOpTime", 1).Build(),
		// With any afterClusterTime, the read waits for entries that are being written.
		After: bson.Timestamp{I: 1},
	}
	_, doc, err := f.Run(ctx, member)
	if err != nil || doc == nil {
		return oplog.OpTime{}, false, err
	}
	field, ok := rawbson.Lookup(doc, "startOpTime")
	if !ok {
		return oplog.OpTime{}, false, nil
	}
	start, ok := field.Document()
	if !ok {
		return oplog.OpTime{}, false, fmt.Errorf("its startOpTime is %s", field.Type)
	}
	e, err := ReadEntry(start)
	return e.OpTime, err == nil, err
}

// ChainStart follows a chain of entries back from the one at prev, and returns the
// optime of the first one.
func ChainStart(ctx context.Context, member mongo.Caller, prev oplog.OpTime) (oplog.OpTime, error) {
	for {
		e, err := chained(ctx, member, prev)
		if err != nil {
			return oplog.OpTime{}, fmt.Errorf("follow a transaction back to %s: %w", prev, err)
		}
		s := e.Session()
		if !s.HasPrevOpTime || s.PrevOpTime.IsNull() {
			return e.OpTime, nil
		}
		prev = s.PrevOpTime
	}
}

func chained(ctx context.Context, member mongo.Caller, at oplog.OpTime) (oplog.Entry, error) {
	f := At(at.TS)
	f.Level = Majority
	_, doc, err := f.Run(ctx, member)
	if err != nil {
		return oplog.Entry{}, err
	}
	if doc == nil {
		return oplog.Entry{}, ErrTooOld
	}
	return oplog.ParseEntry(doc)
}
