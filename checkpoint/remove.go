package checkpoint

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
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
		{routesCollection, between(from, to)},
		{copiesCollection, between(from, to)},
		{owedCollection, between(from, to)},
		{parkedCollection, func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, "_id.link", s.cfg.Link) }},
	} {
		if err := s.remove(ctx, part.collection, part.filter); err != nil {
			return s.wrap(err, "remove it from %s", part.collection)
		}
	}
	return nil
}

func (s *Store) remove(ctx context.Context, collection string, filter func(dst []byte) []byte) error {
	reply, err := s.cfg.Target.Call(ctx, deleteCommand(s.cfg.DB, collection, true, filter))
	if err == nil {
		_, err = written(reply)
	}
	return err
}
