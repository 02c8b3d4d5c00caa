package mongostore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/lease/locks"
)

// Store is a locks.Store in a database of a replica set.
type Store struct {
	target mongo.Caller
	db     string
}

// New returns a Store in the database db. Target runs commands on the primary, and must not
// retry.
func New(target mongo.Caller, db string) *Store { return &Store{target: target, db: db} }

// Open connects to a replica set with connections of its own. Close must be called with
// what it returns.
func Open(ctx context.Context, uri, db string) (store *Store, shut func(), err error) {
	options, err := driver.Parse(driver.Config{URI: uri, AppName: "replicator locks"})
	if err != nil {
		return nil, nil, fmt.Errorf("open the store of the locks: %w", err)
	}
	set, err := driver.Open(ctx, options)
	if err != nil {
		return nil, nil, fmt.Errorf("open the store of the locks: %w", err)
	}
	return New(set, db), set.Close, nil
}

// Acquire implements locks.Store.
func (s *Store) Acquire(ctx context.Context, c locks.Claim) (locks.Record, error) {
	query, next := bson.D{{Key: "_id", Value: c.Name}}, acquiring(&c)
	record, found, err := s.modify(ctx, query, next, true)
	if servererr.IsDuplicateKey(err) {
		// Another process has created the record meanwhile. A server does not always try again.
		record, found, err = s.modify(ctx, query, next, true)
	}
	if err == nil && !found {
		err = errors.New("the server returned no record")
	}
	if err != nil {
		return locks.Record{}, failed(ctx, "acquire "+c.Name, err)
	}
	return record, nil
}

// Renew implements locks.Store. A lock that has ended is unlocked by that.
func (s *Store) Renew(ctx context.Context, name string, id bson.ObjectID) (locks.Record, error) {
	record, found, err := s.modify(ctx, bson.D{{Key: "_id", Value: name}, {Key: fieldID, Value: id}}, op("$cond",
		op("$eq", "$"+fieldState, int32(locks.Unlocked)), "$$ROOT", op("$cond", ended(), released(), renewed())), false)
	if err == nil && (!found || !record.IsLocked()) {
		err = locks.ErrLost
	}
	if err != nil {
		return locks.Record{}, failed(ctx, "renew "+name, err)
	}
	return record, nil
}

// Release implements locks.Store.
func (s *Store) Release(ctx context.Context, name string, id bson.ObjectID) error {
	_, _, err := s.modify(ctx, bson.D{{Key: "_id", Value: name}, {Key: fieldID, Value: id}},
		op("$cond", op("$eq", "$"+fieldState, int32(locks.Unlocked)), "$$ROOT", released()), false)
	return failed(ctx, "release "+name, err)
}

// modify replaces one document with the value of an expression, and returns it, as the
// primary has it when a majority has that.
func (s *Store) modify(ctx context.Context, query, next bson.D, upsert bool) (record locks.Record, found bool, err error) {
	body, err := bson.Marshal(bson.D{
		{Key: "findAndModify", Value: metadata.Locks},
		{Key: "query", Value: query},
		{Key: "update", Value: bson.A{bson.D{{Key: "$replaceWith", Value: next}}}},
		{Key: "new", Value: true},
		{Key: "upsert", Value: upsert},
	})
	if err != nil {
		return locks.Record{}, false, fmt.Errorf("build the statement: %w", err)
	}
	reply, err := s.target.Call(ctx, metadata.Majority(mongo.Command{DB: s.db, Body: body}))
	if err != nil {
		return locks.Record{}, false, err
	}
	if concern := mongo.ConcernError(reply); concern != nil {
		return locks.Record{}, false, concern
	}
	value, ok := reply.Lookup("value").DocumentOK()
	if !ok {
		return locks.Record{}, false, nil
	}
	record, err = parse(value)
	return record, true, err
}

// List implements locks.Store.
func (s *Store) List(ctx context.Context, process string) ([]locks.Record, error) {
	filter := bson.D{}
	if process != "" {
		filter = bson.D{{Key: fieldProcess, Value: process}}
	}
	// Read before the records, so that what it says has ended had ended then.
	now, err := s.Clock(ctx)
	if err != nil {
		return nil, err
	}
	docs, err := s.find(ctx, metadata.Locks, filter)
	if err != nil {
		return nil, failed(ctx, "list the locks", err)
	}
	list := make([]locks.Record, 0, len(docs))
	for _, doc := range docs {
		record, err := parse(doc)
		if err != nil {
			return nil, failed(ctx, "list the locks", err)
		}
		if record.TTL > 0 && !record.Expires.After(now.Time) {
			record.State = locks.Unlocked
		}
		list = append(list, record)
	}
	return list, nil
}

