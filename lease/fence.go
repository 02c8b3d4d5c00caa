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
	// ErrFenced reports that another process has acquired the lease: this one must not
	// write any more.
	ErrFenced = errors.New("another process has acquired the lease")
	// ErrRewound reports that the servers lost acknowledged writes, in a failover or a
	// restore: what is there has to be read again.
	ErrRewound = errors.New("the target lost acknowledged writes")
	// ErrBehind reports a reply of a former primary that does not know yet that it is
	// none any more.
	ErrBehind = errors.New("the server that answered is behind the target's primary")
	// ErrSpent reports that the process gave the lease up, by Spend: it has to be
	// acquired again.
	ErrSpent = errors.New("the lease was given up and has to be acquired again")
)

// Judge returns the error with ErrFenced if the server refused a transaction number
// for its age: only a newer term has newer ones. Other errors it returns as they are.
func Judge(err error) error {
	if servererr.IsOldNumber(err) && !errors.Is(err, ErrFenced) {
		return fmt.Errorf("%w: %w", ErrFenced, err)
	}
	return err
}

// Compare returns nil if term, which was found in what, is the lease's. Otherwise it
// returns ErrFenced for a newer one and ErrRewound for an older one.
func (l *Lease) Compare(what string, term int64) error {
	switch {
	case term > l.term:
		return fmt.Errorf("%s has term %d, not %d: %w", what, term, l.term, ErrFenced)
	case term < l.term:
		return fmt.Errorf("%s has term %d, not %d: %w", what, term, l.term, ErrRewound)
	}
	return nil
}

// Check reads the document, and returns an error if its term is not the lease's. It is
// for commands that the server cannot fence: sent immediately after Check they may be
// late, but a process that was suspended before sends none of them.
func (l *Lease) Check(ctx context.Context) error {
	_, now, err := l.read(ctx)
	if err != nil {
		return err
	}
	return l.Compare("it", now.Term)
}

// InTxn runs work in a transaction of one of the lease's sessions and commits it with
// majority. If it was refused for a reason that passes, work runs again, in the next
// transaction.
func (l *Lease) InTxn(ctx context.Context, session *mongo.Session, work func(txn *mongo.Txn) error) error {
	return Judge(l.cfg.Retry.Do(ctx, func() error { return session.InTxn(ctx, true, work) }))
}

// Update changes the document in a transaction, if it has the lease's term and matches
// where: a newer lease and the transaction cannot both succeed. If the document does
// not match, Update returns ErrFenced or ErrRewound by its term, and the document if
// the term is the lease's: why it does not match where is for the caller to say.
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
// with a newer term nor confirm what was there before.
func AppendCount(dst []byte) []byte {
	return metadata.AppendDoc(dst, "$inc", func(dst []byte) []byte { return bsoncore.AppendInt64Element(dst, "writes", 1) })
}
