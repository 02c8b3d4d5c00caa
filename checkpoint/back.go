package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// Back says which link a link is the way back of.
type Back struct {
	// Link and Instance are of the link that has ended, At is when.
	Link, Instance string
	At             time.Time
	// Start is where the way back begins: see Reverse.
	Start oplog.OpTime
}

const fieldBack = "back"

func appendBack(dst []byte, b *Back) []byte {
	return metadata.AppendDoc(dst, fieldBack, func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, "link", b.Link)
		dst = bsoncore.AppendStringElement(dst, "instance", b.Instance)
		dst = bsoncore.AppendDateTimeElement(dst, "at", b.At.UnixMilli())
		return metadata.AppendOpTime(dst, "start", b.Start)
	})
}

func readBack(r *metadata.Reader) *Back {
	sub, ok := r.Doc(fieldBack, true)
	if !ok {
		return nil
	}
	b := &Back{
		Link: sub.Text("link"), Instance: sub.Text("instance"),
		At: time.UnixMilli(sub.Date("at")).UTC(), Start: sub.OpTime("start", false),
	}
	r.Take(sub)
	return b
}

// errUsed reports that a link cannot begin again where it has been already.
var errUsed = errors.New("it has been there already")

// CreateAgain creates the link in the state first in place of an earlier one of its name that has
// ended: a new instance, whose terms go on, in one transaction that removes the documents of the
// earlier one. It begins after the earlier one's checkpoint, as only then its target is what the source
// was there. If another process has created it meanwhile, it returns ErrExists. Without an earlier
// link it is Create. It ends the intent: if that was withdrawn, it creates nothing and returns ErrWithdrawn. The link exists
// together with what also writes in its transaction; also is called again if that is retried.
func (s *Store) CreateAgain(ctx context.Context, first State, intent string, also func(txn mongo.Caller, term int64) error) error {
	was, err := s.readLink(ctx)
	var instead func(*mongo.Txn) (int64, error)
	switch {
	case errors.Is(err, ErrNoLink):
		instead = func(*mongo.Txn) (int64, error) { return 0, nil }
	case err != nil:
		return s.wrap(err, "create it again")
	case was.Over == nil:
		return s.wrap(ErrExists, "create it again")
	case !first.Applied.After(was.Applied):
		return s.wrap(fmt.Errorf("after %s: %w: it was at %s", first.Applied, errUsed, was.Applied), "create it again")
	default:
		instead = func(txn *mongo.Txn) (int64, error) {
			ended := metadata.Delete(s.cfg.DB, metadata.Links, func(dst []byte) []byte {
				dst = bsoncore.AppendStringElement(dst, "_id", s.cfg.Link)
				dst = bsoncore.AppendStringElement(dst, "instance", was.lease.Instance)
				return bsoncore.AppendDateTimeElement(dst, fieldOver+".at", was.Over.At.UnixMilli())
			})
			// A process that has not heard of the end may still have its last term.
			return was.lease.Term + 1, one(ctx, txn, ended, ErrExists)
		}
	}
	return s.createLink(ctx, first, func(txn *mongo.Txn) (int64, error) {
		if err := one(ctx, txn, metadata.Delete(s.cfg.DB, metadata.Begins, s.intentID(intent)), ErrWithdrawn); err != nil {
			return 0, err
		}
		return instead(txn)
	}, also)
}

// one runs a write that must match one document. Otherwise it returns none.
func one(ctx context.Context, txn mongo.Caller, cmd mongo.Command, none error) error {
	reply, err := txn.Call(ctx, cmd)
	if err != nil {
		return err
	}
	n, err := metadata.Written(reply)
	if err == nil && n != 1 {
		err = none
	}
	return err
}
