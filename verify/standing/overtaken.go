package standing

import (
	"context"
	"fmt"
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

// SavePass stores the ranges of a collection, unless it has a pass of a later round. What another verification of the round has
// reported stays.
func (s *Store) SavePass(ctx context.Context, sourceNS oplog.Namespace, p *Pass) error {
	ranges, err := bson.Marshal(bson.D{
		{Key: "pass.made", Value: p.Made},
		{Key: "pass.source", Value: p.Source},
		{Key: "pass.target", Value: p.Target},
		{Key: "pass.how", Value: p.How},
		{Key: "pass.ranges", Value: p.Ranges},
		{Key: "pass.done", Value: p.Done},
		{Key: "pass.found", Value: p.Found},
		{Key: "pass.more", Value: p.More},
	})
	if err != nil {
		return fmt.Errorf("store results of verifications: %w", err)
	}
	return s.tell(ctx, sourceNS, p, p.Told, p.ToldMore, ranges)
}

// tell adds differences to the pass of a round, and sets other fields of it, if not nil. Without a pass of the round p is stored first;
// it does nothing if there is one of a later round.
func (s *Store) tell(ctx context.Context, sourceNS oplog.Namespace, p *Pass, told []Found, more int64, set bson.Raw) error {
	for {
		if err := s.passOf(ctx, sourceNS, p); err != nil {
			return err
		}
		if n, err := s.addTold(ctx, sourceNS, p.Round, told, more, set); err != nil || n > 0 {
			return err
		}
		// Another verification of the round, which has ended its comparison, has deleted the pass; or a later round has one.
		docs, err := s.find(ctx, func(dst []byte) []byte {
			return metadata.AppendDoc(metadata.ByID(s.id(sourceNS))(dst), "pass.round", func(dst []byte) []byte { return bsoncore.AppendInt64Element(dst, "$gt", p.Round) })
		}, "_id")
		if err != nil || len(docs) > 0 {
			return err
		}
	}
}

// passOf stores a pass, unless the collection has one of its round, or of a later one. It mends a damaged one
// to which differences could not be added.
func (s *Store) passOf(ctx context.Context, sourceNS oplog.Namespace, p *Pass) error {
	told, err := setting(func(dst []byte) []byte {
		dst = bsoncore.AppendInt64Element(metadata.ByID(s.id(sourceNS))(dst), "pass.round", p.Round)
		dst = metadata.AppendDoc(dst, "pass", isNoArray)
		return metadata.AppendDoc(dst, "pass.told", func(dst []byte) []byte { return isNoArray(bsoncore.AppendBooleanElement(dst, "$exists", true)) })
	}, false, bson.D{{Key: "pass.told", Value: []Found{}}})
	if err != nil {
		return err
	}
	// It is upserted: with a pass of the round, or of a later one, it would be a second document.
	whole, err := setting(func(dst []byte) []byte {
		list, dst := bsoncore.AppendArrayElementStart(metadata.ByID(s.id(sourceNS))(dst), "$or")
		dst = metadata.AppendDoc(dst, "0", func(dst []byte) []byte {
			return metadata.AppendDoc(dst, "pass.round", func(dst []byte) []byte {
				return metadata.AppendDoc(dst, "$not", func(dst []byte) []byte { return bsoncore.AppendInt64Element(dst, "$gte", p.Round) })
			})
		})
		return metadata.CloseDoc(metadata.AppendDoc(dst, "1", func(dst []byte) []byte { return metadata.AppendDoc(dst, "pass", isArray) }), list)
	}, true, bson.D{{Key: "pass", Value: p}})
	if err != nil {
		return err
	}
	if err = s.write(ctx, metadata.Update(s.DB, metadata.Verified, told, whole)); servererr.IsDuplicateKey(err) {
		return nil
	}
	return err
}

// addTold adds differences to the pass of a round, and sets other fields of it, if not nil. It returns 0 if there is none.
func (s *Store) addTold(ctx context.Context, sourceNS oplog.Namespace, round int64, told []Found, more int64, set bson.Raw) (int64, error) {
	if told == nil {
		told = []Found{} // not null
	}
	doc, err := bson.Marshal(bson.D{{Key: "pass.told", Value: bson.D{{Key: "$each", Value: told}}}})
	if err != nil {
		return 0, fmt.Errorf("store results of verifications: %w", err)
	}
	return s.wrote(ctx, metadata.Update(s.DB, metadata.Verified, metadata.Statement{
		Filter: func(dst []byte) []byte {
			return bsoncore.AppendInt64Element(metadata.ByID(s.id(sourceNS))(dst), "pass.round", round)
		},
		Change: func(dst []byte) []byte {
			if set != nil {
				dst = bsoncore.AppendDocumentElement(dst, "$set", set)
			}
			dst = bsoncore.AppendDocumentElement(dst, "$addToSet", doc)
			return metadata.AppendDoc(dst, "$max", func(dst []byte) []byte { return bsoncore.AppendInt64Element(dst, "pass.toldMore", more) })
		},
	}))
}

// SaveTold stores differences that are about to be reported, in the pass of a round; more counts all those that are not listed. The
// pass is a new one, without ranges, if the collection has none of the round. If a later round has begun, whose pass may replace it,
// the collection is marked. Source is the UUID by which the verification knows it.
func (s *Store) SaveTold(ctx context.Context, sourceNS oplog.Namespace, source oplog.UUID, round int64, told []Found, more int64) error {
	none := &Pass{Made: bson.NewObjectID(), Round: round, Source: uuid(source), Done: map[string]Range{}, Found: []Found{}}
	if err := s.tell(ctx, sourceNS, none, told, more, nil); err != nil {
		return err
	}
	return s.overtaken(ctx, sourceNS, source, round)
}

// notNewer appends the condition that a field is not a later time of the target.
func notNewer(dst []byte, field string, than bson.Timestamp) []byte {
	return metadata.AppendDoc(dst, field, func(dst []byte) []byte {
		return metadata.AppendDoc(dst, "$not", func(dst []byte) []byte { return bsoncore.AppendTimestampElement(dst, "$gt", than.T, than.I) })
	})
}

// SaveResult stores the result of a comparison, unless there is one of newer cuts. If the source's
// collection is another one than the round had listed, it counts from the next round on. Known are the differences that were reported
// before the end of the comparison. A fault of another verification that is newer stays.
func (s *Store) SaveResult(ctx context.Context, l Listed, r *Result, known *Told) error {
	which := func(dst []byte) []byte {
		dst = notNewer(metadata.ByID(s.id(l.SourceNS))(dst), "is.first.target", r.First.Target)
		dst = notNewer(dst, "is.last.target", r.Last.Target)
		return bsoncore.AppendBinaryElement(dst, "source", bson.TypeBinaryUUID, l.Source[:])
	}
	was, err := s.stored(ctx, l.SourceNS)
	if err != nil {
		return err
	}
	st, err := setting(which, false, bson.D{{Key: "is", Value: r}})
	if err != nil {
		return err
	}
	changes := []metadata.Statement{st}
	if f := was.Fault; f != nil && f.Round <= r.Round && !f.At.After(r.At) {
		changes = append(changes, unsetting(unchanged(which, was.raw, "fault"), "fault"))
	}
	return s.ended(ctx, which, was, r.Round, known, changes)
}

// SaveFault stores that a collection could not be compared, unless a later round has compared it, or its own one since. Earlier
// results stay.
func (s *Store) SaveFault(ctx context.Context, sourceNS oplog.Namespace, f *Fault, known *Told) error {
	was, err := s.stored(ctx, sourceNS)
	if err != nil || was.Is != nil && was.Is.Round == f.Round && was.Is.At.After(f.At) {
		return err
	}
	which := unchanged(func(dst []byte) []byte { return notLater(metadata.ByID(s.id(sourceNS))(dst), "is.round", f.Round) }, was.raw, "is.at")
	st, err := setting(which, true, bson.D{{Key: "fault", Value: f}})
	if err != nil {
		return err
	}
	err = s.ended(ctx, which, was, f.Round, known, []metadata.Statement{st})
	if servererr.IsDuplicateKey(err) {
		return nil
	}
	return err
}

// stored returns how the comparison of a collection is stored.
func (s *Store) stored(ctx context.Context, sourceNS oplog.Namespace) (*document, error) {
	var d document
	docs, err := s.find(ctx, metadata.ByID(s.id(sourceNS)), "is.round", "is.at", "fault", "pass.told", "pass.toldMore", "pass.round")
	if err == nil && len(docs) > 0 {
		_ = bson.Unmarshal(docs[0], &d) // One that cannot be read counts as one that was never compared.
		d.raw = docs[0]
	}
	return &d, err
}

// ended stores how the comparison of a round has ended, and deletes its pass, unless another verification of the round has reported
// differences in it.
func (s *Store) ended(ctx context.Context, which func([]byte) []byte, was *document, round int64, known *Told, changes []metadata.Statement) error {
	if p := was.Pass; p != nil && (p.Round != round || known.has(p)) {
		changes = append(changes, unsetting(unchanged(upTo(which, round), was.raw, "pass.told", "pass.toldMore"), "pass"))
	}
	return s.write(ctx, metadata.Update(s.DB, metadata.Verified, changes...))
}

// unsetting returns the statement that removes a field.
func unsetting(which func([]byte) []byte, field string) metadata.Statement {
	return metadata.Statement{Filter: which, Change: func(dst []byte) []byte {
		return metadata.AppendDoc(dst, "$unset", func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, field, "") })
	}}
}

