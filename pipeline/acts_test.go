package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/mongosim"
)

// inTxn adds the fields of a transaction of the session called name.
func inTxn(cmd bson.D, name string, first bool) bson.D {
	cmd = append(cmd, bson.E{Key: "lsid", Value: mongo.SessionID("scenario", name)},
		bson.E{Key: "txnNumber", Value: time.Now().UnixNano()}, bson.E{Key: "autocommit", Value: false})
	if first {
		cmd = append(cmd, bson.E{Key: "startTransaction", Value: true})
	}
	return cmd
}

// transaction inserts FROM..TO into NS in a transaction, and ends or prepares it with a
// command.
func (c *cluster) transaction(ctx context.Context, name string, args []string, end string) error {
	db, coll, _ := strings.Cut(args[0], ".")
	from, to, err := span(args[1])
	if err != nil {
		return err
	}
	size := 0
	if len(args) > 2 {
		if _, err := fmt.Sscanf(args[2], "size=%d", &size); err != nil {
			return err
		}
	}
	first := inTxn(statements("insert", coll, from, to, size), name, true)
	number := first[3]
	last := inTxn(bson.D{{Key: end, Value: 1}, {Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}}, name, false)
	last[3] = number
	p, err := c.AwaitPrimary(ctx)
	if err != nil {
		return err
	}
	if _, err := c.on(ctx, p.ID(), db, first); err != nil {
		return err
	}
	reply, err := c.on(ctx, p.ID(), "admin", last)
	if err != nil {
		return err
	}
	if c.prepared == nil {
		c.prepared = map[string]bson.D{}
	}
	if end == "prepareTransaction" {
		at, err := reply.LookupErr("prepareTimestamp")
		if err != nil {
			return err
		}
		last[0] = bson.E{Key: "commitTransaction", Value: 1}
		c.prepared[name] = append(last, bson.E{Key: "commitTimestamp", Value: at})
	}
	return nil
}

// endPrepared commits or aborts a prepared transaction.
func (c *cluster) endPrepared(ctx context.Context, name, how string) error {
	cmd, ok := c.prepared[name]
	if !ok {
		return errors.New("no such transaction is prepared")
	}
	if how == "abortTransaction" {
		cmd = slices.Clone(cmd[:len(cmd)-1]) // without commitTimestamp
		cmd[0] = bson.E{Key: how, Value: 1}
	}
	p, err := c.AwaitPrimary(ctx)
	if err != nil {
		return err
	}
	_, err = c.on(ctx, p.ID(), "admin", cmd)
	return err
}

func (c *cluster) count(ctx context.Context, ns string) (int64, error) {
	db, coll, _ := strings.Cut(ns, ".")
	body, err := bson.Marshal(bson.D{{Key: "count", Value: coll}})
	if err != nil {
		return 0, err
	}
	reply, err := c.conn.Call(ctx, mongo.Command{DB: db, Body: body})
	if err != nil {
		return 0, err
	}
	return reply.Lookup("n").AsInt64(), nil
}

// replace replaces the source by a new set of the same name.
func (w *world) replace() error {
	other, err := mongosim.Start(w.t.Context(), mongosim.Options{Members: 3, Seed: 99})
	if err != nil {
		return err
	}
	w.t.Cleanup(other.Close)
	w.source = &cluster{Set: other, conn: connect(w.t, other, ourselves)}
	return nil
}

// forge moves the link's checkpoint to an entry that the source could have had, just
// after its newest.
func (w *world) forge(ctx context.Context) error {
	ts := w.newest().TS
	ts.I += 1000
	return w.target.write(ctx, "replicator", bson.D{{Key: "update", Value: "links"}, {Key: "updates", Value: bson.A{bson.D{
		{Key: "q", Value: bson.D{{Key: "_id", Value: "mirror"}}},
		{Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "applied.ts", Value: ts}, {Key: "fetchFrom.ts", Value: ts}}}}},
	}}}})
}

// unsettle makes primaries step down until that has ended an attempt of the link: a
// stepdown between two flushes, with the next primary at once, has no effect.
func (w *world) unsettle(ctx context.Context, c *cluster) error {
	l := w.links["a"]
	before := l.p.Snapshot().Attempts
	for ctx.Err() == nil {
		if err := c.StepDown(ctx); err != nil {
			return err
		}
		ops := l.p.Snapshot().Progress.Ops
		err := w.untilOf(l, "operations, or another attempt", func() bool {
			s := l.p.Snapshot()
			return s.Attempts > before || s.Progress.Ops > ops+20
		})
		if err != nil || l.p.Snapshot().Attempts > before {
			return err
		}
	}
	return context.Cause(ctx)
}
