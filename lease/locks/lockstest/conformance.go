package lockstest

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/lease/locks"
)

// Run tests the contract of a store. Open returns an empty one. TTL is that of the locks that
// end in the tests; a few calls must take less.
func Run(t *testing.T, ttl time.Duration, open func(t *testing.T) locks.Store) {
	for name, test := range map[string]func(*suite){
		"Free":      (*suite).free,
		"Fields":    (*suite).fields,
		"Busy":      (*suite).busy,
		"Own":       (*suite).own,
		"Release":   (*suite).release,
		"Ends":      (*suite).ends,
		"Renew":     (*suite).renew,
		"NoEnd":     (*suite).noEnd,
		"Overtake":  (*suite).overtake,
		"OneWins":   (*suite).oneWins,
		"List":      (*suite).list,
		"Pings":     (*suite).pings,
		"Sweep":     (*suite).sweep,
		"Clock":     (*suite).clock,
		"Cancelled": (*suite).cancelled,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(&suite{T: t, ttl: ttl, store: open(t)})
		})
	}
}

type suite struct {
	*testing.T
	ttl   time.Duration
	store locks.Store
}

// claim is one of process p for the lock "a".
func claim(p string, ttl time.Duration) locks.Claim {
	return locks.Claim{Name: "a", Process: p, ID: bson.NewObjectID(), TTL: ttl}
}

// retried calls again after the errors that may pass.
func retried[V any](s *suite, call func() (V, error)) V {
	s.Helper()
	for {
		v, err := call()
		if err == nil {
			return v
		}
		if !errors.Is(err, locks.ErrUnavailable) || s.Context().Err() != nil {
			s.Fatal(err)
		}
	}
}

func (s *suite) acquire(c locks.Claim) locks.Record {
	s.Helper()
	return retried(s, func() (locks.Record, error) { return s.store.Acquire(s.Context(), c) })
}

// got acquires the lock, which must succeed in that term.
func (s *suite) got(c locks.Claim, term int64) locks.Record {
	s.Helper()
	r := s.acquire(c)
	if r.ID != c.ID || !r.IsLocked() || r.Term != term || r.Process != c.Process {
		s.Fatalf("%+v did not get it in term %d: %+v", c, term, r)
	}
	return r
}

// refused tries to acquire the lock, which another claim must have.
func (s *suite) refused(c, has locks.Claim, term int64) {
	s.Helper()
	if r := s.acquire(c); r.ID != has.ID || !r.IsLocked() || r.Process != has.Process || r.Term != term {
		s.Fatalf("%+v: %+v, want that of %+v", c, r, has)
	}
}

func (s *suite) unlock(name string, id bson.ObjectID) {
	s.Helper()
	retried(s, func() (bool, error) { return true, s.store.Release(s.Context(), name, id) })
}

func (s *suite) extend(id bson.ObjectID) (locks.Record, error) {
	for {
		r, err := s.store.Renew(s.Context(), "a", id)
		if !errors.Is(err, locks.ErrUnavailable) || s.Context().Err() != nil {
			return r, err
		}
	}
}

func (s *suite) now() locks.Moment {
	s.Helper()
	return retried(s, func() (locks.Moment, error) { return s.store.Clock(s.Context()) })
}

// pass waits until the store's clock has passed a time.
func (s *suite) pass(at time.Time) {
	s.Helper()
	for !s.now().Time.After(at) {
		<-time.After(5 * time.Millisecond)
	}
}

func (s *suite) free() {
	first, second := claim("p", 0), claim("q", 0)
	s.got(first, 1)
	s.unlock("a", first.ID)
	s.got(second, 2)
}

