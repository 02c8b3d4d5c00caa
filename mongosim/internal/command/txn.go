package command

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
func (r *request) begin() error {
	if err := r.load(); err != nil {
		return err
	}
	s, n := r.sess, *r.txnNumber
	s.mu.Lock()
	active, state, txn := s.active, s.state, s.txn
	s.mu.Unlock()
	if n < active {
		return r.tooOld(active, state)
	}
	switch {
	case !r.inTxn():
		if n == active {
			if state != noTxn {
				return servererr.New(servererr.InvalidOptions,
					"Must specify autocommit=false on all operations of a multi-statement transaction.")
			}
			return nil
		}
		r.fresh = true
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
	return r.newNumber(n, txnInProgress, func(b *opwrite.Batch) *opwrite.Txn {
		var at bson.Timestamp
		if r.readConcern.level == "snapshot" {
			at = b.LastOpTime().TS
		}
		if r.readConcern.atClusterTime != nil {
			at = *r.readConcern.atClusterTime
		}
		r.read = b.LastOpTime().TS // what its snapshot may show: see awaitRead
		return b.Begin(&opwrite.Session{LSID: s.lsid.logged, TxnNumber: n}, at)
	})
}

func (r *request) tooOld(active int64, state txnState) error {
	what, n := "transaction", *r.txnNumber
	if state == noTxn {
		what = "retryable write"
	}
	if !r.inTxn() {
		return servererr.New(servererr.TransactionTooOld,
			"Retryable write with txnNumber %d is prohibited on session %s because a newer %s with txnNumber %d has already started on this session.",
			n, r.sess.lsid.text(r.srv), what, active)
	}
	return servererr.New(servererr.TransactionTooOld,
		"Cannot start transaction %d on session %s because a newer %s with txnNumber %d has already started on this session.",
		n, r.sess.lsid.text(r.srv), what, active)
}

// newNumber gives the session a new txnNumber, which ends a transaction that is
// still open.
func (r *request) newNumber(n int64, state txnState, open func(b *opwrite.Batch) *opwrite.Txn) error {
	s := r.sess
	s.mu.Lock()
	simple := state == noTxn && s.state != txnInProgress && s.state != txnPrepared
	if simple {
		s.active, s.state = n, noTxn
	}
	s.mu.Unlock()
	if simple {
		return nil
	}
	err := r.srv.cfg.Path.Write(func(b *opwrite.Batch) error {
		// Who has stepped down or stopped has ended the open transactions by now: one
		// that is begun after that would stay, and be in the way of the applier.
		if primary := r.srv.asPrimary(); open != nil && primary.Err() != nil {
			return interrupted(primary)
		}
		s.mu.Lock()
		old, was := s.txn, s.state
		s.mu.Unlock()
		if was == txnPrepared {
			return servererr.New(servererr.PreparedTransactionInProgress,
				"Cannot change transaction number while the session has a prepared transaction")
		}
		if was == txnInProgress {
			if err := old.Abort(b); err != nil {
				return err
			}
		}
		if open != nil {
			r.txn = open(b)
		}
		s.mu.Lock()
		s.active, s.state, s.txn = n, state, r.txn
		s.unlimit() // the clock of the transaction before
		s.mu.Unlock()
		return nil
	})
	r.srv.sessions.ended()
	if err == nil && open != nil {
		r.limitLifetime(n)
	}
	return err
}

// limitLifetime aborts a transaction that is open for too long.
func (r *request) limitLifetime(number int64) {
	limit := r.srv.cfg.TransactionLifetime
	if limit <= 0 {
		return
	}
	srv, s := r.srv, r.sess
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active != number || s.state != txnInProgress { // a step-down was faster
		return
	}
	s.lifetime = time.AfterFunc(limit, func() {
		if srv.closed.Err() == nil {
			srv.abortIf(s, func() bool { return s.active == number && s.state == txnInProgress })
		}
	})
}

// unlimit stops the clock of a transaction that has ended. The lock is held.
func (s *session) unlimit() {
	if s.lifetime != nil {
		s.lifetime.Stop()
		s.lifetime = nil
	}
}

// checkTxnState refuses commands that a transaction in its state does not take.
func (r *request) checkTxnState(n int64, state txnState) error {
	switch {
	case state == txnAborted:
		return servererr.New(servererr.NoSuchTransaction, "Transaction %d has been aborted.", n)
	case state == txnCommitted && r.spec.name != "commitTransaction":
		return servererr.New(servererr.TransactionCommitted, "Transaction %d has been committed.", n)
	case state == txnPrepared && !transactionCommands[r.spec.name]:
		return servererr.New(servererr.PreparedTransactionInProgress,
			"Cannot call any operation other than abort, prepare or commit on a prepared transaction")
	}
	return nil
}

// withTxn runs fn within Path.Write on the transaction of the command, if it is
// still open: a step-down or another command may have ended it meanwhile.
func (r *request) withTxn(fn func(b *opwrite.Batch, t *opwrite.Txn) error) error {
	return r.srv.cfg.Path.Write(func(b *opwrite.Batch) error {
		s := r.sess
		s.mu.Lock()
		open := s.txn == r.txn && (s.state == txnInProgress || s.state == txnPrepared)
		s.mu.Unlock()
		if !open {
			return servererr.New(servererr.NoSuchTransaction, "Transaction %d has been aborted.", *r.txnNumber)
		}
		return fn(b, r.txn)
	})
}

// txnView runs fn on the data as the command's transaction sees it.
func (r *request) txnView(fn func(v storage.View) error) error {
	return r.withTxn(func(_ *opwrite.Batch, t *opwrite.Txn) error { return fn(t.View()) })
}

// abandonTxn aborts the command's transaction unless it is prepared: what every
// error of a statement does.
func (r *request) abandonTxn() {
	if r.txn != nil {
		r.srv.abortIf(r.sess, func() bool { return r.sess.txn == r.txn && r.sess.state == txnInProgress })
	}
}

// abortIf aborts the transaction of a session if the condition, which is looked
// at with the session's lock held, is true.
func (s *Server) abortIf(sess *session, condition func() bool) {
	aborted, number := false, int64(0)
	err := s.cfg.Path.Write(func(b *opwrite.Batch) error {
		sess.mu.Lock()
		txn := sess.txn
		number = sess.active
		aborted = txn != nil && condition()
		if aborted {
			sess.state, sess.txn = txnAborted, nil
			sess.unlimit()
		}
		sess.mu.Unlock()
		if !aborted {
			return nil
		}
		return txn.Abort(b)
	})
	if err != nil && s.cfg.Log != nil {
		s.cfg.Log.Warn("a transaction could not be aborted", keySession, sess.lsid.text(s), keyError, err)
	}
	if aborted {
		s.sessions.ended()
		s.cursors.killTxn(sess.lsid, number)
	}
}

// releaseTransactions ends the open transactions of a primary that steps down, or
// of a member that stops: its store may be used again.
// Prepared ones are only let go of: their entries are in the log, and whoever
// applies it from now on holds them again.
func (s *Server) releaseTransactions() {
	for _, sess := range s.sessions.all() {
		_ = s.cfg.Path.Write(func(b *opwrite.Batch) error {
			sess.mu.Lock()
			txn, state := sess.txn, sess.state
			sess.txn = nil
			sess.unlimit()
			if state == txnInProgress || state == txnPrepared {
				sess.state = txnAborted
				sess.loaded = state == txnInProgress
			}
			sess.mu.Unlock()
			switch {
			case txn != nil && state == txnInProgress:
				return txn.Abort(b)
			case txn != nil && state == txnPrepared:
				txn.Release(b)
			}
			return nil
		})
	}
	s.sessions.ended()
}

// adopt takes over a transaction that a former primary has prepared.
func (s *Server) adopt(p opwrite.Prepared) {
	l, err := loggedLSID(p.Session.LSID)
	if err != nil {
		if s.cfg.Log != nil {
			s.cfg.Log.Error("a prepared transaction has no valid session", keyAt, p.At.String(), keyError, err)
		}
		return
	}
	sess := s.sessions.use(l)
	defer s.sessions.done(sess)
	txn := s.cfg.Path.Adopt(p)
	sess.mu.Lock()
	sess.loaded, sess.active, sess.state = true, p.Session.TxnNumber, txnPrepared
	sess.txn, sess.prepared = txn, p.At
	sess.mu.Unlock()
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

// write runs fn on the command's transaction, or else within a batch, where it is
// run again when it has met a conflict and the other writer has ended. It sets
// out.wrote. What a failed run has appended to out.Buf is taken back.
func (r *request) write(ctx context.Context, out *reply, fn func(opwrite.Ops) error) error {
	if r.inTxn() {
		return r.withTxn(func(b *opwrite.Batch, t *opwrite.Txn) error {
			out.wrote = b.LastOpTime()
			return fn(t)
		})
	}
	return r.writeBatch(ctx, out, func(b *opwrite.Batch) error { return fn(b) })
}

// writeBatch is write for what cannot be part of a transaction.
func (r *request) writeBatch(ctx context.Context, out *reply, fn func(*opwrite.Batch) error) error {
	start := len(out.Buf)
	for {
		changed, ended := r.srv.cfg.Store.Changed(), r.srv.sessions.next()
		err := r.srv.cfg.Path.Write(func(b *opwrite.Batch) error {
			out.Buf = out.Buf[:start]
			before := b.LastOpTime()
			err := fn(b)
			// What has failed without a trace has no write concern to wait for.
			if now := b.LastOpTime(); err == nil || now != before {
				out.wrote = now
			}
			return err
		})
		if !errors.Is(err, storage.ErrWriteConflict) {
			return err
		}
		primary := r.srv.asPrimary()
		select {
		case <-changed:
		case <-ended:
		case <-primary.Done():
		case <-ctx.Done():
			return interrupted(ctx)
		}
		if primary.Err() != nil {
			return interrupted(primary)
		}
	}
}
