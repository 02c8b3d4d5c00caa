package lease

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

var (
	// ErrFenced reports that another process has acquired the lease: this one must no
	// longer write.
	ErrFenced = errors.New("another process has acquired the lease")
	// ErrRewound reports that the servers lost acknowledged writes, in a failover or a
	// restore: the data have to be read again.
	ErrRewound = errors.New("the target lost acknowledged writes")
	// ErrBehind reports that a former primary, which has not noticed yet that it is not
	// primary any more, has answered.
	ErrBehind = errors.New("the server that answered is behind the target's primary")
	// ErrHeld reports that another process has the lease. The error is a *HeldError.
	ErrHeld = errors.New("another process has the lease")
	// ErrExpired reports that the lease was not renewed in time: a write that is sent now would
	// arrive when another process may have it.
	ErrExpired = errors.New("the lease was not renewed in time")
	// ErrSpent reports that this process has called Spend: the lease has to be acquired
	// again.
	ErrSpent = errors.New("the lease was given up and has to be acquired again")
)

// HeldError reports which process has the lease.
type HeldError struct{ Record Record }

func (e *HeldError) Error() string { return ErrHeld.Error() + ": " + e.Record.String() }

// Unwrap returns ErrHeld.
func (*HeldError) Unwrap() error { return ErrHeld }

// Judge adds ErrFenced to an error if the server rejected the transaction number as too
// old, because only newer terms have newer numbers. It returns other errors unchanged.
func Judge(err error) error {
	if servererr.IsOldNumber(err) && !errors.Is(err, ErrFenced) {
		return fmt.Errorf("%w: %w", ErrFenced, err)
	}
	return err
}

// Compare returns nil if term, the one found in what, is the lease's, ErrFenced if it is
// newer, and ErrRewound if it is older.
func (l *Lease) Compare(what string, term int64) error {
	switch {
	case term > l.term:
		return &supersededError{what: what, found: term, term: l.term}
	case term < l.term:
		return fmt.Errorf("%s has term %d, not %d: %w", what, term, l.term, ErrRewound)
	}
	return nil
}

// supersededError reports that a newer term was found in a document. It is an ErrFenced.
type supersededError struct {
	what        string
	found, term int64
	// read means that the document was only read, not to be written.
	read bool
}

func (e *supersededError) Error() string {
	return fmt.Sprintf("%s has term %d, not %d: %v", e.what, e.found, e.term, ErrFenced)
}

// Unwrap returns ErrFenced.
func (*supersededError) Unwrap() error { return ErrFenced }

// Check reads the document, and returns an error if its term is not the lease's. It is
// called immediately before commands that the server cannot fence: these may still arrive
// late, but a process that was suspended before Check does not send them. ErrExpired, and
// not ErrFenced, means that the document still has the term of the lease: no other process
// has acquired it until then.
func (l *Lease) Check(ctx context.Context) error {
	_, now, err := l.read(ctx)
	if err == nil {
		err = l.Compare("it", now.Term)
	}
	if superseded, ok := errors.AsType[*supersededError](err); ok {
		superseded.read = true
	}
	if err != nil {
		return err
	}
	return l.cfg.Keeper.Err()
}

// InTxn runs work in a transaction of one of the lease's sessions and commits it with
// write concern majority. After a transient error, work runs again, in the next
// transaction.
func (l *Lease) InTxn(ctx context.Context, session *mongo.Session, work func(txn *mongo.Txn) error) error {
	return Judge(l.cfg.Retry.Do(ctx, func() error { return session.InTxn(ctx, true, work) }))
}

// Update changes the document in a transaction, if it has the lease's term and matches
// where. A newer lease and the transaction cannot both succeed. If the document does not
// match, Update returns ErrFenced or ErrRewound according to its term, or the document if
// it has the lease's term but does not match where.
func (l *Lease) Update(ctx context.Context, txn *mongo.Txn, where, change func(dst []byte) []byte) (unmatched bson.Raw, err error) {
	reply, err := txn.Call(ctx, metadata.Update(l.cfg.DB, l.cfg.Collection, metadata.Statement{
		Filter: func(dst []byte) []byte {
			dst = bsoncore.AppendStringElement(dst, "_id", l.cfg.ID)
			return where(bsoncore.AppendInt64Element(dst, "term", l.term))
		},
		Change: func(dst []byte) []byte { return AppendCount(change(dst)) },
	}))
	if err != nil {
		return nil, err
	}
	if n, err := metadata.Written(reply); err != nil || n == 1 {
		return nil, err
	}
	doc, err := metadata.FindOne(ctx, txn, l.cfg.DB, l.cfg.Collection, metadata.ByID(l.cfg.ID))
	switch {
	case err != nil:
		return nil, err
	case doc == nil:
		return nil, fmt.Errorf("its document is gone: %w", ErrRewound)
	}
	now, err := l.parse(doc)
	if err != nil {
		return nil, err
	}
	return doc, l.Compare("it", now.Term)
}

// AppendCount appends the change that counts writes. A server does not log an update
// that changes nothing, and the commit of such a transaction would neither conflict
// with a newer term nor wait until earlier writes are majority-committed.
func AppendCount(dst []byte) []byte {
	return metadata.AppendDoc(dst, "$inc", func(dst []byte) []byte { return bsoncore.AppendInt64Element(dst, "writes", 1) })
}
