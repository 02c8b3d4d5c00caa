package checkpoint

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/lease"
)

var errNotForward = errors.New("a lane cannot move backwards")

// Lane is a lane of the target: a document with a position, and a session.
type Lane struct {
	link    *Link
	id      string // of the document
	session *mongo.Session
	// position is the last one that the target acknowledged. Announced, if not the zero
	// Position, is that of an operation that was announced outside of a transaction.
	//
	// Invariant: announced is zero or position < announced.
	position, announced Position
	// barrierSeen is the position up to which committed transactions have verified
	// the barrier, barrierRead that of the last transaction in which Move was called.
	barrierSeen, barrierRead Position
	cmds                     []mongo.Command // reused by MoveWith
}

// Session returns the lane's session, to write with.
func (l *Lane) Session() *mongo.Session { return l.session }

// Position returns the position that the target acknowledged last.
func (l *Lane) Position() Position { return l.position }

// Announced returns the position up to which operations were announced outside of transactions
// and not ended: each one after Position may or may not have been carried out. It is the
// zero Position if there are none, and again once the lane has moved there.
func (l *Lane) Announced() Position { return l.announced }

// Move must be the first statement of a transaction. It moves the lane's document from
// Position to next, with a filter on the term and the position. If nothing matches, it
// reads the document and returns lease.ErrFenced, lease.ErrRewound or ErrAhead. The
// caller must call Moved once the transaction has committed.
func (l *Lane) Move(ctx context.Context, txn *mongo.Txn, next Position) error {
	err := l.move(ctx, txn, next)
	if err != nil {
		return l.Fail(err, "move it from %s to %s", l.position, next)
	}
	return nil
}

// MoveWith is Move followed by commands in the same transaction, sent as
// [mongo.Txn.CallAll] does: without waiting for the reply to the move.
func (l *Lane) MoveWith(ctx context.Context, txn *mongo.Txn, next Position, cmds []mongo.Command, each func(i int, reply bson.Raw) error) error {
	if next.Compare(l.position) <= 0 {
		return l.Fail(errNotForward, "move it from %s to %s", l.position, next)
	}
	barrier := l.link.barrierPosition()
	if l != l.link.barrier && barrier.Compare(l.barrierSeen) > 0 {
		// Move verifies the barrier's position first.
		if err := l.Move(ctx, txn, next); err != nil {
			return err
		}
		return txn.CallAll(ctx, cmds, each)
	}
	l.cmds = append(append(l.cmds[:0], l.update(l.forward(next))), cmds...)
	defer clear(l.cmds)
	moved := false
	err := txn.CallAll(ctx, l.cmds, func(i int, reply bson.Raw) error {
		if i > 0 {
			return each(i-1, reply)
		}
		n, err := metadata.Written(reply)
		if err == nil && n != 1 {
			err = errNotMoved
		}
		moved = err == nil
		return err
	})
	switch {
	case err == nil:
		l.barrierRead = barrier
		return nil
	case moved:
		return err
	case errors.Is(err, errNotMoved) && ctx.Err() != nil:
		// The reason cannot be read any more. The transaction stays the session's
		// last one, so that it can be aborted.
		err = context.Cause(ctx)
	case errors.Is(err, errNotMoved):
		// A command after the move may have aborted the transaction, so the reason is
		// read in the session's next one.
		again := l.session.Begin()
		err = l.whyNotMoved(ctx, again)
		again.Abort(ctx)
	}
	return l.Fail(err, "move it from %s to %s", l.position, next)
}

// errNotMoved reports that a lane's document is not at the expected position.
var errNotMoved = errors.New("the lane's document is not at the expected position")

// Fail wraps an error with the attempted action, and logs errors that an operator has
// to interpret.
func (l *Lane) Fail(err error, format string, args ...any) error {
	err = lease.Judge(err)
	l.link.report(err)
	return fmt.Errorf("checkpoint: lane %s of term %d: %s: %w", l.id, l.link.lease.Term(), fmt.Sprintf(format, args...), err)
}

func (l *Lane) move(ctx context.Context, txn *mongo.Txn, next Position) error {
	if next.Compare(l.position) <= 0 {
		return errNotForward
	}
	return l.change(ctx, txn, l.forward(next))
}

// forward returns the change that moves the document to next.
func (l *Lane) forward(next Position) func(dst []byte) []byte {
	return func(dst []byte) []byte {
		dst = metadata.AppendDoc(dst, "$set", func(dst []byte) []byte { return appendPosition(dst, next) })
		if l.announced != (Position{}) && next.Compare(l.announced) >= 0 {
			dst = metadata.AppendDoc(dst, "$unset", func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, "begun", "") })
		}
		return dst
	}
}

// update returns the command that changes the lane's document if it is at its
// position.
func (l *Lane) update(change func(dst []byte) []byte) mongo.Command {
	return metadata.Update(l.link.store.cfg.DB, metadata.Lanes, metadata.Statement{
		Filter: func(dst []byte) []byte {
			dst = bsoncore.AppendStringElement(dst, "_id", l.id)
			dst = bsoncore.AppendInt64Element(dst, "term", l.link.lease.Term())
			return appendPosition(dst, l.position)
		},
		Change: change,
	})
}

