package progress

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/lease"
)

// Lane is a lane that copies ranges. It is for one goroutine at a time.
type Lane struct {
	*checkpoint.Lane
	link *Link
}

// SaveCollection replaces the document of a collection of the link's copy, and adds the
// ranges that do not exist yet, in one transaction of the lane that is committed by a
// majority when it returns. In the states Filled and Done, unless the collection is
// Gone, the same transaction checks that all ranges are done (lease.ErrRewound).
func (l *Lane) SaveCollection(ctx context.Context, c *Collection, ranges []Range) error {
	if err := l.saveCollection(ctx, c, ranges); err != nil {
		return l.Fail(err, "save %s (%s) as %q, with %d ranges", c.NS, c.UUID, c.State, len(ranges))
	}
	return nil
}

func (l *Lane) saveCollection(ctx context.Context, c *Collection, ranges []Range) error {
	number := l.link.number
	if number == 0 {
		return checkpoint.ErrNoCopy
	}
	for i := range ranges {
		if ranges[i].UUID != c.UUID {
			return fmt.Errorf("range %d is of %s", ranges[i].Index, ranges[i].UUID)
		}
	}
	cfg := &l.link.cfg
	return l.Within(ctx, func(txn *mongo.Txn) error {
		err := metadata.Run(ctx, txn, metadata.Update(cfg.DB, metadata.Copies, metadata.Statement{
			Filter: metadata.ByID(collectionID(cfg.Link, number, c.UUID)),
			Change: func(dst []byte) []byte { return appendCollection(dst, number, c) },
			Upsert: true,
		}), 1)
		if err != nil {
			return err
		}
		if err := l.addRanges(ctx, txn, number, ranges); err != nil {
			return err
		}
		if c.Gone || c.State != Filled && c.State != Done {
			return nil
		}
		of := metadata.Below(copyPrefix(cfg.Link, number, kindRange, hexUUID(c.UUID)))
		return l.link.findNone(ctx, txn, "range", openRanges(of))
	})
}

// addRanges adds the ranges that do not exist.
func (l *Lane) addRanges(ctx context.Context, txn *mongo.Txn, number int64, ranges []Range) error {
	cfg := &l.link.cfg
	updates := func(yield func(bson.Raw) bool) {
		for i := range ranges {
			r := &ranges[i]
			s := metadata.Insertion(rangeID(cfg.Link, number, r.UUID, r.Index), func(dst []byte) []byte { return appendRange(dst, number, r) })
			if !yield(s) {
				return
			}
		}
	}
	for docs := range metadata.Chunks(updates) {
		err := metadata.Run(ctx, txn, metadata.Write(cfg.DB, "update", metadata.Copies, "updates", docs...), int64(len(docs)))
		if err != nil {
			return err
		}
	}
	return nil
}

// MoveRange must be the first call in a transaction of the lane's session. It matches
// the lane's document with our term, at its position, and the range's document with the
// Steps of r. It moves the range's document to next: At, Docs, Bytes, Done, and Steps,
// which it sets to r's plus one. If nothing matches it finds out why: lease.ErrFenced,
// lease.ErrRewound, checkpoint.ErrAhead. The caller replaces r with next once the
// transaction has committed.
func (l *Lane) MoveRange(ctx context.Context, txn *mongo.Txn, r, next *Range) error {
	if err := l.moveRange(ctx, txn, r, next); err != nil {
		return l.Fail(err, "move range %d of %s after step %d", r.Index, r.UUID, r.Steps)
	}
	return nil
}

func (l *Lane) moveRange(ctx context.Context, txn *mongo.Txn, r, next *Range) error {
	number := l.link.number
	switch {
	case number == 0:
		return checkpoint.ErrNoCopy
	case next.UUID != r.UUID || next.Index != r.Index:
		return fmt.Errorf("it becomes range %d of %s", next.Index, next.UUID)
	case r.Done:
		return errors.New("it is done")
	}
	next.Steps = r.Steps + 1
	if err := l.Stay(ctx, txn); err != nil {
		return err
	}
	cfg := &l.link.cfg
	id := rangeID(cfg.Link, number, r.UUID, r.Index)
	reply, err := txn.Call(ctx, metadata.Update(cfg.DB, metadata.Copies, metadata.Statement{
		Filter: func(dst []byte) []byte {
			dst = bsoncore.AppendStringElement(dst, "_id", id)
			dst = bsoncore.AppendInt64Element(dst, "steps", r.Steps)
			return bsoncore.AppendBooleanElement(dst, "done", false)
		},
		Change: func(dst []byte) []byte {
			return metadata.AppendDoc(dst, "$set", func(dst []byte) []byte { return appendMoves(dst, next) })
		},
	}))
	if err != nil {
		return err
	}
	n, err := metadata.Written(reply)
	if err != nil || n == 1 {
		return err
	}
	return l.whyRangeNotMoved(ctx, txn, number, id, r)
}

// whyRangeNotMoved returns why a range's document did not match.
func (l *Lane) whyRangeNotMoved(ctx context.Context, txn *mongo.Txn, number int64, id string, r *Range) error {
	cfg := &l.link.cfg
	reply, err := txn.Call(ctx, metadata.Find(cfg.DB, metadata.Copies, 1, metadata.ByID(id)))
	if err != nil {
		return err
	}
	docs, err := metadata.Found(reply)
	if err != nil {
		return err
	}
	if len(docs) == 0 {
		return fmt.Errorf("its document is gone: %w", lease.ErrRewound)
	}
	d, err := readCopyDoc(cfg.Link, number, docs[0])
	switch {
	case err != nil:
		return err
	case d.part.Steps < r.Steps:
		return fmt.Errorf("it is at step %d: %w", d.part.Steps, lease.ErrRewound)
	case d.part.Steps > r.Steps:
		return fmt.Errorf("it is at step %d: %w", d.part.Steps, checkpoint.ErrAhead)
	}
	return &metadata.DamagedError{Link: cfg.Link, What: fmt.Sprintf("copy %q: it is done, which it was not at this step", id)}
}
