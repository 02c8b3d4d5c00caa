package request

import (
	"context"
	"errors"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

// Limit sets the limits of the copy; a negative value removes a limit's request.
func (s *Store) Limit(ctx context.Context, bytesPerSecond, opsPerSecond int64) error {
	return s.limited(s.write(ctx, s.limit(bytesPerSecond, opsPerSecond)))
}

// LimitUnder is Limit under a lease.
func (s *Store) LimitUnder(ctx context.Context, by Leader, bytesPerSecond, opsPerSecond int64) error {
	err := s.under(ctx, by, metadata.Update(s.db, metadata.Requests, s.limit(bytesPerSecond, opsPerSecond)))
	return s.limited(err)
}

func (s *Store) limit(bytesPerSecond, opsPerSecond int64) metadata.Statement {
	return metadata.Statement{
		Filter: metadata.ByID(s.link),
		Change: func(dst []byte) []byte {
			if bytesPerSecond >= 0 {
				dst = bsoncore.AppendInt64Element(dst, bytesField, bytesPerSecond)
			}
			if opsPerSecond >= 0 {
				dst = bsoncore.AppendInt64Element(dst, opsField, opsPerSecond)
			}
			return dst
		},
		Upsert: true,
	}
}

func (s *Store) limited(err error) error {
	if err != nil {
		return s.wrap(err, "limit its copy")
	}
	return nil
}

// Resync requests that a collection be copied again. An open request for it does not
// change.
func (s *Store) Resync(ctx context.Context, ns oplog.Namespace) error {
	if db, collection, ok := strings.Cut(string(ns), "."); !ok || db == "" || collection == "" {
		return s.wrap(errors.New("not of the form DB.COLLECTION"), "request that %q is copied again", ns)
	}
	return s.asked(s.write(ctx, s.again(ns)), ns)
}

// ResyncUnder is Resync under a lease.
func (s *Store) ResyncUnder(ctx context.Context, by Leader, ns oplog.Namespace) error {
	return s.asked(s.under(ctx, by, metadata.Update(s.db, metadata.Requests, s.again(ns))), ns)
}

func (s *Store) again(ns oplog.Namespace) metadata.Statement {
	return metadata.Statement{
		Filter: s.inState(ns, Done, Failed),
		Change: func(dst []byte) []byte {
			return metadata.AppendDoc(dst, "$set", func(dst []byte) []byte {
				dst = bsoncore.AppendStringElement(dst, "ns", string(ns))
				dst = bsoncore.AppendDateTimeElement(dst, "asked", time.Now().UnixMilli())
				dst = bsoncore.AppendStringElement(dst, "state", Asked)
				return bsoncore.AppendStringElement(dst, "why", "")
			})
		},
		Upsert: true,
	}
}

func (s *Store) asked(err error, ns oplog.Namespace) error {
	// A request that exists and does not match is still open.
	if err != nil && !servererr.IsDuplicateKey(err) {
		return s.wrap(err, "ask for %s to be copied again", ns)
	}
	return nil
}

// ResyncAgain requests that a collection be copied again by a copy that begins after this
// call, because its data in the target may have just been damaged. If a copy is in
// progress, the request is made again once that is done or has failed.
func (s *Store) ResyncAgain(ctx context.Context, ns oplog.Namespace) error {
	// If a copy ends between the two writes of a round, the second round notices it. A
	// request that is still Asked needs no change.
	for range 2 {
		if err := s.Resync(ctx, ns); err != nil {
			return err
		}
		err := s.write(ctx, metadata.Statement{
			Filter: s.inState(ns, Copying, Joining),
			Change: func(dst []byte) []byte {
				return metadata.AppendDoc(dst, "$set", func(dst []byte) []byte { return bsoncore.AppendBooleanElement(dst, againField, true) })
			},
		})
		if err != nil {
			return s.wrap(err, "ask for %s to be copied again after this", ns)
		}
	}
	return nil
}

// inState returns the filter for the request of a collection in one of the states.
func (s *Store) inState(ns oplog.Namespace, states ...string) func(dst []byte) []byte {
	return func(dst []byte) []byte {
		dst = metadata.ByID(s.id(ns))(dst)
		return metadata.AppendDoc(dst, "state", func(dst []byte) []byte { return metadata.AppendIn(dst, states...) })
	}
}

func (s *Store) write(ctx context.Context, change metadata.Statement) error {
	return metadata.Run(ctx, s.target, metadata.Majority(metadata.Update(s.db, metadata.Requests, change)), -1)
}