// change updates the lane's document if it is at its position, and verifies the
// barrier's position.
func (l *Lane) change(ctx context.Context, txn *mongo.Txn, change func(dst []byte) []byte) error {
	barrier := l.link.barrierPosition()
	reply, err := txn.Call(ctx, l.update(change))
	if err != nil {
		return err
	}
	n, err := metadata.Written(reply)
	if err != nil {
		return err
	}
	if n != 1 {
		return l.whyNotMoved(ctx, txn)
	}
	return l.findBarrier(ctx, txn, barrier)
}

// Stay must be the first statement of a transaction of the lane's session that does not
// move the lane. It writes to the lane's document if that is at its position, so that a
// fence and the transaction cannot both succeed. If nothing matches, it returns
// lease.ErrFenced, lease.ErrRewound or ErrAhead.
func (l *Lane) Stay(ctx context.Context, txn *mongo.Txn) error {
	return l.change(ctx, txn, lease.AppendCount)
}

// Within runs work, after Stay, in a transaction of the lane's session that is
// majority-committed when Within returns. Work may run more than once.
func (l *Lane) Within(ctx context.Context, work func(txn *mongo.Txn) error) error {
	err := l.link.lease.InTxn(ctx, l.session, func(txn *mongo.Txn) error {
		if err := l.Stay(ctx, txn); err != nil {
			return err
		}
		return work(txn)
	})
	if err == nil {
		// The committed transaction has verified the barrier.
		l.barrierSeen = l.barrierRead
	}
	return err
}

// whyNotMoved returns the reason why the lane's document did not match.
func (l *Lane) whyNotMoved(ctx context.Context, txn *mongo.Txn) error {
	doc, err := l.link.readLane(ctx, txn, l.id)
	if err != nil {
		return err
	}
	if err := l.link.notBefore(&doc, l.position); err != nil {
		return err
	}
	return fmt.Errorf("it is at %s: %w", doc.position, ErrAhead)
}

// findBarrier verifies that the barrier is not before want, its acknowledged position,
// unless this lane has done so already.
func (l *Lane) findBarrier(ctx context.Context, txn *mongo.Txn, want Position) error {
	if l == l.link.barrier {
		return nil
	}
	if want.Compare(l.barrierSeen) > 0 {
		doc, err := l.link.readLane(ctx, txn, l.link.barrier.id)
		if err != nil {
			return err
		}
		if err := l.link.notBefore(&doc, want); err != nil {
			return err
		}
	}
	l.barrierRead = want
	return nil
}

// Moved records that the transaction with Move to next has committed.
func (l *Lane) Moved(next Position) {
	l.position, l.barrierSeen = next, l.barrierRead
	if next.Compare(l.announced) >= 0 {
		l.announced = Position{}
	}
	if h := l.link; l == h.barrier {
		h.mu.Lock()
		h.barrierAt = next
		h.mu.Unlock()
	}
}

// Announce records, with write concern majority, that the lane is about to carry out
// the operations up to next outside of a transaction (a command, or writes that
// transactions do not support). The barrier's lane verifies the given positions of lanes
// in the same transaction; for a writer's lane, lanes is nil. Everything acknowledged
// before is majority-committed when Announce returns. If an earlier term had announced
// operations after next, they stay announced.
func (l *Lane) Announce(ctx context.Context, next Position, lanes []Position) error {
	announced := next
	if l.announced.Compare(announced) > 0 {
		announced = l.announced
	}
	err := l.announce(ctx, next, announced, lanes)
	if err != nil {
		return l.Fail(err, "announce the operations at %s, after %s", next, l.position)
	}
	l.announced, l.barrierSeen = announced, l.barrierRead
	return nil
}

func (l *Lane) announce(ctx context.Context, next, announced Position, lanes []Position) error {
	if next.Compare(l.position) <= 0 {
		return errNotForward
	}
	if l == l.link.barrier && lanes == nil {
		return errors.New("the barrier must wait for all lanes")
	}
	return l.link.lease.InTxn(ctx, l.session, func(txn *mongo.Txn) error {
		err := l.change(ctx, txn, func(dst []byte) []byte {
			dst = metadata.AppendDoc(dst, "$set", func(dst []byte) []byte {
				return metadata.AppendDoc(dst, "begun", func(dst []byte) []byte { return appendPosition(dst, announced) })
			})
			return lease.AppendCount(dst)
		})
		if err != nil || lanes == nil {
			return err
		}
		return l.link.Verify(ctx, txn, lanes)
	})
}

// Complete records, with write concern majority, that the operations that Announce
// announced are done, and moves the lane. They must be majority-committed already. The
// caller need not call Moved.
func (l *Lane) Complete(ctx context.Context, next Position) error {
	if err := l.complete(ctx, next); err != nil {
		return l.Fail(err, "complete the operations at %s, after %s", next, l.position)
	}
	l.Moved(next)
	return nil
}

func (l *Lane) complete(ctx context.Context, next Position) error {
	switch {
	case next.Compare(l.position) <= 0:
		return errNotForward
	case next.Compare(l.announced) > 0:
		return errors.New("it was not announced")
	}
	return l.link.lease.InTxn(ctx, l.session, func(txn *mongo.Txn) error {
		return l.move(ctx, txn, next)
	})
}
