package standing

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

// statements is how many collections one command writes.
const statements = 500

// Store stores the results of a link's verification in its metadata.
type Store struct {
	// Target runs commands on the target's primary.
	Target mongo.Caller
	// DB is the metadata database.
	DB, Link string
}

func (s *Store) id(sourceNS oplog.Namespace) string { return s.Link + "/" + string(sourceNS) }

func (s *Store) roundID() string { return s.Link + "//round" }

// again reports whether a command may be repeated: all of this package are idempotent.
func again(err error) bool { return servererr.Classify(err).Passes() }

// write sends a write, again after transient errors.
func (s *Store) write(ctx context.Context, cmd mongo.Command) error {
	_, err := s.wrote(ctx, cmd)
	return err
}

// wrote is write, and returns how many documents were met.
func (s *Store) wrote(ctx context.Context, cmd mongo.Command) (n int64, err error) {
	cmd = metadata.Majority(cmd)
	err = mongo.Retry{For: time.Minute, Again: again}.Do(ctx, func() error {
		reply, err := s.Target.Call(ctx, cmd)
		if err == nil {
			n, err = metadata.Written(reply)
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("store results of verifications of link %s in %s.%s of the target: %w", s.Link, s.DB, metadata.Verified, err)
	}
	return n, nil
}

// set updates one document: it sets fields, and unsets others.
func (s *Store) set(ctx context.Context, filter func([]byte) []byte, upsert bool, fields bson.D, unset ...string) error {
	st, err := setting(filter, upsert, fields, unset...)
	if err != nil {
		return err
	}
	return s.write(ctx, metadata.Update(s.DB, metadata.Verified, st))
}

func setting(filter func([]byte) []byte, upsert bool, fields bson.D, unset ...string) (metadata.Statement, error) {
	doc, err := bson.Marshal(fields)
	if err != nil {
		return metadata.Statement{}, fmt.Errorf("store results of verifications: %w", err)
	}
	return metadata.Statement{Filter: filter, Upsert: upsert, Change: func(dst []byte) []byte {
		dst = bsoncore.AppendDocumentElement(dst, "$set", doc)
		if len(unset) == 0 {
			return dst
		}
		return metadata.AppendDoc(dst, "$unset", func(dst []byte) []byte {
			for _, f := range unset {
				dst = bsoncore.AppendStringElement(dst, f, "")
			}
			return dst
		})
	}}, nil
}

// Listed is a collection that a round has listed.
type Listed struct {
	NS, SourceNS oplog.Namespace
	// Source is the UUID of the source's collection, zero for none.
	Source oplog.UUID
	// At is a time of the target as of which the source had it, at least: the one with the latest is the present collection of the name.
	At bson.Timestamp
}

// Head is the result of a collection when a round began, or went on.
type Head struct {
	Result *Result
	// Marked reports whether it was marked after the result.
	Marked bool
	// Pass has the differences reported in the round that goes on, nil for none.
	Pass *Pass
}

// End completes a round, unless another one has begun.
func (s *Store) End(ctx context.Context, r *Round, now time.Time) error {
	return s.set(ctx, func(dst []byte) []byte {
		return bsoncore.AppendInt64Element(metadata.ByID(s.roundID())(dst), "n", r.N)
	}, false, bson.D{{Key: "complete", Value: r.N}, {Key: "last", Value: Ended{Began: r.Began, From: r.At, To: now.UTC()}}})
}

// Pass returns the stored pass of a collection, nil if there is none that can be read.
func (s *Store) Pass(ctx context.Context, sourceNS oplog.Namespace) (*Pass, error) {
	doc, err := s.find(ctx, metadata.ByID(s.id(sourceNS)))
	if err != nil || len(doc) == 0 {
		return nil, err
	}
	var d document
	if err := bson.Unmarshal(doc[0], &d); err != nil {
		return nil, nil //nolint:nilerr,nilnil // It is damaged, or of another release: the collection begins again.
	}
	return d.Pass, nil
}

// TakePass makes a pass that was read the caller's own, with a new Made: the process that has stored it may be suspended, and store
// later what it has compared before. It reports false if the pass is another one now.
func (s *Store) TakePass(ctx context.Context, sourceNS oplog.Namespace, p *Pass) (bool, error) {
	made := bson.NewObjectID()
	err := s.set(ctx, func(dst []byte) []byte {
		return bsoncore.AppendObjectIDElement(metadata.ByID(s.id(sourceNS))(dst), "pass.made", p.Made)
	}, false, bson.D{{Key: "pass.made", Value: made}})
	if err != nil {
		return false, err
	}
	p.Made = made
	now, err := s.Pass(ctx, sourceNS)
	return now != nil && now.Made == made, err
}

// SaveRange stores that range i of the pass made is compared, with the differences so far, unless
// another verification has stored other ranges.
func (s *Store) SaveRange(ctx context.Context, sourceNS oplog.Namespace, made bson.ObjectID, i int, r *Range, found []Found, more int64) error {
	return s.set(ctx, func(dst []byte) []byte {
		return bsoncore.AppendObjectIDElement(metadata.ByID(s.id(sourceNS))(dst), "pass.made", made)
	}, false, bson.D{{Key: "pass.done." + strconv.Itoa(i), Value: r}, {Key: "pass.found", Value: found}, {Key: "pass.more", Value: more}})
}

// Mark marks collections as not verified, by their names at the source: until they are compared at a
// cut after now. A mark of a later time stays.
func (s *Store) Mark(ctx context.Context, why string, sourceNS ...oplog.Namespace) error {
	if len(sourceNS) == 0 {
		return nil
	}
	mark, err := s.markNow(ctx, why)
	if err != nil {
		return err
	}
	changes := make([]metadata.Statement, 0, len(sourceNS))
	for _, ns := range sourceNS {
		st, err := marking(metadata.ByID(s.id(ns)), mark)
		if err != nil {
			return err
		}
		changes = append(append(changes, mending(st.Filter)...), st)
	}
	for part := range slices.Chunk(changes, statements) {
		if err := s.write(ctx, metadata.Update(s.DB, metadata.Verified, part...)); err != nil {
			return err
		}
	}
	return nil
}

// markNow returns a mark as of now.
func (s *Store) markNow(ctx context.Context, why string) (*Mark, error) {
	at, err := mongo.OperationTime(ctx, s.Target)
	if err != nil {
		return nil, fmt.Errorf("mark collections as not verified: %w", err)
	}
	return &Mark{Target: at, Why: why, At: time.Now().UTC()}, nil
}

// marking returns the statement that marks a collection, unless it has a mark of a later time.
func marking(filter func([]byte) []byte, mark *Mark) (metadata.Statement, error) {
	// Documents compare by their first fields first: that of a Mark is the time.
	latest := bson.D{{Key: "mark", Value: mark}}
	if strings.HasPrefix(mark.Why, WhyDiffers) {
		latest = append(latest, bson.E{Key: "differed", Value: mark.Target})
	}
	doc, err := bson.Marshal(latest)
	if err != nil {
		return metadata.Statement{}, fmt.Errorf("mark a collection as not verified: %w", err)
	}
	return metadata.Statement{Filter: filter, Upsert: true, Change: func(dst []byte) []byte {
		return bsoncore.AppendDocumentElement(dst, "$max", doc)
	}}, nil
}

// Touched marks a collection that something else has written to, up to a moment, unless it was marked
// later than that.
func (s *Store) Touched(ctx context.Context, sourceNS oplog.Namespace, last Moment) error {
	at, err := mongo.OperationTime(ctx, s.Target)
	if err != nil {
		return fmt.Errorf("mark %s as not verified: %w", sourceNS, err)
	}
	err = s.set(ctx, func(dst []byte) []byte {
		return markedBefore(metadata.ByID(s.id(sourceNS))(dst), last.TS)
	}, true, bson.D{{Key: "mark", Value: Mark{Target: at, Why: whyForeign, At: last.Wall.UTC()}}})
	if servererr.IsDuplicateKey(err) {
		return nil // It was marked.
	}
	return err
}

// TouchedAll marks all collections, as something else has written to some that are not known, up to a
// moment.
func (s *Store) TouchedAll(ctx context.Context, last Moment) error {
	at, err := mongo.OperationTime(ctx, s.Target)
	if err != nil {
		return fmt.Errorf("mark all collections as not verified: %w", err)
	}
	st, err := setting(func(dst []byte) []byte { return markedBefore(s.collections()(dst), last.TS) }, false, bson.D{{Key: "mark", Value: Mark{Target: at, Why: whyManyForeign, At: last.Wall.UTC()}}})
	if err != nil {
		return err
	}
	st.Multi = true
	return s.write(ctx, metadata.Update(s.DB, metadata.Verified, st))
}

// BeforeClear marks the collections with foreign writes in a state that is about to be cleared. A collection
// last compared before the writes is not verified, even if the link had no time to mark it.
func (s *Store) BeforeClear(ctx context.Context, st *guard.State) error {
	var changes []metadata.Statement
	add := func(which func([]byte) []byte, why string, last Moment) error {
		change, err := setting(func(dst []byte) []byte { return markedBefore(which(dst), last.TS) },
			false, bson.D{{Key: "mark", Value: Mark{Target: last.TS, Why: why, At: last.Wall.UTC()}}})
		change.Multi = true
		changes = append(changes, change)
		return err
	}
	for i := range st.Touched {
		if t := &st.Touched[i]; t.Source != "" {
			if err := add(metadata.ByID(s.id(t.Source)), whyForeign, Moment{TS: t.Until, Wall: t.Last}); err != nil {
				return err
			}
		}
	}
	if st.More > 0 {
		last := Moment{TS: st.MoreUntil, Wall: st.MoreLast}
		if last.TS.IsZero() { // an earlier release has counted them
			last = Moment{TS: st.At.TS, Wall: time.UnixMilli(st.Wall)}
		}
		if err := add(s.collections(), whyManyForeign, last); err != nil {
			return err
		}
	}
	for part := range slices.Chunk(changes, statements) {
		if err := s.write(ctx, metadata.Update(s.DB, metadata.Verified, part...)); err != nil {
			return err
		}
	}
	return nil
}

// collections is the filter of the documents of all collections.
func (s *Store) collections() func([]byte) []byte {
	return func(dst []byte) []byte {
		return metadata.AppendDoc(metadata.Below(s.Link)(dst), "ns", func(dst []byte) []byte { return bsoncore.AppendBooleanElement(dst, "$exists", true) })
	}
}

// markedBefore appends the condition that a collection was not marked at a time of the target or later.
func markedBefore(dst []byte, last bson.Timestamp) []byte {
	return metadata.AppendDoc(dst, "mark.target", func(dst []byte) []byte {
		return metadata.AppendDoc(dst, "$not", func(dst []byte) []byte { return bsoncore.AppendTimestampElement(dst, "$gte", last.T, last.I) })
	})
}

// fields are the fields of a document that the standing depends on: all but the ranges.
var fields = []string{
	"ns", "source", "sourceAt", "joined", "is", "fault", "mark", "differed", "repaired", "pass.found", "pass.more", "pass.told", "pass.toldMore", "pass.round", "pass.source", "n", "complete", "began", "at", "listed", "begins", "last",
}

// find reads documents as the target's primary has them: all confirmed writes are among them, while with read concern majority a primary that was
// just elected could return them as they were before a difference was found. A failover may roll back what nothing has confirmed; it was right: see the
// package.
func (s *Store) find(ctx context.Context, filter func([]byte) []byte, only ...string) ([]bson.Raw, error) {
	docs, err := mongo.Retry{For: time.Minute}.ReadAll(ctx, s.Target, nil, s.DB, metadata.Document(func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, "find", metadata.Verified)
		dst = metadata.AppendDoc(dst, "filter", filter)
		if len(only) > 0 {
			dst = metadata.AppendDoc(dst, "projection", func(dst []byte) []byte {
				for _, f := range only {
					dst = bsoncore.AppendInt32Element(dst, f, 1)
				}
				return dst
			})
		}
		return metadata.AppendDoc(dst, "readConcern", func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, "level", "local") })
	}))
	if err != nil {
		return nil, fmt.Errorf("read results of verifications of link %s in %s.%s of the target: %w", s.Link, s.DB, metadata.Verified, err)
	}
	return docs, nil
}