// fields: what a claim says is in the record, whatever is in it, and times are the store's.
func (s *suite) fields() {
	for i, text := range []string{"plain", "$why", "$$NOW", "a.b.c", `it's "q" \ ; --`, "größe ☃ 🔒", "{$add: [1, 2]}", "%s %d ?", ""} {
		c := locks.Claim{Name: "n" + strconv.Itoa(i) + text, Process: "p" + text, ID: bson.NewObjectID(), TTL: time.Hour, Who: "w" + text, Why: text}
		before := s.now()
		r := s.got(c, 1)
		after := s.now()
		if r.Name != c.Name || r.Who != c.Who || r.Why != c.Why || r.TTL != c.TTL || r.State != locks.Locked {
			s.Errorf("%+v: %+v", c, r)
		}
		// The claim may have come more than once.
		once := r.Renewals == 0 && r.Modified.Equal(r.When) || r.Renewals > 0 && !r.Modified.Before(r.When)
		if r.When.Before(before.Time) || r.When.After(after.Time) || !once || !r.Expires.Equal(r.Modified.Add(time.Hour)) {
			s.Errorf("between %s and %s: %+v", before.Time, after.Time, r)
		}
	}
}

// busy: a claim that is refused changes nothing.
func (s *suite) busy() {
	first := claim("p", time.Hour)
	first.Why = "mirror"
	was := s.got(first, 1)
	for range 3 {
		s.refused(claim("q", time.Hour), first, 1)
		s.refused(claim("p", time.Hour), first, 1) // nor one of the same process
	}
	if r := s.acquire(claim("q", 0)); r != was {
		s.Errorf("%+v, want %+v", r, was)
	}
}

// own: a claim whose reply was lost is the same acquisition when it comes again.
func (s *suite) own() {
	c := claim("p", time.Hour)
	first := s.got(c, 1)
	s.pass(first.Modified)
	again := s.got(c, 1)
	if again.Renewals <= first.Renewals || !again.When.Equal(first.When) || !again.Expires.After(first.Expires) {
		s.Errorf("first %+v, then %+v", first, again)
	}
	s.unlock("a", c.ID)
	s.got(c, 2)
}

// release: only the ID that has the lock releases it, once or more often.
func (s *suite) release() {
	first, second := claim("p", 0), claim("q", time.Hour)
	s.unlock("a", first.ID) // absent
	s.got(first, 1)
	s.unlock("a", second.ID)
	s.unlock("b", first.ID)
	s.refused(second, first, 1)
	s.unlock("a", first.ID)
	s.unlock("a", first.ID)
	s.got(second, 2)
	s.unlock("a", first.ID) // late
	s.refused(claim("p", 0), second, 2)
	s.unlock("a", second.ID)
	if _, err := s.extend(second.ID); !errors.Is(err, locks.ErrLost) {
		s.Errorf("renew a released lock: %v", err)
	}
	s.got(claim("p", 0), 3)
}

// ends: a lock with a TTL is free when that is over by the store's clock, not before.
func (s *suite) ends() {
	first, second := claim("p", s.ttl), claim("q", s.ttl)
	r := s.got(first, 1)
	for {
		now := s.acquire(second)
		if now.ID == second.ID {
			if now.When.Before(r.Expires) || now.Term != 2 {
				s.Errorf("it ends %s, and then: %+v", r.Expires, now)
			}
			break
		}
		if s.now().Time.After(r.Expires.Add(s.ttl)) {
			s.Fatalf("it did not end: %+v", now)
		}
	}
	if _, err := s.extend(first.ID); !errors.Is(err, locks.ErrLost) {
		s.Errorf("renew what another one has: %v", err)
	}
	s.got(second, 2)
}

// renew: a renewal extends the lock; one that comes after its end does not.
func (s *suite) renew() {
	c := claim("p", s.ttl)
	r := s.got(c, 1)
	for range 3 {
		s.pass(r.Modified.Add(s.ttl / 4))
		next, err := s.extend(c.ID)
		if err != nil || next.Renewals <= r.Renewals || !next.Expires.Equal(next.Modified.Add(s.ttl)) || !next.Expires.After(r.Expires) || next.Term != 1 || !next.When.Equal(r.When) {
			s.Fatalf("%v: %+v, before %+v", err, next, r)
		}
		r = next
	}
	s.pass(r.Expires)
	if next, err := s.extend(c.ID); !errors.Is(err, locks.ErrLost) {
		s.Errorf("renewed after %s: %v, %+v", r.Expires, err, next)
	}
	s.got(claim("q", s.ttl), 2)
	if _, err := s.store.Renew(s.Context(), "none", c.ID); !errors.Is(err, locks.ErrLost) {
		s.Errorf("renew an absent lock: %v", err)
	}
}

