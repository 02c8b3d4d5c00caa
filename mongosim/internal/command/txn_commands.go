package command

import (
	"context"
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/oplog"
)

// mustBeInTxn refuses the command outside of transactions.
func (r *request) mustBeInTxn() error {
	if !r.inTxn() {
		return servererr.New(servererr.CommandFailed, "%s must be run within a transaction", r.spec.name)
	}
	return nil
}

func (s *session) look() (state txnState, prepared, ended oplog.OpTime) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state, s.prepared, s.ended
}

// finish notes the end of the session's transaction, within Path.Write.
func (s *session) finish(state txnState, at oplog.OpTime) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state, s.txn, s.ended = state, nil, at
	s.unlimit()
}

func runCommitTransaction(_ context.Context, r *request, out *reply) error {
	if err := r.mustBeInTxn(); err != nil {
		return err
	}
	state, prepared, ended := r.sess.look()
	if state == txnCommitted {
		out.wrote = r.srv.cfg.Node.View().Applied
		if ended.After(out.wrote) {
			out.wrote = ended
		}
		return nil
	}
	var at bson.Timestamp
	if e, ok := rawbson.Lookup(r.cmd, "commitTimestamp"); ok {
		if at, ok = e.Timestamp(); !ok {
			return wrongType(r.spec.name, "commitTimestamp", e.Type, "timestamp")
		}
		if err := r.checkCommitTimestamp(at, state, prepared); err != nil {
			return err
		}
	} else if state == txnPrepared {
		return servererr.New(servererr.InvalidOptions, "commitTransaction must provide commitTimestamp to prepared transaction.")
	}
	err := r.withTxn(func(b *opwrite.Batch, t *opwrite.Txn) error {
		var done oplog.OpTime
		var err error
		if state == txnPrepared {
			done, err = t.CommitPrepared(b, at)
		} else {
			done, err = t.Commit(b)
		}
		if err != nil {
			return err
		}
		if done.IsNull() {
			if err := r.noteReadOnly(b); err != nil {
				return err
			}
			done = b.LastOpTime()
		}
		r.sess.finish(txnCommitted, done)
		out.wrote = done
		return nil
	})
	if err != nil {
		return err
	}
	r.srv.sessions.ended()
	r.srv.cursors.killTxn(r.lsid, *r.txnNumber)
	return nil
}

// noteReadOnly logs a no-op when a transaction ends that has changed nothing:
// what it has read must be committed before its write concern is met, and was
// written before the no-op.
func (r *request) noteReadOnly(b *opwrite.Batch) error {
	if !r.wcGiven && !r.srv.atLeast(5, 0) {
		return nil
	}
	return b.Note(message("read-only transaction with writeConcern " + bsontext.Document(r.concernDocument())))
}

// noteUnknown logs a no-op when a commit or abort is told that its transaction is
// unknown, and makes the write concern wait for it: once it is committed, no
// other primary can have the transaction either.
func (r *request) noteUnknown(out *reply, err error) {
	e, ok := errors.AsType[*servererr.Error](err)
	if !ok || e.Code != servererr.NoSuchTransaction || !transactionCommands[r.spec.name] {
		return
	}
	if !r.wcGiven && !r.srv.atLeast(5, 0) {
		return
	}
	// A member that may not write any more has no write concern to wait for.
	_ = r.srv.cfg.Path.Write(func(b *opwrite.Batch) error {
		if err := b.Note(message("NoSuchTransaction error")); err != nil {
			return err
		}
		out.wrote = b.LastOpTime()
		return nil
	})
}

// message is the o of a no-op that says something.
func message(text string) bson.Raw {
	return bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(nil, "msg", text)))
}

// checkCommitTimestamp holds what a commit of a prepared transaction has to be.
func (r *request) checkCommitTimestamp(at bson.Timestamp, state txnState, prepared oplog.OpTime) error {
	switch {
	case state != txnPrepared:
		return servererr.New(servererr.InvalidOptions, "commitTransaction cannot provide commitTimestamp to unprepared transaction.")
	case at.IsZero():
		return servererr.New(servererr.InvalidOptions, "'commitTimestamp' cannot be null")
	case oplog.CompareTimestamps(at, prepared.TS) < 0:
		return servererr.New(servererr.InvalidOptions, "'commitTimestamp' must be greater than or equal to 'prepareTimestamp'")
	case oplog.CompareTimestamps(r.srv.cfg.Node.View().Committed.TS, prepared.TS) < 0:
		return servererr.New(servererr.InvalidOptions,
			"commitTransaction for a prepared transaction cannot be run before its prepare oplog entry has been majority committed")
	}
	return nil
}

func runAbortTransaction(_ context.Context, r *request, out *reply) error {
	if err := r.mustBeInTxn(); err != nil {
		return err
	}
	err := r.withTxn(func(b *opwrite.Batch, t *opwrite.Txn) error {
		if err := t.Abort(b); err != nil {
			return err
		}
		out.wrote = b.LastOpTime()
		r.sess.finish(txnAborted, out.wrote)
		return nil
	})
	if err != nil {
		return err
	}
	r.srv.sessions.ended()
	r.srv.cursors.killTxn(r.lsid, *r.txnNumber)
	return nil
}

func runPrepareTransaction(_ context.Context, r *request, out *reply) error {
	if err := r.mustBeInTxn(); err != nil {
		return err
	}
	state, at, _ := r.sess.look()
	if state == txnPrepared { // asked again
		out.wrote = r.srv.cfg.Node.View().Applied
	} else {
		err := r.withTxn(func(b *opwrite.Batch, t *opwrite.Txn) error {
			var err error
			if at, err = t.Prepare(b); err != nil {
				return err
			}
			out.wrote = at
			r.sess.mu.Lock()
			r.sess.state, r.sess.prepared = txnPrepared, at
			r.sess.mu.Unlock()
			return nil
		})
		if err != nil {
			return err
		}
	}
	out.Buf = bsoncore.AppendTimestampElement(out.Buf, "prepareTimestamp", at.TS.T, at.TS.I)
	return nil
}

// runCoordinateCommit is refused: the command is one of shards.
func runCoordinateCommit(context.Context, *request, *reply) error {
	return servererr.New(servererr.CommandNotFound, "no such command: 'coordinateCommitTransaction'")
}
