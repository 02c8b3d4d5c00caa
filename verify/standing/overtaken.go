package standing

import (
	"context"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

// A comparison whose round another one has overtaken goes on, and what it finds counts at the latest with its result. Until
// then the pass of the later round takes the place of its own. So either it marks the collection, as it reads the number of the
// round after it has stored what it has found; or the later round does, as it looks for that after it has stored the number.

// The earlier comparison neither replaces the pass of the later round nor deletes it.

// upTo is a filter for collections that have no pass of a later round.
func upTo(which func([]byte) []byte, round int64) func([]byte) []byte {
	return func(dst []byte) []byte { return notLater(which(dst), "pass.round", round) }
}

// SavePass stores the ranges of a collection, unless it has a pass of a later round.
func (s *Store) SavePass(ctx context.Context, sourceNS oplog.Namespace, p *Pass) error {
	err := s.set(ctx, upTo(metadata.ByID(s.id(sourceNS)), p.Round), true, bson.D{{Key: "pass", Value: p}})
	if servererr.IsDuplicateKey(err) {
		return nil // It has one.
	}
	return err
}

// SaveFault stores that a collection could not be compared, unless a later round has compared it. Earlier results stay.
func (s *Store) SaveFault(ctx context.Context, sourceNS oplog.Namespace, f *Fault) error {
	which := func(dst []byte) []byte { return notLater(metadata.ByID(s.id(sourceNS))(dst), "is.round", f.Round) }
	err := s.ended(ctx, which, f.Round, true, bson.D{{Key: "fault", Value: f}})
	if servererr.IsDuplicateKey(err) {
		return nil
	}
	return err
}

// ended stores how the comparison of a round has ended, and deletes its pass.
func (s *Store) ended(ctx context.Context, filter func([]byte) []byte, round int64, upsert bool, fields bson.D, unset ...string) error {
	st, err := setting(filter, upsert, fields, unset...)
	if err != nil {
		return err
	}
	return s.write(ctx, metadata.Update(s.DB, metadata.Verified, st, metadata.Statement{
		Filter: upTo(filter, round),
		Change: func(dst []byte) []byte {
			return metadata.AppendDoc(dst, "$unset", func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, "pass", "") })
		},
	}))
}

// overtaken marks a collection in which a comparison of a round has found something, if a later round has begun.
func (s *Store) overtaken(ctx context.Context, sourceNS oplog.Namespace, round int64) error {
	docs, err := s.find(ctx, metadata.ByID(s.roundID()), "n")
	if err != nil {
		return err
	}
	for _, doc := range docs {
		if n, _ := doc.Lookup("n").AsInt64OK(); n == round {
			return nil
		}
	}
	return s.Mark(ctx, whyReplaced, sourceNS)
}

// overtake marks the collections in which a comparison of an earlier round has found something new since the present round has read
// the results.
func (s *Store) overtake(ctx context.Context, round *Round, heads map[oplog.Namespace]Head, mark *Mark) error {
	docs, err := s.find(ctx, func(dst []byte) []byte {
		dst = metadata.AppendDoc(metadata.Below(s.Link)(dst), "pass.told.0", func(dst []byte) []byte { return bsoncore.AppendBooleanElement(dst, "$exists", true) })
		return metadata.AppendDoc(dst, "pass.round", func(dst []byte) []byte { return bsoncore.AppendInt64Element(dst, "$lt", round.N) })
	}, fields...)
	if err != nil {
		return err
	}
	for _, raw := range docs {
		var d document
		if bson.Unmarshal(raw, &d) != nil || d.Pass == nil || d.Is.Knows(d.Pass.all(), max(d.Pass.More, d.Pass.ToldMore)) {
			continue // One that cannot be read counts as one that was never compared.
		}
		ns := oplog.Namespace(strings.TrimPrefix(d.ID, s.Link+"/"))
		head, listed := heads[ns]
		if !listed || head.Marked {
			continue
		}
		st, err := marking(metadata.ByID(d.ID), mark)
		if err != nil {
			return err
		}
		if err := s.write(ctx, metadata.Update(s.DB, metadata.Verified, st)); err != nil {
			return err
		}
		head.Marked = true
		heads[ns] = head
	}
	return nil
}
