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
// belong to the collections, and requests, which Create removes. The link's document is
// removed first, so that an interrupted Remove leaves no link. That of a part is removed
// last, so that Parts still returns it. No process may have the lease.
func (s *Store) Remove(ctx context.Context) error {
	type part struct {
		collection string
		filter     func(dst []byte) []byte
	}
	all := metadata.Below(s.cfg.Link)
	link := part{metadata.Links, metadata.ByID(s.cfg.Link)}
	parts := []part{
		{metadata.Lanes, all},
		{metadata.Routes, all},
		{metadata.Copies, all},
		{metadata.Missing, all},
		{metadata.Oversized, func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, "_id.link", s.cfg.Link) }},
	}
	if s.cfg.Of == "" {
		parts = slices.Insert(parts, 0, link)
	} else {
		parts = append(parts, link)
	}
	for _, part := range parts {
		if err := s.remove(ctx, part.collection, part.filter); err != nil {
			return s.wrap(err, "remove it from %s", part.collection)
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

func (s *Store) remove(ctx context.Context, collection string, filter func(dst []byte) []byte) error {
	reply, err := s.cfg.Target.Call(ctx, metadata.Majority(metadata.Delete(s.cfg.DB, collection, filter)))
	if err == nil {
		_, err = metadata.Written(reply)
	}
	return err
}