// overtaken marks a collection in which a comparison of a round has found something, if a later round has begun. That may have listed it
// under another name, or not yet.
func (s *Store) overtaken(ctx context.Context, sourceNS oplog.Namespace, source oplog.UUID, round int64) error {
	docs, err := s.find(ctx, metadata.ByID(s.roundID()), "n")
	if err != nil {
		return err
	}
	for _, doc := range docs {
		if n, _ := doc.Lookup("n").AsInt64OK(); n == round {
			return nil
		}
	}
	if source == (oplog.UUID{}) {
		return s.Mark(ctx, whyReplaced, sourceNS)
	}
	which := func(dst []byte) []byte {
		return bsoncore.AppendBinaryElement(metadata.Below(s.Link)(dst), "source", bson.TypeBinaryUUID, source[:])
	}
	if err := s.write(ctx, metadata.Update(s.DB, metadata.Verified, mending(which)...)); err != nil {
		return err
	}
	var listed bson.Timestamp // just before it was
	for {
		mark, err := s.markNow(ctx, whyReplaced)
		if err != nil {
			return err
		}
		mark.Target = oplog.LaterTimestamp(mark.Target, listed)
		st, err := marking(which, mark)
		if err != nil {
			return err
		}
		st.Multi, st.Upsert = true, false
		n, err := s.wrote(ctx, metadata.Update(s.DB, metadata.Verified, st))
		if err != nil {
			return err
		}
		if n == 0 {
			if _, st, err = s.aside(sourceNS, source, mark); err != nil {
				return err
			}
			return s.write(ctx, metadata.Update(s.DB, metadata.Verified, st))
		}
		// One that was listed meanwhile may be of a later time than the mark.
		marked, at, err := s.allMarked(ctx, which)
		if err != nil || marked {
			return err
		}
		listed = oplog.LaterTimestamp(listed, at)
	}
}

