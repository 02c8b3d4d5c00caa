package checkpoint

import (
	"context"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// Remove removes the link with its documents, except deferred index options, which
// belong to the collections. The link's document is removed first, so that an interrupted
// Remove leaves no link, and Create removes the rest. That of a part is removed last, so
// that Parts still returns it. No process may have the lease.
func (s *Store) Remove(ctx context.Context) error {
	link := metadata.Documents{Collection: metadata.Links, Filter: metadata.ByID(s.cfg.Link)}
	all := metadata.DocumentsOf(s.cfg.Link)
	if s.cfg.Of == "" {
		if err := s.keepTerm(ctx); err != nil {
			return s.wrap(err, "keep its term")
		}
		all = slices.Insert(all, 0, link)
	} else {
		all = append(all, link)
	}
	for _, part := range all {
		remove := metadata.Majority(metadata.Delete(s.cfg.DB, part.Collection, part.Filter))
		if err := metadata.Run(ctx, s.cfg.Target, remove, -1); err != nil {
			return s.wrap(err, "remove it from %s", part.Collection)
		}
	}
	return nil
}

// Parts returns the links that were created as parts of this one, including partly
// removed ones.
func (s *Store) Parts(ctx context.Context) ([]string, error) {
	filter := func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, fieldOf, s.cfg.Link) }
	reply, err := s.cfg.Target.Call(ctx, metadata.Find(s.cfg.DB, metadata.Links, listLimit, filter, "_id"))
	if err != nil {
		return nil, s.wrap(err, "list its parts")
	}
	docs, err := metadata.Found(reply)
	if err != nil {
		return nil, s.wrap(err, "list its parts")
	}
	names := make([]string, len(docs))
	for i, doc := range docs {
		id, _ := rawbson.Lookup(doc, "_id")
		name, _ := id.Text()
		names[i] = strings.Clone(name)
	}
	return names, nil
}
