package checkpoint

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// ErrWithdrawn reports that another process has withdrawn an intent, or that the link was created under it.
var ErrWithdrawn = errors.New("the intent to create it was withdrawn meanwhile")

// Intend returns the intent to create the link, by which processes that prepare its target together exclude each other:
// all of them have the same one. Either one of them creates the link, or one of them undoes the preparation.
//
//	none ── Intend ──▶ an intent ── CreateAgain ──▶ none, and the link exists
//	                     │  ▲
//	                     └──┘ Withdraw: another intent. A link is not created under the first one any more.
func (s *Store) Intend(ctx context.Context) (intent string, err error) {
	for {
		doc, err := metadata.FindOne(ctx, s.cfg.Target, s.cfg.DB, metadata.Begins, metadata.ByID(s.cfg.Link))
		if err != nil {
			return "", s.wrap(err, "read the intent to create it")
		}
		if doc != nil {
			r := metadata.NewReader(doc)
			intent := r.Text(fieldIntent)
			if err := r.Err(); err != nil {
				return "", s.wrap(fmt.Errorf("the document %s of %s.%s is damaged: %w", s.cfg.Link, s.cfg.DB, metadata.Begins, err), "read the intent to create it")
			}
			return intent, nil
		}
		insert := metadata.Write(s.cfg.DB, "insert", metadata.Begins, "documents", metadata.Document(s.intentID(rand.Text())))
		if err := metadata.Run(ctx, s.cfg.Target, metadata.Majority(insert), -1); err != nil && !servererr.IsDuplicateKey(err) {
			return "", s.wrap(err, "record the intent to create it")
		}
	}
}

// Withdraw puts another intent in place of one. It returns ErrWithdrawn if that is not the one any more: then the link
// may have been created.
func (s *Store) Withdraw(ctx context.Context, intent string) (next string, err error) {
	next = rand.Text()
	cmd := metadata.Majority(metadata.Update(s.cfg.DB, metadata.Begins, metadata.Statement{Filter: s.intentID(intent), Change: func(dst []byte) []byte {
		return metadata.AppendDoc(dst, "$set", func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, fieldIntent, next) })
	}}))
	// The command may be sent again, and matches nothing then, so the document decides whether it was executed.
	if err := metadata.Run(ctx, s.cfg.Target, cmd, -1); err != nil {
		return "", s.wrap(err, "withdraw the intent to create it")
	}
	return next, s.Intended(ctx, next)
}

// Intended returns ErrWithdrawn if the intent is not the one any more.
func (s *Store) Intended(ctx context.Context, intent string) error {
	doc, err := metadata.FindOne(ctx, s.cfg.Target, s.cfg.DB, metadata.Begins, s.intentID(intent))
	if err == nil && doc == nil {
		err = ErrWithdrawn
	}
	if err != nil {
		return s.wrap(err, "create it")
	}
	return nil
}

// fieldIntent is the intent, fieldTouched counts the transactions of those that hold it.
const fieldIntent, fieldTouched = "intent", "touched"

func (s *Store) intentID(intent string) func(dst []byte) []byte {
	return func(dst []byte) []byte {
		return bsoncore.AppendStringElement(bsoncore.AppendStringElement(dst, "_id", s.cfg.Link), fieldIntent, intent)
	}
}

// Unmade is the right to change the target of a link as long as it was not created: an intent that was withdrawn by this
// process, and by no other one since.
type Unmade struct {
	store   *Store
	intent  string
	session *mongo.ClockSession
}

// Unmade returns the right under an intent.
func (s *Store) Unmade(intent string) *Unmade {
	return &Unmade{s, intent, mongo.NewClockSession(s.once, s.cfg.DB, s.cfg.Link, "unmade")}
}

// Check returns ErrWithdrawn if the intent is not the one any more.
func (u *Unmade) Check(ctx context.Context) error { return u.store.Intended(ctx, u.intent) }

// Within runs work in a transaction that commits, with a majority, only if the intent is the one until then. It may run work again.
func (u *Unmade) Within(ctx context.Context, work func(txn mongo.Caller) error) error {
	return u.session.InTxn(ctx, func(txn *mongo.Txn) error {
		touch := metadata.Update(u.store.cfg.DB, metadata.Begins, metadata.Statement{Filter: u.store.intentID(u.intent), Change: func(dst []byte) []byte {
			return metadata.AppendDoc(dst, "$inc", func(dst []byte) []byte { return bsoncore.AppendInt64Element(dst, fieldTouched, 1) })
		}})
		if err := one(ctx, txn, touch, ErrWithdrawn); err != nil {
			return err
		}
		return work(txn)
	})
}