// ofSource reads the documents that have the UUID of a collection of the source.
func (s *Store) ofSource(ctx context.Context, source oplog.UUID) (map[oplog.Namespace]*document, error) {
	docs := map[oplog.Namespace]*document{}
	for _, field := range []string{"source", "pass.source"} {
		list, err := s.find(ctx, func(dst []byte) []byte {
			return bsoncore.AppendBinaryElement(metadata.Below(s.Link)(dst), field, bson.TypeBinaryUUID, source[:])
		}, fields...)
		if err != nil {
			return nil, err
		}
		for _, raw := range list {
			var d document
			if bson.Unmarshal(raw, &d) == nil {
				d.repair()
				docs[oplog.Namespace(strings.TrimPrefix(d.ID, s.Link+"/"))] = &d
			}
		}
	}
	return docs, nil
}

// load reads everything but the ranges. A document that cannot be read counts as one of a collection
// that was never compared.
func (s *Store) load(ctx context.Context) (Round, map[oplog.Namespace]*document, error) {
	round, _, docs, err := s.loadRaw(ctx)
	return round, docs, err
}

// loadRaw is load, and returns the document of the round as it was read, nil for none.
func (s *Store) loadRaw(ctx context.Context) (round Round, rawRound bson.Raw, docs map[oplog.Namespace]*document, err error) {
	list, err := s.find(ctx, metadata.Below(s.Link), fields...)
	if err != nil {
		return round, nil, nil, err
	}
	docs = make(map[oplog.Namespace]*document, len(list))
	for _, raw := range list {
		id, _ := raw.Lookup("_id").StringValueOK()
		if id == s.roundID() {
			rawRound = raw
			if bson.Unmarshal(raw, &round) != nil {
				round = Round{} // damaged: the next verification begins from the start
			}
			continue
		}
		var d document
		if err := bson.Unmarshal(raw, &d); err != nil {
			d = document{ID: id, Joined: 1} // it counts, and was never compared
		}
		d.raw = raw
		d.repair()
		docs[oplog.Namespace(strings.TrimPrefix(id, s.Link+"/"))] = &d
	}
	for ns, d := range docs {
		d.markAs(ns, docs)
	}
	return round, rawRound, docs, nil
}

func uuid(id oplog.UUID) bson.Binary { return bson.Binary{Subtype: bson.TypeBinaryUUID, Data: id[:]} }
