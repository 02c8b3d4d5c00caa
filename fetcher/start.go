package fetcher

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/oplog"
)

// checkStart checks the first reply of a cursor: the member must have reached the entry
// that reading starts from, and this entry must be part of its history. A member that
// lags must not be taken for one with another history.
func (t *tail) checkStart(ctx context.Context, p *page, meta *Metadata) error {
	var first oplog.OpTime
	if p.n > 0 {
		var err error
		if first, err = p.first(); err != nil {
			return err
		}
	}
	shows := meta.Committed
	switch {
	case shows.Before(t.last):
		return fmt.Errorf("%w: its commit point is %s, the link needs %s", ErrSourceBehind, shows, t.last)
	case p.n > 0 && first.Equal(t.last):
		return nil
	}
	return t.startMissing(ctx, first)
}

// startMissing finds out why the member showed got first and not the start; got is null
// if it showed nothing.
func (t *tail) startMissing(ctx context.Context, got oplog.OpTime) error {
	oldest, err := replset.OldestEntry(ctx, asked{t})
	if err != nil {
		return err
	}
	// Timestamps only: terms of two histories do not compare.
	if oplog.CompareTimestamps(t.last.TS, oldest.OpTime.TS) < 0 {
		return &TooStaleError{Want: t.last, Oldest: oldest.OpTime}
	}
	if !got.IsNull() {
		return &StartMissingError{Want: t.last, Got: got}
	}
	// The commit point may have come between the read and the metadata of its reply.
	find := replset.Find{
		DB: oplogDB, Collection: oplogCollection, Filter: from(t.last.TS),
		Projection: bsoncore.NewDocumentBuilder().AppendInt32("ts", 1).AppendInt32("t", 1).Build(), Level: replset.Majority,
	}
	_, doc, err := find.Run(ctx, asked{t})
	if err != nil {
		return fmt.Errorf("find %s again: %w", t.last, err)
	}
	if doc != nil {
		entry, err := replset.ReadEntry(doc)
		if err != nil {
			return err
		}
		got = entry.OpTime
	}
	if !got.IsNull() && got.Equal(t.last) {
		return fmt.Errorf("%w: it returned %s only when asked again", ErrSourceBehind, t.last)
	}
	return &StartMissingError{Want: t.last, Got: got}
}

// asked runs commands on the tail's member, in the tail's session.
type asked struct{ t *tail }

// Call implements mongo.Caller.
func (a asked) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	cmd.Body = mongo.With(cmd.Body, bsoncore.AppendInt32Element(bsoncore.AppendDocumentElement(nil, "lsid", a.t.lsid), "$replData", 1))
	return a.t.call(ctx, cmd, probeTime)
}
