package checkpoint

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/lease"
)

// Acquire acquires the link's lease and fences every lane with its term: after it
// returns, no write of an older term can succeed, and everything in State is
// majority-committed. After is the previous term of this process, 0 if it had none;
// Acquire returns lease.ErrFenced if another process has had a newer one, and an *OverError if
// the link has ended.
//
// The lease has no end, and is taken over from any process: AcquireBy is for others.
func (s *Store) Acquire(ctx context.Context, after int64) (*Link, error) {
	return s.AcquireBy(ctx, after, lease.Claim{})
}

// AcquireBy is Acquire with a claim: see lease.Acquire. With a TTL, Config.Keeper must be
// the link's, and its Lead must have been called.
func (s *Store) AcquireBy(ctx context.Context, after int64, claim lease.Claim) (*Link, error) {
	before, err := s.bounded().readLink(ctx)
	if err == nil {
		err = s.open(&before)
	}
	if err != nil {
		return nil, s.wrap(err, "acquire its lease")
	}
	return s.acquire(ctx, before, after, claim)
}

// acquire acquires the lease of a link that was read before.
func (s *Store) acquire(ctx context.Context, before linkDoc, after int64, claim lease.Claim) (*Link, error) {
	held, doc, err := lease.Acquire(ctx, lease.Config{
		Target: s.once, Retry: s.patience(), DB: s.cfg.DB, Collection: metadata.Links, ID: s.cfg.Link, Holder: s.holder,
		Claim: claim, Keeper: s.cfg.Keeper,
	}, before.lease, after)
	if err != nil {
		return nil, s.wrap(err, "acquire its lease")
	}
	link, err := readLink(s.cfg.Link, doc)
	if err == nil {
		err = s.open(&link) // another process may have ended it since it was read
	}
	if err != nil {
		return nil, s.wrap(err, "read it in term %d", held.Term())
	}
	h := newLink(s, held, link)
	g, within := errgroup.WithContext(ctx)
	for _, l := range h.all() {
		g.Go(func() error { return held.Fence(within, l.session, metadata.Lanes, l.id) })
	}
	if err := g.Wait(); err != nil {
		return nil, s.wrap(err, "fence its lanes with term %d", link.Term)
	}
	if err := s.bounded().readLanes(ctx, &link); err != nil {
		return nil, s.wrap(err, "read its lanes in term %d", link.Term)
	}
	switch {
	case link.highest > link.Term:
		return nil, s.wrap(lease.ErrFenced, "read its lanes in term %d, found term %d", link.Term, link.highest)
	case link.lowest < link.Term:
		return nil, s.wrap(lease.ErrBehind, "read its lanes in term %d, found term %d", link.Term, link.lowest)
	}
	h.found(link)
	s.metrics.acquired.Inc()
	s.metrics.applied.Set(float64(link.Reached().AppliedWall) / 1000)
	s.cfg.Observer.Tell(Acquired{Link: s.cfg.Link, Term: link.Term, Applied: link.Applied, FetchFrom: link.FetchFrom})
	return h, nil
}

// bounded returns the Store for acquiring a lease: it does not wait for ever for a reply.
func (s *Store) bounded() *Store {
	b := *s
	b.cfg.Target = mongo.Patient{Caller: mongo.Bounded{Caller: s.once, Limit: lease.AnswerWithin}, Retry: s.patience()}
	return &b
}

// newLink makes the Link of a lease, with lanes that have no position yet.
func newLink(s *Store, held *lease.Lease, link linkDoc) *Link {
	h := &Link{store: s, lease: held, state: link.State, txns: held.Own(), applied: link.Applied, source: link.Source}
	for i, id := range laneIDs(s.cfg.Link, link.Writers) {
		l := &Lane{link: h, id: id, session: held.Session(id)}
		if i == link.Writers {
			h.barrier = l
		} else {
			h.lanes = append(h.lanes, l)
		}
	}
	return h
}

// found sets the lanes to the positions that were read.
func (h *Link) found(link linkDoc) {
	h.state, h.barrierAt, h.copy, h.leftOut = link.State, link.Barrier, link.Copy.clone(), link.LeftOut
	for i, l := range h.lanes {
		l.position, l.announced = link.Lanes[i], link.LanesAnnounced[i]
		// It was read after all lanes were fenced, so it is majority-committed.
		l.barrierSeen = link.Barrier
	}
	h.barrier.position, h.barrier.announced = link.Barrier, link.Announced
}
