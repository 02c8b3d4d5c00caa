package lease

import (
	"testing"
	"time"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// claimed is one that acquires the lease of a set for a limited time.
func (s *store) claimed(holder string, claim Claim) (*Lease, *Keeper, error) {
	claim.TTL = time.Minute
	k := NewKeeper(KeeperConfig{Target: s, DB: "db", Collection: "c", ID: "a", Holder: holder, TTL: claim.TTL})
	_, end := k.Lead(s.t.Context())
	s.t.Cleanup(end)
	cfg := s.config(holder)
	cfg.Claim, cfg.Keeper = claim, k
	l, _, err := Acquire(s.t.Context(), cfg, s.record(), 0)
	return l, k, err
}

// TestGrantedBySet: a replica set grants, renews and releases the lease by its own clock,
// and a process that does not get it does not disturb the one that has it.
func TestGrantedBySet(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := newStore(t)
	l, k, err := s.claimed("us", Claim{Why: "mirror"})
	must.Succeed(t, err)
	open := l.Own().Begin()
	if _, err := l.Update(ctx, open, same, same); err != nil {
		t.Fatal(err)
	}
	_, _, err = s.claimed("them", Claim{})
	must.Fail(t, err, ErrHeld)
	must.Get(open.Commit(ctx, true))(t)
	if now := s.record(); now.Term != 1 || now.Grant.Why != "mirror" || now.Grant.Expires.Time().Sub(now.Grant.Granted.Time()) != time.Minute {
		t.Errorf("%+v", now)
	}
	must.Succeed(t, k.renew(ctx))
	if now := s.record(); now.Grant.Duration != 1 {
		t.Errorf("renewed: %+v", now)
	}
	must.Succeed(t, k.Release(ctx))
	next, _, err := s.claimed("them", Claim{})
	must.Succeed(t, err)
	if next.Term() != 2 {
		t.Errorf("term %d", next.Term())
	}
	must.Fail(t, move(ctx, l, l.Own()), ErrFenced)
}

// TestRenewedMeanwhile: a lease that is renewed between the look at it and the write that
// acquires it stays where it is.
func TestRenewedMeanwhile(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	_, k, err := s.claimed("us", Claim{})
	must.Succeed(t, err)
	seen := s.record()
	s.before = func() { must.Succeed(t, k.renew(t.Context())) }
	// It has seen it unchanged for long enough.
	_, _, err = s.claimed("them", Claim{Unmoved: &seen})
	must.Fail(t, err, ErrHeld)
	if now := s.record(); now.Term != 1 || now.Holder != "us" || now.Grant.Duration != 1 {
		t.Errorf("%+v", now)
	}
	seen = s.record()
	l, _, err := s.claimed("them", Claim{Unmoved: &seen})
	must.Succeed(t, err)
	if l.Term() < 2 || s.record().Holder != "them" {
		t.Errorf("term %d, %+v", l.Term(), s.record())
	}
}

var _ mongo.Pipeliner = guardedPipeliner{}
