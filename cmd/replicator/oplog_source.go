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
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/failure"
)

// logAwait is how long a member waits for a new entry before it answers.
const logAwait = 2 * time.Second

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
	retry := mongo.Retry{
		For: mongo.Forever,
		Again: func(err error) bool {
			return c.Follow && ctx.Err() == nil && failure.Transient(err)
		},
		Failed: func(err error) {
			out.Complain("%s: reading continues after %s", printable.Text(err.Error()), timestamp(t.last))
		},
	}
	return retry.Do(ctx, func() error {
		member, err := c.member(ctx, set)
		if err == nil && c.Follow && len(t.filter) == 0 {
			err = t.fromNewest(ctx, member)
		}
		if err != nil {
			return err
		}
		return t.read(ctx, member)
	})
}

// member returns a reader of one member: a cursor exists on that member only.
func (c *oplogCommand) member(ctx context.Context, set *driver.Set) (mongo.Caller, error) {
	if c.Host != "" {
		return set.Member(c.Host), nil
	}
	id, err := replset.Identify(ctx, set)
	if err == nil && id.Host == "" {
		err = errors.New("its hello reply does not contain its own name")
	}
	if err != nil {
		return nil, err
	}
	return set.Member(id.Host), nil
}

// tail reads the log of one member after the other.
type tail struct {
	follow bool
	filter bson.D         // on ts; empty for all
	last   bson.Timestamp // of the last entry passed on
	// resumed is the last when the cursor was opened, until the cursor has shown that it begins there.
	resumed bson.Timestamp
	each    func(bson.Raw) error
}

// fromNewest makes reading begin with the newest entry.
func (t *tail) fromNewest(ctx context.Context, member mongo.Caller) error {
	newest, err := replset.NewestEntry(ctx, member, replset.Majority)
	if err == nil {
		t.filter = bson.D{{Key: "$gte", Value: newest.OpTime.TS}}
	}
	return err
}

// read reads until there are no more entries, or, if it follows, until ctx is
// done.
func (t *tail) read(ctx context.Context, member mongo.Caller) error {
	cmd := bson.D{{Key: "find", Value: "oplog.rs"}}
	if len(t.filter) > 0 {
		cmd = append(cmd, bson.E{Key: "filter", Value: bson.D{{Key: "ts", Value: t.filter}}})
	}
	cmd = append(cmd, bson.E{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}}})
	if t.follow {
		cmd = append(cmd, bson.E{Key: "tailable", Value: true}, bson.E{Key: "awaitData", Value: true})
	}
	t.resumed = t.last
	for cursor := int64(0); ; {
		b, err := askBatch(ctx, member, cmd)
		if err == nil {
			cursor = b.Cursor
			err = t.hand(b.Docs)
		}
		if err != nil {
			if _, lost := errors.AsType[*mongo.LostError](err); cursor != 0 && (!lost || ctx.Err() != nil) {
				t.leave(ctx, member, cursor)
			}
			return err
		}
		if cursor == 0 && !t.follow {
			return nil
		}
		if cursor == 0 {
			// An empty log, or one that rolled over past the cursor.
			return &mongo.LostError{Err: errors.New("the cursor is gone")}
		}
		cmd = bson.D{{Key: "getMore", Value: cursor}, {Key: "collection", Value: "oplog.rs"}}
		if t.follow {
			cmd = append(cmd, bson.E{Key: "maxTimeMS", Value: logAwait.Milliseconds()})
		}
	}
}

// askBatch sends a command and reads the batch of the cursor's reply.
func askBatch(ctx context.Context, member mongo.Caller, cmd bson.D) (mongo.Batch, error) {
	reply, err := order(ctx, member, "local", cmd)
	if err != nil {
		return mongo.Batch{}, fmt.Errorf("read the source's oplog: %w", err)
	}
	return mongo.ReadBatch(reply)
}

// continues returns an error if the first entry of a reply is not the last one passed on
// before: the oplog has rolled over.
func continues(first bson.Raw, last bson.Timestamp) error {
	if s, i, _ := first.Lookup("ts").TimestampOK(); (bson.Timestamp{T: s, I: i}) != last {
		return fmt.Errorf("the source's oplog no longer has the entry %s: entries are missing after it", timestamp(last))
	}
	return nil
}

// hand passes on the entries of a reply that were not passed on before. The first of a cursor
// has to be the one that it was opened at.
func (t *tail) hand(docs []bson.Raw) error {
	if len(docs) > 0 && t.resumed.T != 0 {
		if err := continues(docs[0], t.resumed); err != nil {
			return err
		}
		t.resumed = bson.Timestamp{}
	}
	for _, doc := range docs {
		if s, i, ok := doc.Lookup("ts").TimestampOK(); ok {
			ts := bson.Timestamp{T: s, I: i}
			if oplog.CompareTimestamps(ts, t.last) <= 0 {
				continue
			}
			t.last, t.filter = ts, bson.D{{Key: "$gte", Value: ts}}
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