// LateRenewal tests that a renewal that is executed late, by the time when the server began with
// it, and a repeated claim do not make a lock end earlier. The store is empty, skew sets how
// far its clock is ahead.
func LateRenewal(t *testing.T, store locks.Store, skew func(time.Duration)) {
	s := &suite{T: t, store: store}
	c := claim("p", time.Hour)
	s.got(c, 1)
	skew(30 * time.Minute)
	was, err := s.extend(c.ID)
	if err != nil {
		t.Fatal(err)
	}
	skew(0)
	late, err := s.extend(c.ID)
	if err != nil || !late.Expires.Equal(was.Expires) {
		t.Errorf("%v: it ended %s, and after a late renewal %s", err, was.Expires, late.Expires)
	}
	if again := s.got(c, 1); !again.Expires.Equal(was.Expires) {
		t.Errorf("it ended %s, and after a late claim %s", was.Expires, again.Expires)
	}
}

// noEnd: a lock without a TTL has no end, also after one that had.
func (s *suite) noEnd() {
	s.got(claim("p", s.ttl), 1)
	r := s.now()
	s.pass(r.Time.Add(s.ttl))
	c := claim("q", 0)
	if r := s.got(c, 2); r.TTL != 0 || !r.Expires.IsZero() {
		s.Errorf("%+v", r)
	}
	s.pass(s.now().Time.Add(s.ttl))
	s.refused(claim("p", s.ttl), c, 2)
	if r, err := s.extend(c.ID); err != nil || r.ID != c.ID || !r.IsLocked() || !r.Expires.IsZero() {
		s.Errorf("confirmed: %v, %+v", err, r)
	}
	if _, err := s.extend(bson.NewObjectID()); !errors.Is(err, locks.ErrLost) {
		s.Errorf("confirm what another one has: %v", err)
	}
}

// overtake: exactly the acquisition that was seen is overtaken.
func (s *suite) overtake() {
	first, second := claim("p", 0), claim("q", 0)
	was := s.got(first, 1)
	second.Overtake = bson.NewObjectID()
	s.refused(second, first, 1)
	second.Overtake, second.Renewals = first.ID, was.Renewals
	s.got(second, 2)
	s.got(second, 2) // the reply was lost
	third := claim("r", 0)
	third.Overtake = first.ID
	s.refused(third, second, 2)
	third.Overtake = second.ID // which was renewed when the reply was lost
	s.refused(third, second, 2)
	third.Overtake = first.ID
	if _, err := s.extend(first.ID); !errors.Is(err, locks.ErrLost) {
		s.Errorf("renew an overtaken lock: %v", err)
	}
	s.unlock("a", first.ID)
	s.refused(third, second, 2)
}

// oneWins: of many that want it at once one gets it, in each term.
func (s *suite) oneWins() {
	const contenders, rounds = 12, 8
	for round := range rounds {
		var mu sync.Mutex
		var won []locks.Record
		var all sync.WaitGroup
		for i := range contenders {
			c := claim("p"+strconv.Itoa(i), time.Hour)
			all.Go(func() {
				if r := s.acquire(c); r.ID == c.ID {
					mu.Lock()
					won = append(won, r)
					mu.Unlock()
				}
			})
		}
		all.Wait()
		if len(won) != 1 || won[0].Term != int64(round)+1 {
			s.Fatalf("round %d: %+v", round, won)
		}
		s.unlock("a", won[0].ID)
	}
}

// list: more than one batch of any store, sorted.
func (s *suite) list() {
	const n = 150
	for i := range n {
		s.acquire(locks.Claim{Name: strconv.Itoa(1000 + i), Process: "p" + strconv.Itoa(i%3), ID: bson.NewObjectID()})
	}
	ended := s.got(claim("p0", time.Millisecond), 1)
	s.pass(ended.Expires)
	for process, want := range map[string]int{"": n + 1, "p0": n/3 + 1, "p1": n / 3, "other": 0} {
		list := retried(s, func() ([]locks.Record, error) { return s.store.List(s.Context(), process) })
		if len(list) != want || !slices.IsSortedFunc(list, func(a, b locks.Record) int { return cmp.Compare(a.Name, b.Name) }) {
			s.Errorf("%q: %d, want %d, sorted", process, len(list), want)
		}
		for _, r := range list {
			if r.IsLocked() == (r.Name == "a") || process != "" && r.Process != process {
				s.Errorf("%q: %+v", process, r)
			}
		}
	}
}

