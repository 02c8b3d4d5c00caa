package checkpoint

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// Vacancy has the last term of earlier links of a name: see Store.Vacancy.
type Vacancy struct {
	last int64
	// made identifies the metadata database, empty if it did not exist, no majority had that, or an earlier release has made it. If it is dropped and made
	// again, the terms begin again.
	made string
}

// Vacancy returns the Vacancy for CreateIn. It must be called before the read that finds no link, and before all checks
// that decide whether the link may be created.
func (s *Store) Vacancy(ctx context.Context) (Vacancy, error) {
	// What a failover would roll back is not its identity: another one would be made.
	made, err := s.made(ctx, s.cfg.Target, metadata.Committed)
	if servererr.HasNoMajorityReads(err) {
		made, err = s.made(ctx, s.cfg.Target, newest)
	}
	if err != nil {
		return Vacancy{}, s.wrap(err, "read which metadata database this is")
	}
	last, err := s.lastTerm(ctx, s.cfg.Target)
	if err != nil {
		return Vacancy{}, s.wrap(err, "read the last term of its name")
	}
	return Vacancy{last, made}, nil
}

// NoVacancy returns the Vacancy of a process that has found the link: what it has checked is whether it may go on with that one,
// and it never creates another one.
func NoVacancy() Vacancy { return Vacancy{last: -1} }

// CreateIn is Create, unless a link of its name was acquired and removed since v was read, or the whole metadata database was dropped, if
// it existed then: in these cases it returns ErrRemoved, if there is
// no other one by now. A process that was suspended cannot create the link once another process has run it, and its
// target is in use: it would copy again, and perhaps drop the collections.
func (s *Store) CreateIn(ctx context.Context, v Vacancy, first State) error {
	return s.createLink(ctx, first, func(txn *mongo.Txn) (int64, error) {
		last, err := s.lastTerm(ctx, txn)
		if err == nil && last > v.last {
			err = s.whyTaken(ctx, txn, fmt.Sprintf("another process has had it in term %d since this one found that there is none", last))
		}
		if err != nil || v.made == "" {
			return 0, err
		}
		if made, err := s.made(ctx, txn, newest); err != nil || made == v.made {
			return 0, err
		}
		return 0, s.whyTaken(ctx, txn, fmt.Sprintf("the database %s was dropped since this one found that there is none, and another process may have had it", s.cfg.DB))
	}, func(mongo.Caller, int64) error { return nil })
}

// whyTaken returns ErrExists if there is a link, whose terms count too, else ErrRemoved.
func (s *Store) whyTaken(ctx context.Context, c mongo.Caller, why string) error {
	doc, err := metadata.FindOne(ctx, c, s.cfg.DB, metadata.Links, metadata.ByID(s.cfg.Link), "_id")
	switch {
	case err != nil:
		return err
	case doc != nil:
		return ErrExists
	}
	return fmt.Errorf("%w: %s", ErrRemoved, why)
}

// madeID is the _id of the document in Terms that identifies the metadata database. It is of no link.
const madeID = "/made"

// make identifies the metadata database, unless it is identified.
func (s *Store) make(ctx context.Context) error {
	reply, err := s.cfg.Target.Call(ctx, metadata.Majority(mongo.Command{DB: s.cfg.DB, Body: metadata.Document(func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, "findAndModify", metadata.Terms)
		dst = metadata.AppendDoc(dst, "query", metadata.ByID(madeID))
		dst = metadata.AppendDoc(dst, "update", func(dst []byte) []byte {
			return metadata.AppendDoc(dst, "$setOnInsert", func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, "made", rand.Text()) })
		})
		return bsoncore.AppendBooleanElement(dst, "upsert", true)
	})}))
	if err == nil {
		if e := mongo.ConcernError(reply); e != nil {
			err = &mongo.UnconfirmedError{Err: e}
		}
	}
	if err != nil && !servererr.IsDuplicateKey(err) {
		return fmt.Errorf("identify the database %s: %w", s.cfg.DB, err)
	}
	return nil
}

// made returns the text that identifies the metadata database, empty for none.
func (s *Store) made(ctx context.Context, c mongo.Caller, as func(mongo.Command) mongo.Command) (string, error) {
	reply, err := c.Call(ctx, as(metadata.Find(s.cfg.DB, metadata.Terms, 1, metadata.ByID(madeID), "made")))
	if err != nil {
		return "", err
	}
	docs, err := metadata.Found(reply)
	if err != nil || len(docs) == 0 {
		return "", err
	}
	e, _ := rawbson.Lookup(docs[0], "made")
	text, _ := e.Text()
	return strings.Clone(text), nil
}

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
