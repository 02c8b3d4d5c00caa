package checkpoint

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
)

// lastTerm returns the last term of earlier links of this name, 0 if there is none: that
// of the link that was removed, and of the lanes that were left behind.
func (s *Store) lastTerm(ctx context.Context, c mongo.Caller) (last int64, err error) {
	for _, from := range []metadata.Documents{
		{Collection: metadata.Terms, Filter: metadata.ByID(s.cfg.Link)},
		{Collection: metadata.Lanes, Filter: metadata.Below(s.cfg.Link)},
	} {
		reply, err := c.Call(ctx, metadata.Find(s.cfg.DB, from.Collection, MaxWriters+2, from.Filter, "term"))
		if err != nil {
			return 0, err
		}
		docs, err := metadata.Found(reply)
		if err != nil {
			return 0, err
		}
		for _, doc := range docs {
			r := metadata.NewReader(doc)
			if !r.Has("term") {
				continue
			}
			last = max(last, r.Int64("term"))
			if r.Err() != nil {
				return 0, &metadata.DamagedError{Link: s.cfg.Link, What: from.Collection + ": field " + r.Err().Error()}
			}
		}
	}
	return last, nil
}

// keepTerm records the last term of a link that is about to be removed: the next one of
// its name must not use it again.
func (s *Store) keepTerm(ctx context.Context) error {
	last, err := s.lastTerm(ctx, s.cfg.Target)
	if err != nil {
		return err
	}
	doc, err := metadata.FindOne(ctx, s.cfg.Target, s.cfg.DB, metadata.Links, metadata.ByID(s.cfg.Link), "term")
	if err != nil {
		return err
	}
	if doc != nil {
		r := metadata.NewReader(doc)
		if term := r.Int64("term"); r.Err() == nil { // else its lanes say it
			last = max(last, term)
		}
	}
	return metadata.Run(ctx, s.cfg.Target, metadata.Majority(metadata.Update(s.cfg.DB, metadata.Terms, metadata.Statement{
		Filter: metadata.ByID(s.cfg.Link),
		Change: func(dst []byte) []byte {
			return metadata.AppendDoc(dst, "$max", func(dst []byte) []byte { return bsoncore.AppendInt64Element(dst, "term", last) })
		},
		Upsert: true,
	})), 1)
}
