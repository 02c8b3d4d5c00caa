package dispatch

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
)

// begin brings the session that was checked out to the command's txnNumber: a
// retryable write, the start of a transaction, or its continuation.
func (r *Request) begin() error {
	if err := r.load(); err != nil {
		return err
	}
	s, n := r.sess, *r.TxnNumber
	s.Mu.Lock()
	active, state, txn := s.active, s.State, s.txn
	s.Mu.Unlock()
	if n < active {
		return r.tooOld(active, state)
	}
	switch {
	case !r.InTxn():
		if n == active {
			if state != noTxn {
				return servererr.New(servererr.InvalidOptions,
					"Must specify autocommit=false on all operations of a multi-statement transaction.")
			}
			return nil
		}
		r.Fresh = true
		return r.newNumber(n, noTxn, nil)
	case !r.startTxn:
		if n != active || state == noTxn {
			return servererr.New(servererr.NoSuchTransaction,
				"Given transaction number %d does not match any in-progress transactions. The active transaction number is %d", n, active)
		}
		r.txn = txn
		return r.checkTxnState(n, state)
	case n == active:
		return servererr.New(servererr.ConflictingOperationInProgress,
			"Only servers in a sharded cluster can start a new transaction at the active transaction number")
	}
	return r.newNumber(n, TxnInProgress, func(b *opwrite.Batch) *opwrite.Txn {
		var at bson.Timestamp
		if r.ReadConcern.Level == "snapshot" {
			at = b.LastOpTime().TS
		}
		if r.ReadConcern.atClusterTime != nil {
			at = *r.ReadConcern.atClusterTime
		}
		r.read = b.LastOpTime().TS // the newest data in its snapshot: see awaitRead
		return b.Begin(&opwrite.Session{LSID: s.lsid.Logged, TxnNumber: n}, at)
	})
}

func (r *Request) tooOld(active int64, state txnState) error {
	what, n := "transaction", *r.TxnNumber
	if state == noTxn {
		what = "retryable write"
	}
	if !r.InTxn() {
		return servererr.New(servererr.TransactionTooOld,
			"Retryable write with txnNumber %d is prohibited on session %s because a newer %s with txnNumber %d has already started on this session.",
			n, r.sess.lsid.Text(r.Server), what, active)
	}
	return servererr.New(servererr.TransactionTooOld,
		"Cannot start transaction %d on session %s because a newer %s with txnNumber %d has already started on this session.",
		n, r.sess.lsid.Text(r.Server), what, active)
}

// newNumber gives the session a new txnNumber, which ends a transaction that is
// still open.
func (r *Request) newNumber(n int64, state txnState, open func(b *opwrite.Batch) *opwrite.Txn) error {
	s := r.sess
	s.Mu.Lock()
	simple := state == noTxn && s.State != TxnInProgress && s.State != TxnPrepared
	if simple {
		s.active, s.State = n, noTxn
	}
	s.Mu.Unlock()
	if simple {
		return nil
	}
	err := r.Server.Config.Path.Write(func(b *opwrite.Batch) error {
		// A primary that stepped down or stopped has ended the open transactions by now: one
		// started after that would stay and block the applier.
		if primary := r.Server.asPrimary(); open != nil && primary.Err() != nil {
			return Interrupted(primary)
		}
		s.Mu.Lock()
		old, was := s.txn, s.State
		s.Mu.Unlock()
		if was == TxnPrepared {
			return servererr.New(servererr.PreparedTransactionInProgress,
				"Cannot change transaction number while the session has a prepared transaction")
		}
		if was == TxnInProgress {
			if err := old.Abort(b); err != nil {
				return err
			}
		}
		if open != nil {
			r.txn = open(b)
		}
		s.Mu.Lock()
		s.active, s.State, s.txn = n, state, r.txn
		s.unlimit() // the clock of the transaction before
		s.Mu.Unlock()
		return nil
	})
	r.Server.Sessions.ended()
	if err == nil && open != nil {
		r.limitLifetime(n)
	}
	return err
}

// limitLifetime aborts a transaction that is open for too long.
func (r *Request) limitLifetime(number int64) {
	limit := r.Server.Config.TransactionLifetime
	if limit <= 0 {
		return
	}
	srv, s := r.Server, r.sess
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.active != number || s.State != TxnInProgress { // a step-down intervened
		return
	}
	s.Lifetime = time.AfterFunc(limit, func() {
		if srv.closed.Err() == nil {
			srv.abortIf(s, func() bool { return s.active == number && s.State == TxnInProgress })
		}
	})
}

// unlimit stops the clock of a transaction that has ended. The lock is taken.
func (s *session) unlimit() {
	if s.Lifetime != nil {
		s.Lifetime.Stop()
		s.Lifetime = nil
	}
}

// checkTxnState refuses commands that a transaction in its state does not take.
func (r *Request) checkTxnState(n int64, state txnState) error {
	switch {
	case state == txnAborted:
		return servererr.New(servererr.NoSuchTransaction, "Transaction %d has been aborted.", n)
	case state == txnCommitted && r.Spec.Name != "commitTransaction":
		return servererr.New(servererr.TransactionCommitted, "Transaction %d has been committed.", n)
	case state == TxnPrepared && !transactionCommands[r.Spec.Name]:
		return servererr.New(servererr.PreparedTransactionInProgress,
			"Cannot call any operation other than abort, prepare or commit on a prepared transaction")
	}
	return nil
}

