package checkpoint

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// raiseTries is how often Acquire takes the next term where a server has seen the
// number of one that the link's document does not have: somebody's start was cut
// off, or rolled back, after it had reached that server.
const raiseTries = 8

// Acquire raises the link's term and then fences every lane with it: after it
// returns no write of an older term can succeed any more, and everything that
// State says is committed by a majority. If after is not 0 it is the term that
// this process had before, and any other term that is not of this Store is
// ErrFenced.
func (s *Store) Acquire(ctx context.Context, after int64) (*Link, error) {
	before, err := s.readLink(ctx)
	if err != nil {
		return nil, s.wrap(err, "begin it")
	}
	// A term above after is ours where the answer to an earlier Acquire was lost.
	if after != 0 && before.Term > after && before.holder != s.holder {
		return nil, s.wrap(ErrFenced, "begin it after term %d, found term %d", after, before.Term)
	}
	if before.Term < after {
		return nil, s.wrap(ErrBehind, "begin it after term %d, found term %d", after, before.Term)
	}
	link, session, err := s.raise(ctx, before)
	if err != nil {
		return nil, s.wrap(err, "begin it after term %d", before.Term)
	}
	h := newLink(s, link, session)
	if err := h.fence(ctx); err != nil {
		return nil, s.wrap(err, "fence its lanes with term %d", link.Term)
	}
	if err := s.readLanes(ctx, &link); err != nil {
		return nil, s.wrap(err, "read its lanes in term %d", link.Term)
	}
	switch {
	case link.highest > link.Term:
		return nil, s.wrap(ErrFenced, "read its lanes in term %d, found term %d", link.Term, link.highest)
	case link.lowest < link.Term:
		return nil, s.wrap(ErrBehind, "read its lanes in term %d, found term %d", link.Term, link.lowest)
	}
	h.found(link)
	s.metrics.term.Set(float64(link.Term))
	s.metrics.acquired.Inc()
	s.metrics.applied.Set(float64(link.Reached().AppliedWall) / 1000)
	s.cfg.Observer.Tell(Acquired{Link: s.cfg.Link, Term: link.Term, Applied: link.Applied, FetchFrom: link.FetchFrom})
	return h, nil
}

// raise makes this Store the holder of the next term, and returns the link as it
// is then, with its session.
func (s *Store) raise(ctx context.Context, before linkDoc) (linkDoc, *mongo.Session, error) {
	id := s.sessionID(before.instance, "link")
	for term := before.Term + 1; ; term++ {
		number, err := mongo.FirstNumber(term)
		if err != nil {
			return linkDoc{}, nil, fmt.Errorf("raise the term to %d: %w", term, err)
		}
		session := mongo.NewSession(s.once, id, number)
		n, err := s.raiseTo(ctx, session, before.Term, term)
		if err != nil && !servererr.IsOldNumber(err) {
			return linkDoc{}, nil, fmt.Errorf("raise the term to %d: %w", term, err)
		}
		// Whatever the answer was: it may be that of another process's write
		// under the same number, which is not carried out twice.
		after, errRead := s.readLink(ctx)
		switch {
		case errRead != nil:
			return linkDoc{}, nil, errRead
		case after.Term == term && after.holder == s.holder && after.instance == before.instance:
			return after, session, nil
		case after.Term != before.Term || after.holder != before.holder || after.instance != before.instance:
			return linkDoc{}, nil, fmt.Errorf("raise the term to %d: it is at term %d, by another process: %w", term, after.Term, ErrFenced)
		case err == nil:
			return linkDoc{}, nil, fmt.Errorf("raise the term to %d: %d documents met, and it is at term %d still: %w", term, n, after.Term, ErrBehind)
		case term >= before.Term+raiseTries:
			return linkDoc{}, nil, fmt.Errorf("raise the term to %d: %w", term, err)
		}
	}
}

// raiseTo raises the term from one to another.
func (s *Store) raiseTo(ctx context.Context, session *mongo.Session, from, to int64) (int64, error) {
	return s.write(ctx, session, metadata.Majority(metadata.Update(s.cfg.DB, metadata.Links, metadata.Statement{
		Filter: func(dst []byte) []byte {
			dst = bsoncore.AppendStringElement(dst, "_id", s.cfg.Link)
			return bsoncore.AppendInt64Element(dst, "term", from)
		},
		Change: func(dst []byte) []byte {
			return metadata.AppendDoc(dst, "$set", func(dst []byte) []byte {
				dst = bsoncore.AppendInt64Element(dst, "term", to)
				return bsoncore.AppendStringElement(dst, "holder", s.holder)
			})
		},
	})))
}

// write writes under the session's next number, and again under the same one where
// it was refused and that passes. It returns how many documents were met.
func (s *Store) write(ctx context.Context, session *mongo.Session, cmd mongo.Command) (n int64, err error) {
	send := session.Write
	err = s.patience().Do(ctx, func() error {
		reply, err := send(ctx, cmd)
		send = session.Again
		if err == nil {
			n, err = metadata.Written(reply)
		}
		return err
	})
	return n, err
}

// sessionID returns the id of a session of the link.
func (s *Store) sessionID(instance, lane string) []byte {
	return mongo.SessionID(s.cfg.DB, s.cfg.Link, instance, lane)
}

// fence raises the term of every lane, each on its own session.
func (h *Link) fence(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, l := range h.all() {
		g.Go(func() error { return l.fence(ctx) })
	}
	return g.Wait()
}

func (l *Lane) fence(ctx context.Context) error {
	term := l.link.state.Term
	n, err := l.link.store.write(ctx, l.session, metadata.Majority(metadata.Update(l.link.store.cfg.DB, metadata.Lanes, metadata.Statement{
		Filter: func(dst []byte) []byte {
			dst = bsoncore.AppendStringElement(dst, "_id", l.id)
			return metadata.AppendDoc(dst, "term", func(dst []byte) []byte {
				return bsoncore.AppendInt64Element(dst, "$lt", term)
			})
		},
		Change: func(dst []byte) []byte {
			return metadata.AppendDoc(dst, "$set", func(dst []byte) []byte {
				return bsoncore.AppendInt64Element(dst, "term", term)
			})
		},
	})))
	if servererr.IsOldNumber(err) {
		return fmt.Errorf("lane %s: %w: %w", l.id, ErrFenced, err)
	}
	if err != nil {
		return fmt.Errorf("lane %s: %w", l.id, err)
	}
	if n == 1 {
		return nil
	}
	return l.link.store.whyNotFenced(ctx, l.id, term)
}

// whyNotFenced says why a lane did not take a term.
func (s *Store) whyNotFenced(ctx context.Context, id string, term int64) error {
	reply, err := s.cfg.Target.Call(ctx, metadata.Find(s.cfg.DB, metadata.Lanes, 1, metadata.ByID(id)))
	if err != nil {
		return fmt.Errorf("lane %s: %w", id, err)
	}
	docs, err := metadata.Found(reply)
	if err != nil {
		return fmt.Errorf("lane %s: %w", id, err)
	}
	if len(docs) == 0 {
		return &metadata.DamagedError{Link: s.cfg.Link, What: fmt.Sprintf("there is no document %q in %s", id, metadata.Lanes)}
	}
	lane, err := readLane(s.cfg.Link, docs[0])
	if err != nil {
		return err
	}
	if lane.term > term {
		return fmt.Errorf("lane %s has term %d, not %d: %w", id, lane.term, term, ErrFenced)
	}
	return fmt.Errorf("lane %s did not take term %d, it has %d: %w", id, term, lane.term, ErrBehind)
}
