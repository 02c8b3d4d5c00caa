package dispatch

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
func (r *Request) mustBeInTxn() error {
	if !r.InTxn() {
		return servererr.New(servererr.CommandFailed, "%s must be run within a transaction", r.Spec.Name)
	}
	return nil
}

func (s *session) look() (state txnState, prepared, ended oplog.OpTime) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return s.State, s.prepared, s.ended
}

// finish notes the end of the session's transaction, within Path.Write.
func (s *session) finish(state txnState, at oplog.OpTime) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.State, s.txn, s.ended = state, nil, at
	s.unlimit()
}

func runCommitTransaction(_ context.Context, r *Request, out *Reply) error {
	if err := r.mustBeInTxn(); err != nil {
		return err
	}
	state, prepared, ended := r.sess.look()
	if state == txnCommitted {
		out.Wrote = r.Server.Config.Node.View().Applied
		if ended.After(out.Wrote) {
			out.Wrote = ended
		}
		return nil
	}
	var at bson.Timestamp
	if e, ok := rawbson.Lookup(r.Cmd, "commitTimestamp"); ok {
		if at, ok = e.Timestamp(); !ok {
			return WrongType(r.Spec.Name, "commitTimestamp", e.Type, "timestamp")
		}
		if err := r.checkCommitTimestamp(at, state, prepared); err != nil {
			return err
		}
	} else if state == TxnPrepared {
		return servererr.New(servererr.InvalidOptions, "commitTransaction must provide commitTimestamp to prepared transaction.")
	}
	err := r.withTxn(func(b *opwrite.Batch, t *opwrite.Txn) error {
		var done oplog.OpTime
		var err error
		if state == TxnPrepared {
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
		out.Wrote = done
		return nil
	})
	if err != nil {
		return err
	}
	r.Server.Sessions.ended()
	r.Server.Cursors.killTxn(r.LSID, *r.TxnNumber)
	return nil
}

// noteReadOnly logs a no-op when a transaction ends that has changed nothing:
// the data that it has read must be committed before its write concern is met,
// and was written before the no-op.
func (r *Request) noteReadOnly(b *opwrite.Batch) error {
	if !r.wcGiven && !r.Server.AtLeast(5, 0) {
		return nil
	}
	return b.Note(message("read-only transaction with writeConcern " + bsontext.Document(r.concernDocument())))
}

// noteUnknown logs a no-op when the transaction of a commit or abort is unknown,
// and makes the write concern wait for it: once it is committed, no other primary
// can have the transaction either.
func (r *Request) noteUnknown(out *Reply, err error) {
	e, ok := errors.AsType[*servererr.Error](err)
	if !ok || e.Code != servererr.NoSuchTransaction || !transactionCommands[r.Spec.Name] {
		return
	}
	if !r.wcGiven && !r.Server.AtLeast(5, 0) {
		return
	}
	// A member that is no longer writable has no write concern to wait for.
	_ = r.Server.Config.Path.Write(func(b *opwrite.Batch) error {
		if err := b.Note(message("NoSuchTransaction error")); err != nil {
			return err
		}
		out.Wrote = b.LastOpTime()
		return nil
	})
}

// message returns the o of a no-op with a message.
func message(text string) bson.Raw {
	return bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(nil, "msg", text)))
}

// checkCommitTimestamp checks the timestamp of a commit of a prepared
// transaction.
func (r *Request) checkCommitTimestamp(at bson.Timestamp, state txnState, prepared oplog.OpTime) error {
	switch {
	case state != TxnPrepared:
		return servererr.New(servererr.InvalidOptions, "commitTransaction cannot provide commitTimestamp to unprepared transaction.")
	case at.IsZero():
		return servererr.New(servererr.InvalidOptions, "'commitTimestamp' cannot be null")
	case oplog.CompareTimestamps(at, prepared.TS) < 0:
		return servererr.New(servererr.InvalidOptions, "'commitTimestamp' must be greater than or equal to 'prepareTimestamp'")
	case oplog.CompareTimestamps(r.Server.Config.Node.View().Committed.TS, prepared.TS) < 0:
		return servererr.New(servererr.InvalidOptions,
			"commitTransaction for a prepared transaction cannot be run before its prepare oplog entry has been majority committed")
	}
	return nil
}

func runAbortTransaction(_ context.Context, r *Request, out *Reply) error {
	if err := r.mustBeInTxn(); err != nil {
		return err
	}
	err := r.withTxn(func(b *opwrite.Batch, t *opwrite.Txn) error {
		if err := t.Abort(b); err != nil {
			return err
		}
		out.Wrote = b.LastOpTime()
		r.sess.finish(txnAborted, out.Wrote)
		return nil
	})
	if err != nil {
		return err
	}
	r.Server.Sessions.ended()
	r.Server.Cursors.killTxn(r.LSID, *r.TxnNumber)
	return nil
}

func runPrepareTransaction(_ context.Context, r *Request, out *Reply) error {
	if err := r.mustBeInTxn(); err != nil {
		return err
	}
	state, at, _ := r.sess.look()
	if state == TxnPrepared { // retried
		out.Wrote = r.Server.Config.Node.View().Applied
	} else {
		err := r.withTxn(func(b *opwrite.Batch, t *opwrite.Txn) error {
			var err error
			if at, err = t.Prepare(b); err != nil {
				return err
			}
			out.Wrote = at
			r.sess.Mu.Lock()
			r.sess.State, r.sess.prepared = TxnPrepared, at
			r.sess.Mu.Unlock()
			return nil
		})
		if err != nil {
			return err
		}
	}
	out.Buf = bsoncore.AppendTimestampElement(out.Buf, "prepareTimestamp", at.TS.T, at.TS.I)
	return nil
}