// withTxn runs fn within Path.Write on the transaction of the command, if it is
// still open: a step-down or another command may have ended it meanwhile.
func (r *Request) withTxn(fn func(b *opwrite.Batch, t *opwrite.Txn) error) error {
	return r.Server.Config.Path.Write(func(b *opwrite.Batch) error {
		s := r.sess
		s.Mu.Lock()
		open := s.txn == r.txn && (s.State == TxnInProgress || s.State == TxnPrepared)
		s.Mu.Unlock()
		if !open {
			return servererr.New(servererr.NoSuchTransaction, "Transaction %d has been aborted.", *r.TxnNumber)
		}
		return fn(b, r.txn)
	})
}

// txnView runs fn on the data as the command's transaction sees it.
func (r *Request) txnView(fn func(v storage.View) error) error {
	return r.withTxn(func(_ *opwrite.Batch, t *opwrite.Txn) error { return fn(t.View()) })
}

// AbandonTxn aborts the command's transaction unless it is prepared: what every
// error of a statement does.
func (r *Request) AbandonTxn() {
	if r.txn != nil {
		r.Server.abortIf(r.sess, func() bool { return r.sess.txn == r.txn && r.sess.State == TxnInProgress })
	}
}

// abortIf aborts the transaction of a session if the condition, evaluated with
// the session's lock held, is true.
func (s *Server) abortIf(sess *session, condition func() bool) {
	aborted, number := false, int64(0)
	err := s.Config.Path.Write(func(b *opwrite.Batch) error {
		sess.Mu.Lock()
		txn := sess.txn
		number = sess.active
		aborted = txn != nil && condition()
		if aborted {
			sess.State, sess.txn = txnAborted, nil
			sess.unlimit()
		}
		sess.Mu.Unlock()
		if !aborted {
			return nil
		}
		return txn.Abort(b)
	})
	if err != nil && s.Config.Log != nil {
		s.Config.Log.Warn("a transaction could not be aborted", keySession, sess.lsid.Text(s), keyError, err)
	}
	if aborted {
		s.Sessions.ended()
		s.Cursors.killTxn(sess.lsid, number)
	}
}

// releaseTransactions ends the open transactions of a primary that steps down, or
// of a member that stops: its store may be used again. Prepared ones are only
// released: their entries are in the log, and the next applier prepares them
// again.
func (s *Server) releaseTransactions() {
	for _, sess := range s.Sessions.All() {
		_ = s.Config.Path.Write(func(b *opwrite.Batch) error {
			sess.Mu.Lock()
			txn, state := sess.txn, sess.State
			sess.txn = nil
			sess.unlimit()
			if state == TxnInProgress || state == TxnPrepared {
				sess.State = txnAborted
				sess.loaded = state == TxnInProgress
			}
			sess.Mu.Unlock()
			switch {
			case txn != nil && state == TxnInProgress:
				return txn.Abort(b)
			case txn != nil && state == TxnPrepared:
				txn.Release(b)
			}
			return nil
		})
	}
	s.Sessions.ended()
}

// adopt takes over a transaction that a former primary has prepared.
func (s *Server) adopt(p opwrite.Prepared) {
	l, err := loggedLSID(p.Session.LSID)
	if err != nil {
		if s.Config.Log != nil {
			s.Config.Log.Error("a prepared transaction has no valid session", keyAt, p.At.String(), keyError, err)
		}
		return
	}
	sess := s.Sessions.use(l)
	defer s.Sessions.done(sess)
	txn := s.Config.Path.Adopt(p)
	sess.Mu.Lock()
	sess.loaded, sess.active, sess.State = true, p.Session.TxnNumber, TxnPrepared
	sess.txn, sess.prepared = txn, p.At
	sess.Mu.Unlock()
}

// endings wakes writers that wait for the end of some transaction.
type endings struct {
	mu sync.Mutex
	ch chan struct{}
}

// next returns a channel that is closed at the next end.
func (e *endings) next() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ch == nil {
		e.ch = make(chan struct{})
	}
	return e.ch
}

func (e *endings) ended() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ch != nil {
		close(e.ch)
		e.ch = nil
	}
}

// Write runs fn on the command's transaction, or else within a batch, where it is
// retried after a conflict once the other writer has ended. It sets out.wrote.
// Output of a failed run in out.Buf is removed.
func (r *Request) Write(ctx context.Context, out *Reply, fn func(opwrite.Ops) error) error {
	if r.InTxn() {
		return r.withTxn(func(b *opwrite.Batch, t *opwrite.Txn) error {
			out.Wrote = b.LastOpTime()
			t.Refuse(r.userWrites(b.View()))
			return fn(t)
		})
	}
	return r.WriteBatch(ctx, out, func(b *opwrite.Batch) error { return fn(b) })
}

// WriteBatch is write for commands that cannot be part of a transaction.
func (r *Request) WriteBatch(ctx context.Context, out *Reply, fn func(*opwrite.Batch) error) error {
	start := len(out.Buf)
	for {
		changed, ended := r.Server.Config.Store.Changed(), r.Server.Sessions.next()
		err := r.Server.Config.Path.Write(func(b *opwrite.Batch) error {
			out.Buf = out.Buf[:start]
			b.Refuse(r.userWrites(b.View()))
			before := b.LastOpTime()
			err := fn(b)
			// A command that failed without effect has no write concern to wait
			// for.
			if now := b.LastOpTime(); err == nil || now != before {
				out.Wrote = now
			}
			return err
		})
		if !errors.Is(err, storage.ErrWriteConflict) {
			return err
		}
		primary := r.Server.asPrimary()
		select {
		case <-changed:
		case <-ended:
		case <-primary.Done():
		case <-ctx.Done():
			return Interrupted(ctx)
		}
		if primary.Err() != nil {
			return Interrupted(primary)
		}
	}
}