// allMarked reports whether all collections of a filter are known to differ; at is just before the last of the others was listed,
// which the target need not have reached, if it was set up anew.
func (s *Store) allMarked(ctx context.Context, which func([]byte) []byte) (marked bool, at bson.Timestamp, err error) {
	docs, err := s.find(ctx, which, "source", "sourceAt", "mark", "differed")
	if err != nil {
		return false, at, err
	}
	marked = true
	for _, raw := range docs {
		var d document
		if bson.Unmarshal(raw, &d) == nil && !d.differed() {
			marked, at = false, oplog.LaterTimestamp(at, justBefore(d.SourceAt))
		}
	}
	return marked, at, nil
}

// overtake marks the collections in which a comparison of an earlier round has found something new. A difference that was reported since the
// present round has read the results may be newer than its cut, at which the collections were listed: such a collection is marked as of now.
func (s *Store) overtake(ctx context.Context, round *Round, seen *Seen, heads map[oplog.Namespace]Head, mark *Mark) error {
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
		if !listed {
			continue
		}
		at := mark
		if !seen.docs[ns].told().has(d.Pass) {
			if at, err = s.markNow(ctx, whyReplaced); err != nil {
				return err
			}
			at.Target = oplog.LaterTimestamp(at.Target, mark.Target)
		}
		st, err := marking(metadata.ByID(d.ID), at)
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
