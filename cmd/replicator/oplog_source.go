package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline"
)

const (
	// logAwait is how long a member waits for a new entry before it answers.
	logAwait = 2 * time.Second
	// logPause is the pause before a broken read of the log is retried.
	logPause = 500 * time.Millisecond
)

// readSource calls each with the majority-committed entries of a server.
func (c *oplogCommand) readSource(ctx context.Context, out cli.Output, each func(bson.Raw) error) error {
	options, err := c.parse()
	if err != nil {
		return cli.Usage(err)
	}
	set, err := driver.Open(ctx, options)
	if err != nil {
		return cli.Connect(fmt.Errorf("connect to the source: %w", err))
	}
	defer set.Close()
	t := &tail{follow: c.Follow, filter: bson.D{}, each: each}
	if c.Since.given() {
		t.filter = bson.D{{Key: "$gte", Value: c.Since.at}}
	}
	for {
		member, err := c.member(ctx, set)
		if err == nil {
			if c.Follow && len(t.filter) == 0 {
				err = t.fromNewest(ctx, member)
			}
			if err == nil {
				err = t.read(ctx, member)
			}
		}
		if !c.Follow || err == nil || ctx.Err() != nil || pipeline.Classify(err).Action != pipeline.Retry {
			return err
		}
		out.Complain("%s: reading goes on after %s", printable.Text(err.Error()), timestamp(t.last))
		timer := time.NewTimer(logPause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
	}
}

// member returns a reader of one member: a cursor exists on that member only.
func (c *oplogCommand) member(ctx context.Context, set *driver.Set) (mongo.Caller, error) {
	if c.Host != "" {
		return set.Member(c.Host), nil
	}
	hello, err := order(ctx, set, "admin", bson.D{{Key: "hello", Value: 1}})
	if err != nil {
		return nil, err
	}
	if _, ok := hello.Lookup("setName").StringValueOK(); !ok {
		return nil, errors.New("it is no member of a replica set, so it has no oplog")
	}
	host, ok := hello.Lookup("me").StringValueOK()
	if !ok {
		return nil, errors.New("it does not say its own name")
	}
	return set.Member(host), nil
}

// tail reads the log of one member after the other.
type tail struct {
	follow bool
	filter bson.D         // on ts; empty for all
	last   bson.Timestamp // of the last entry passed on
	each   func(bson.Raw) error
}

// fromNewest makes reading begin with the newest entry.
func (t *tail) fromNewest(ctx context.Context, member mongo.Caller) error {
	reply, err := order(ctx, member, "local", bson.D{
		{Key: "find", Value: "oplog.rs"},
		{Key: "sort", Value: bson.D{{Key: "$natural", Value: -1}}},
		{Key: "limit", Value: 1},
		{Key: "projection", Value: bson.D{{Key: "ts", Value: 1}}},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}}},
	})
	if err != nil {
		return err
	}
	s, i, _ := reply.Lookup("cursor", "firstBatch", "0", "ts").TimestampOK()
	t.filter = bson.D{{Key: "$gte", Value: bson.Timestamp{T: s, I: i}}}
	return nil
}

// read reads until there are no more entries, or, if it follows, until ctx is
// done.
func (t *tail) read(ctx context.Context, member mongo.Caller) error {
	find := bson.D{{Key: "find", Value: "oplog.rs"}}
	if len(t.filter) > 0 {
		find = append(find, bson.E{Key: "filter", Value: bson.D{{Key: "ts", Value: t.filter}}})
	}
	find = append(find, bson.E{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}}})
	if t.follow {
		find = append(find, bson.E{Key: "tailable", Value: true}, bson.E{Key: "awaitData", Value: true})
	}
	reply, err := order(ctx, member, "local", find)
	for field := "firstBatch"; ; field = "nextBatch" {
		if err != nil {
			return err
		}
		id, _ := reply.Lookup("cursor", "id").AsInt64OK()
		if err := t.hand(reply, field); err != nil {
			if id != 0 {
				t.leave(ctx, member, id)
			}
			return err
		}
		if id == 0 && !t.follow {
			return nil
		}
		if id == 0 {
			// An empty log, or one that rolled over past the cursor.
			return &mongo.LostError{Err: errors.New("the cursor is gone")}
		}
		more := bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: "oplog.rs"}}
		if t.follow {
			more = append(more, bson.E{Key: "maxTimeMS", Value: logAwait.Milliseconds()})
		}
		if reply, err = order(ctx, member, "local", more); err != nil && ctx.Err() != nil {
			t.leave(ctx, member, id)
		}
	}
}

// hand passes on the entries of a reply.
func (t *tail) hand(reply bson.Raw, field string) error {
	list, ok := reply.Lookup("cursor", field).ArrayOK()
	if !ok {
		return fmt.Errorf("read a reply: it has no cursor.%s", field)
	}
	values, err := list.Values()
	if err != nil {
		return fmt.Errorf("read a reply: %w", err)
	}
	for _, v := range values {
		doc, ok := v.DocumentOK()
		if !ok {
			return fmt.Errorf("read a reply: an entry is %s", v.Type)
		}
		if s, i, ok := doc.Lookup("ts").TimestampOK(); ok {
			ts := bson.Timestamp{T: s, I: i}
			if oplog.CompareTimestamps(ts, t.last) <= 0 {
				continue
			}
			t.last, t.filter = ts, bson.D{{Key: "$gt", Value: ts}}
		}
		if err := t.each(doc); err != nil {
			return err
		}
	}
	return nil
}

// leave kills the cursor, within a second. If that fails the server does so after
// ten minutes.
func (t *tail) leave(ctx context.Context, member mongo.Caller, id int64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, _ = order(ctx, member, "local", bson.D{{Key: "killCursors", Value: "oplog.rs"}, {Key: "cursors", Value: bson.A{id}}})
}

// order runs one command.
func order(ctx context.Context, caller mongo.Caller, db string, cmd bson.D) (bson.Raw, error) {
	body, err := bson.Marshal(cmd)
	if err != nil {
		return nil, fmt.Errorf("build %s: %w", cmd[0].Key, err)
	}
	return caller.Call(ctx, mongo.Command{DB: db, Body: body})
}