// find returns documents that a majority has, sorted by name.
func (s *Store) find(ctx context.Context, collection string, filter bson.D) ([]bson.Raw, error) {
	body, err := bson.Marshal(bson.D{
		{Key: "find", Value: collection},
		{Key: "filter", Value: filter},
		{Key: "sort", Value: bson.D{{Key: "_id", Value: 1}}},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}}},
	})
	if err != nil {
		return nil, fmt.Errorf("build the query: %w", err)
	}
	return mongo.Retry{For: time.Nanosecond}.ReadAll(ctx, s.target, nil, s.db, body)
}

// Clock implements locks.Store.
func (s *Store) Clock(ctx context.Context) (locks.Moment, error) {
	reply, err := mongo.Hello(ctx, s.target)
	if err != nil {
		return locks.Moment{}, failed(ctx, "ask for the time", err)
	}
	r := metadata.NewReader(reply)
	now := locks.Moment{Time: date(r, "localTime")}
	id, ok := reply.Lookup("electionId").ObjectIDOK()
	if r.Err() != nil || !ok {
		return locks.Moment{}, failed(ctx, "ask for the time", fmt.Errorf("%w: the server that answered is no primary", locks.ErrUnavailable))
	}
	now.Election = id.Hex()
	return now, nil
}

// Ping implements locks.Store.
func (s *Store) Ping(ctx context.Context, process string) error {
	body, err := bson.Marshal(bson.D{
		{Key: "findAndModify", Value: metadata.LockPings},
		{Key: "query", Value: bson.D{{Key: "_id", Value: process}}},
		{Key: "update", Value: bson.A{bson.D{{Key: "$set", Value: bson.D{{Key: fieldPing, Value: "$$NOW"}}}}}},
		{Key: "upsert", Value: true},
	})
	if err != nil {
		return failed(ctx, "ping as "+process, err)
	}
	reply, err := s.target.Call(ctx, metadata.Majority(mongo.Command{DB: s.db, Body: body}))
	if err == nil {
		if concern := mongo.ConcernError(reply); concern != nil {
			err = concern
		}
	}
	return failed(ctx, "ping as "+process, err)
}

// Pinged implements locks.Store.
func (s *Store) Pinged(ctx context.Context, process string) (time.Time, error) {
	docs, err := s.find(ctx, metadata.LockPings, bson.D{{Key: "_id", Value: process}})
	if err != nil || len(docs) == 0 {
		return time.Time{}, failed(ctx, "read the ping of "+process, err)
	}
	r := metadata.NewReader(docs[0])
	at := date(r, fieldPing)
	return at, failed(ctx, "read the ping of "+process, r.Err())
}

// RemovePing implements locks.Store.
func (s *Store) RemovePing(ctx context.Context, process string) error {
	err := metadata.Run(ctx, s.target, metadata.Majority(metadata.Delete(s.db, metadata.LockPings, metadata.ByID(process))), -1)
	return failed(ctx, "remove the ping of "+process, err)
}

// SweepPings implements locks.Sweeper.
func (s *Store) SweepPings(ctx context.Context, older time.Duration) error {
	now, err := s.Clock(ctx)
	if err != nil {
		return err
	}
	until := bson.NewDateTimeFromTime(now.Time.Add(-older))
	old := bson.E{Key: fieldPing, Value: bson.D{{Key: "$lt", Value: until}}}
	docs, err := s.find(ctx, metadata.LockPings, bson.D{old})
	if err != nil || len(docs) == 0 {
		return failed(ctx, "look for old pings", err)
	}
	// A process pings before it locks: one that locks after this has no old ping.
	list, err := s.List(ctx, "")
	if err != nil {
		return err
	}
	named := map[string]bool{}
	for i := range list {
		named[list[i].Process] = named[list[i].Process] || list[i].IsLocked()
	}
	var gone bson.A
	for _, doc := range docs {
		if process, _ := doc.Lookup("_id").StringValueOK(); !named[process] {
			gone = append(gone, process)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	filter, err := bson.Marshal(bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: gone}}}, old})
	if err != nil {
		return failed(ctx, "remove old pings", err)
	}
	fields := filter[4 : len(filter)-1] // without the document's length and end
	err = metadata.Run(ctx, s.target, metadata.Majority(metadata.Delete(s.db, metadata.LockPings, func(dst []byte) []byte { return append(dst, fields...) })), -1)
	return failed(ctx, "remove old pings", err)
}

// failed wraps an error with the operation attempted, and marks transient ones. A call that ended
// with its context may have been executed.
func failed(ctx context.Context, what string, err error) error {
	switch {
	case err == nil:
		return nil
	case passes(err), ctx.Err() != nil && !errors.Is(err, locks.ErrLost):
		return fmt.Errorf("%s: %w: %w", what, locks.ErrUnavailable, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// passes reports whether the cause of an error may pass without an operator: all but what
// the command, the login or the server's version cause. A duplicate key is that of another
// process that created the same record.
func passes(err error) bool {
	if errors.Is(err, locks.ErrUnavailable) || servererr.IsDuplicateKey(err) {
		return true
	}
	switch servererr.Classify(err) {
	case servererr.None, servererr.Isolate, servererr.Auth, servererr.Unsupported:
		return false
	default:
		return true
	}
}
