package checkpoint

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/call"
)

// Remove removes the link with all of its documents, the held specs excepted: they
// belong to the collections. The position goes first, so that what is left by a
// Remove that was cut off is no link. Nobody may hold the link any more.
func (s *Store) Remove(ctx context.Context) error {
	from, to := bounds(s.cfg.Link)
	for _, part := range []struct {
		collection string
		filter     func(dst []byte) []byte
	}{
		{linksCollection, byID(s.cfg.Link)},
		{lanesCollection, between(from, to)},
		{copiesCollection, between(from, to)},
	} {
		if err := s.remove(ctx, part.collection, part.filter); err != nil {
			return s.wrap(err, "remove it from %s", part.collection)
		}
	}
	return nil
}

func (s *Store) remove(ctx context.Context, collection string, filter func(dst []byte) []byte) error {
	doc := document(func(dst []byte) []byte {
		dst = appendDoc(dst, "q", filter)
		return bsoncore.AppendInt32Element(dst, "limit", 0)
	})
	reply, err := s.cfg.Target.Call(ctx, writeCommand(s.cfg.DB, "delete", collection, "deletes", true, doc))
	if err != nil {
		return err
	}
	refused, err := call.WriteErrors(reply)
	if err != nil {
		return err
	}
	if len(refused) > 0 {
		return &refused[0].Error
	}
	if e := call.ConcernError(reply); e != nil {
		return fmt.Errorf("make it durable: %w", e)
	}
	return nil
}
