package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// raiseTries limits how many terms Acquire skips. It skips a term whose number a server
// has seen although the document does not have it: an earlier Acquire was interrupted, or
// rolled back, after it had reached that server.
const raiseTries = 8

// raiseWithin is how long after the look at the lease the write may be sent that acquires it:
// its number ends the transactions of a process that has the lease, even if it does not get it.
// After that it is not repeated either: the lease is read again first.
const raiseWithin = time.Second

// Acquire acquires the lease in the next term. It returns the lease and the document
// with the new term, which is majority-committed. Found is the record that the caller has
// read, and after the newest term that this process has had or seen, 0 for none: the next
// one is above it, also if it was lost in a rollback or a restore. If another process has had
// a newer one, and the Claim does not take over, Acquire returns ErrFenced. If another process has the lease, and
// the Claim does not take it over, Acquire returns a *HeldError.
func Acquire(ctx context.Context, cfg Config, found Record, after int64) (*Lease, bson.Raw, error) {
	// A term newer than after is ours if the reply to an earlier Acquire was lost.
	if after != 0 && found.Term > after && found.Holder != cfg.Holder && !cfg.TakeOver {
		return nil, nil, fmt.Errorf("acquire it after term %d, found term %d: %w", after, found.Term, ErrFenced)
	}
	l := newLease(cfg, found)
	if cfg.TTL > 0 && cfg.Keeper != nil {
		cfg.Keeper.begins(&found)
	}
	if err := l.mayRaise(ctx, found); err != nil {
		return nil, nil, err
	}
	l.raiseBy = time.Now().Add(raiseWithin)
	last := max(found.Term, after, cfg.Above)
	for l.term = last + 1; ; l.term++ {
		if cfg.TTL > 0 { // not a part, which has terms of its own
			cfg.Keeper.asks(l.term)
		}
		sent := time.Now()
		doc, again, err := l.raise(ctx, found)
		if err == nil && cfg.TTL > 0 {
			doc, err = l.keep(ctx, sent)
		}
		raised, is := errors.AsType[*raisedError](err)
		if is && cfg.TakeOver && raised.now.Instance == found.Instance && raised.now.Term >= l.term {
			found, l.term, again = raised.now, raised.now.Term, true
		}
		if err != nil && (!again || l.term >= last+raiseTries) {
			return nil, nil, fmt.Errorf("raise the term to %d: %w", l.term, err)
		}
		if err == nil {
			return l, doc, nil
		}
	}
}

// raisedError reports that another process has raised the term at the same time. It is an ErrFenced.
type raisedError struct{ now Record }

func (e *raisedError) Error() string {
	return fmt.Sprintf("another process raised it to %d: %v", e.now.Term, ErrFenced)
}

// Unwrap returns ErrFenced.
func (*raisedError) Unwrap() error { return ErrFenced }

// raise raises the term from the one in found to the lease's, and returns the document
// after that. Again reports that the server has seen a newer number, so that the next term
// may succeed.
func (l *Lease) raise(ctx context.Context, found Record) (doc bson.Raw, again bool, err error) {
	if _, err := mongo.FirstNumber(l.term); err != nil {
		return nil, false, err
	}
	l.sessions = l.sessions[:0]
	l.own = l.Session(OwnSession)
	statement, err := l.statement(found)
	if err != nil {
		return nil, false, err
	}
	by := l.raiseBy
	if l.cfg.TTL == 0 {
		by = time.Time{} // it takes the lease from any process
	}
	n, refused := l.write(ctx, l.own, l.cfg.Collection, statement, by, l.cfg.TTL == 0)
	if refused != nil && !servererr.IsOldNumber(refused) {
		return nil, false, refused
	}
	// The reply is not sufficient: it may be that of another process's write under the
	// same number, which the server does not execute twice.
	doc, now, err := l.read(ctx)
	l.raiseBy = time.Now().Add(raiseWithin)
	switch {
	case err != nil:
		return nil, false, err
	case now.Term == l.term && now.Holder == l.cfg.Holder && now.Instance == l.instance && now.Grant.ID == l.grant:
		return doc, false, nil
	case now.Term != found.Term || now.Holder != found.Holder || now.Instance != found.Instance:
		return nil, false, &raisedError{now}
	case refused == nil && l.cfg.TTL > 0 && now.Grant.isGranted() && now.Holder != l.cfg.Holder:
		return nil, false, &HeldError{Record: now} // it was renewed meanwhile
	case refused == nil:
		return nil, false, fmt.Errorf("the write met %d documents, and the term is still %d: %w", n, now.Term, ErrBehind)
	}
	return nil, true, refused
}