// pings: each process has its own, which moves with the store's clock.
func (s *suite) pings() {
	ping := func(p string) {
		retried(s, func() (bool, error) { return true, s.store.Ping(s.Context(), p) })
	}
	pinged := func(p string) time.Time {
		return retried(s, func() (time.Time, error) { return s.store.Pinged(s.Context(), p) })
	}
	remove := func(p string) {
		retried(s, func() (bool, error) { return true, s.store.RemovePing(s.Context(), p) })
	}
	if at := pinged("p"); !at.IsZero() {
		s.Errorf("before the first: %s", at)
	}
	before := s.now()
	ping("p")
	ping("q")
	at := pinged("p")
	if at.Before(before.Time) || at.After(s.now().Time) {
		s.Errorf("%s, pinged after %s", at, before.Time)
	}
	s.pass(at)
	if again := pinged("p"); !again.Equal(at) {
		s.Errorf("it moved from %s to %s", at, again)
	}
	ping("p")
	if again := pinged("p"); !again.After(at) {
		s.Errorf("%s, then %s", at, again)
	}
	remove("p")
	remove("p")
	if at, other := pinged("p"), pinged("q"); !at.IsZero() || other.IsZero() {
		s.Errorf("removed: %s, the other one: %s", at, other)
	}
}

// sweep: old pings are removed, unless a lock names the process.
func (s *suite) sweep() {
	store, ok := s.store.(locks.Sweeper)
	if !ok {
		s.Skip("the store leaves old pings")
	}
	sweep := func(older time.Duration) {
		retried(s, func() (bool, error) { return true, store.SweepPings(s.Context(), older) })
	}
	are := func(when string, p, q, r bool) {
		s.Helper()
		for process, want := range map[string]bool{"p": p, "q": q, "r": r} {
			at := retried(s, func() (time.Time, error) { return s.store.Pinged(s.Context(), process) })
			if at.IsZero() == want {
				s.Errorf("%s: the ping of %s is there: %t, want %t", when, process, !at.IsZero(), want)
			}
		}
	}
	for _, p := range []string{"p", "q", "r"} {
		retried(s, func() (bool, error) { return true, s.store.Ping(s.Context(), p) })
	}
	c := claim("r", 0)
	s.got(c, 1)
	s.unlock("a", c.ID)
	s.got(claim("q", 0), 2)
	s.pass(s.now().Time)
	sweep(time.Hour)
	are("none is old", true, true, true)
	sweep(0)
	are("all are old, q has a lock", false, true, false)
}

func (s *suite) clock() {
	first := s.now()
	s.pass(first.Time)
	if second := s.now(); second.Election != first.Election || !second.Time.After(first.Time) || first.Election == "" {
		s.Errorf("%+v, then %+v", first, second)
	}
}

// cancelled: every call returns when its context is done. Whether it was executed is unknown.
func (s *suite) cancelled() {
	ctx := cancelledContext(s.T)
	c := claim("p", 0)
	_, acquire := s.store.Acquire(ctx, c)
	_, renew := s.store.Renew(ctx, "a", c.ID)
	_, list := s.store.List(ctx, "")
	_, clock := s.store.Clock(ctx)
	_, pinged := s.store.Pinged(ctx, "p")
	for i, err := range []error{acquire, renew, s.store.Release(ctx, "a", c.ID), list, clock, s.store.Ping(ctx, "p"), pinged, s.store.RemovePing(ctx, "p")} {
		if !errors.Is(err, locks.ErrUnavailable) {
			s.Errorf("call %d returned %v", i, err)
		}
	}
}

func cancelledContext(t *testing.T) context.Context {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(nil)
	return ctx
}