// read reads the document.
func (l *Lease) read(ctx context.Context) (bson.Raw, Record, error) {
	doc, err := metadata.FindOne(ctx, l.target, l.cfg.DB, l.cfg.Collection, metadata.ByID(l.cfg.ID))
	switch {
	case err != nil:
		return nil, Record{}, err
	case doc == nil:
		return nil, Record{}, fmt.Errorf("its document is gone: %w", ErrRewound)
	}
	record, err := l.parse(doc)
	return doc, record, err
}

func (l *Lease) parse(doc bson.Raw) (Record, error) {
	r := metadata.NewReader(doc)
	record := ReadRecord(r)
	if r.Err() != nil {
		return Record{}, &metadata.DamagedError{Link: l.cfg.ID, What: "field " + r.Err().Error()}
	}
	return record, nil
}

// AnswerWithin is how long to wait for the reply to a command that a lease is acquired with. If
// there is none, its outcome is not known; Acquire fails, and can be called again.
const AnswerWithin = 30 * time.Second

// confirmWithin is how long the server waits for a majority before it says that it waits. The same
// write is then sent again, which is not executed again: a majority may take any time, a reply not.
const confirmWithin = 10 * time.Second

// write runs one update as a retryable write under the session's next number, and
// retries it under the same number after transient errors. It returns how many documents
// matched. If by is not zero, it is not sent later than that.
func (l *Lease) write(ctx context.Context, session *mongo.Session, collection string, update metadata.Statement, by time.Time, majority bool) (n int64, err error) {
	cmd, bounded := metadata.Update(l.cfg.DB, collection, update), mongo.Bounded{Limit: AnswerWithin}
	if majority {
		cmd = metadata.MajorityWithin(cmd, confirmWithin)
	} else {
		cmd = metadata.PrimaryOnly(cmd)
	}
	cmd.SendBy = by
	send := session.Write
	var last error
	for {
		err = l.cfg.Retry.Do(ctx, func() error {
			reply, err := bounded.Send(ctx, cmd, send)
			send = session.Again
			if err == nil {
				n, err = metadata.Written(reply)
			}
			if !errors.Is(err, mongo.ErrTooLate) {
				last = err
			}
			return err
		})
		if last != nil && errors.Is(err, mongo.ErrTooLate) && !errors.Is(err, ErrExpired) {
			err = fmt.Errorf("%w; it was to be sent again: %w", last, err)
		}
		if waits, ok := errors.AsType[*mongo.UnconfirmedError](err); !ok || !servererr.IsConcernTimeout(waits.Err) {
			return n, err
		}
	}
}

// Fence raises the term of a document to the lease's, on the session of the lease that
// writes to the document: from then on the server rejects writes of older terms to either.
// The document must have a field term. Fence must be the first use of the session.
func (l *Lease) Fence(ctx context.Context, session *mongo.Session, collection, id string) error {
	n, err := l.write(ctx, session, collection, metadata.Statement{
		Filter: func(dst []byte) []byte {
			dst = bsoncore.AppendStringElement(dst, "_id", id)
			return metadata.AppendDoc(dst, "term", func(dst []byte) []byte {
				return bsoncore.AppendInt64Element(dst, "$lt", l.term)
			})
		},
		Change: func(dst []byte) []byte {
			return metadata.AppendDoc(dst, "$set", func(dst []byte) []byte {
				return bsoncore.AppendInt64Element(dst, "term", l.term)
			})
		},
	}, time.Time{}, true)
	if err == nil && n != 1 {
		err = l.whyNotFenced(ctx, collection, id)
	}
	if err != nil {
		return fmt.Errorf("fence %s: %w", id, Judge(err))
	}
	return nil
}

// whyNotFenced returns the reason why the term of a document was not raised.
func (l *Lease) whyNotFenced(ctx context.Context, collection, id string) error {
	doc, err := metadata.FindOne(ctx, l.target, l.cfg.DB, collection, metadata.ByID(id), "term")
	if err != nil {
		return err
	}
	if doc == nil {
		return &metadata.DamagedError{Link: l.cfg.ID, What: fmt.Sprintf("there is no document %q in %s", id, collection)}
	}
	r := metadata.NewReader(doc)
	term := r.Int64("term")
	switch {
	case r.Err() != nil:
		return &metadata.DamagedError{Link: l.cfg.ID, What: fmt.Sprintf("%s %q: field %v", collection, id, r.Err())}
	case term > l.term:
		return fmt.Errorf("it has term %d, not %d: %w", term, l.term, ErrFenced)
	}
	return fmt.Errorf("it did not take term %d, it has %d: %w", l.term, term, ErrBehind)
}
