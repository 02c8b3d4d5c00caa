package mongosim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/auth"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/mood"
	"github.com/oplogrep/replicator/mongosim/internal/netfault"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

var (
	// ErrNoPrimary is returned if no member is primary, or none became primary in time.
	ErrNoPrimary = errors.New("no primary")
	// ErrClosed is returned by calls to a set that was closed.
	ErrClosed = errors.New("the set was closed")
)

// Set is a running replica set. Its methods may be called concurrently.
type Set struct {
	opts Options
	net  *netfault.Network
	// auth is nil without access control.
	auth   dispatch.Authorizer
	cancel context.CancelCauseFunc
	ctx    context.Context //nolint:containedctx // the lifetime of all members, ended by Close

	// changing lets one AddMember or RemoveMember at a time; Close takes it too.
	changing sync.Mutex
	// members is replaced, never changed: see Members.
	members atomic.Pointer[[]*Member]

	// temper decides on moods; nil is none. electing are the step-downs that it has
	// requested.
	temper   *mood.Temper
	electing sync.WaitGroup

	// mu guards rng, from which UUIDs and seeds come.
	mu  sync.Mutex
	rng *rand.Rand
}

// TB is the part of testing.TB that StartTest uses.
type TB interface {
	// Helper marks the caller as a helper.
	Helper()
	// Cleanup calls f at the end of the test.
	Cleanup(f func())
	// Fatalf ends the test.
	Fatalf(format string, args ...any)
	// Context is done just before the functions of Cleanup are called.
	Context() context.Context
}

// StartTest starts a set and closes it when the test ends. The test fails if the set
// cannot be started. Without Options.Moods the set has all moods, which clients meet whose
// application name is that of Moods.App; a test that fails logs their seed.
func StartTest(t TB, opts Options) *Set {
	t.Helper()
	// A benchmark measures a set without rare answers.
	_, measures := t.(interface{ Loop() bool })
	if opts.Moods.isZero() && !measures {
		opts.Moods.All = true
	}
	if !opts.Moods.isZero() {
		if err := opts.Moods.fromEnvironment(); err != nil {
			t.Fatalf("start the embedded set: %v", err)
		}
	}
	set, err := Start(t.Context(), opts)
	if err != nil {
		t.Fatalf("start the embedded set: %v", err)
	}
	t.Cleanup(func() {
		set.tell(t)
		set.Close()
		set.forget()
	})
	return set
}

// Start starts the members on ports of their own, initiates the set and waits until it has a
// primary and all members are ready. The set runs until Close; ctx bounds only the start.
func Start(ctx context.Context, opts Options) (*Set, error) {
	opts.setDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	set := &Set{
		opts: opts,
		net:  netfault.NewNetwork(uint64(opts.Seed)),
		rng:  rand.New(rand.NewPCG(uint64(opts.Seed), 0x5e7)),
	}
	var err error
	if set.temper, err = opts.Moods.temper(set.elect); err != nil {
		return nil, err
	}
	if len(opts.Users) > 0 || opts.Keyfile != "" {
		if set.auth, err = opts.authorizer(); err != nil {
			return nil, err
		}
	}
	set.ctx, set.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	set.members.Store(&[]*Member{})
	for _, m := range opts.MemberOptions {
		if _, err := set.newMember(m); err != nil {
			set.Close()
			return nil, err
		}
	}
	for _, m := range set.Members() {
		if err := m.Start(); err != nil {
			set.Close()
			return nil, err
		}
	}
	if opts.NoInitiate {
		return set, nil
	}
	if err := set.initiate(ctx); err != nil {
		set.Close()
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w: %w", err, cause)
		}
		return nil, err
	}
	return set, nil
}

// authorizer has the users of the options; all members share it.
func (o *Options) authorizer() (dispatch.Authorizer, error) {
	users := make([]auth.User, 0, len(o.Users))
	for _, u := range o.Users {
		user := auth.User{Name: u.Name, Password: u.Password, DB: u.db()}
		for _, r := range u.Roles {
			user.Roles = append(user.Roles, auth.Role{Name: r.Name, DB: r.DB})
		}
		users = append(users, user)
	}
	manager, err := auth.New(auth.Config{Users: users, Keyfile: o.Keyfile, Seed: o.Seed, Major: o.major()})
	if err != nil {
		return nil, fmt.Errorf("mongosim: users: %w", err)
	}
	return manager, nil
}

// Close stops all members and returns when everything that the set started has ended.
// Closing a set again does nothing.
func (s *Set) Close() {
	s.mu.Lock()
	s.cancel(ErrClosed) // no election begins after that
	s.mu.Unlock()
	s.electing.Wait()
	s.changing.Lock()
	defer s.changing.Unlock()
	for _, m := range s.Members() {
		m.retire()
	}
}

// forget drops the data of a closed set. Package testing refers to the functions of Cleanup
// of a parallel test, and with them to the set, until all tests have ended: with hundreds of
// them, gigabytes would be kept.
func (s *Set) forget() {
	for _, m := range s.Members() {
		m.mu.Lock()
		m.store = storage.New(m.storage())
		m.mu.Unlock()
	}
}

// URI returns the set's connection string. It names all members but hidden ones and
// arbiters, and no user: see URIFor.
func (s *Set) URI() string { return s.uri(nil) }

// URIFor returns the connection string with the login of a user of Options.Users. It
// panics if there is no such user.
func (s *Set) URIFor(name string) string {
	for _, u := range s.opts.Users {
		if u.Name == name {
			return s.uri(&u)
		}
	}
	panic(fmt.Sprintf("mongosim: no user %q in Options.Users", name))
}

func (s *Set) uri(u *User) string {
	var hosts []string
	for _, m := range s.Members() {
		if !m.opts.Arbiter && !m.opts.Hidden && !m.removed.Load() {
			hosts = append(hosts, m.Host())
		}
	}
	login, query := "", url.Values{"replicaSet": {s.opts.SetName}}
	if u != nil {
		login = url.UserPassword(u.Name, u.Password).String() + "@"
		query.Set("authSource", u.db())
	}
	return "mongodb://" + login + strings.Join(hosts, ",") + "/?" + query.Encode()
}

func (u *User) db() string {
	if u.DB == "" {
		return "admin"
	}
	return u.DB
}

// Members returns all members, by ID: those of Options.MemberOptions in their order, then
// those that AddMember added. A removed member keeps its place.
func (s *Set) Members() []*Member { return *s.members.Load() }

// Member returns the member with an ID. It panics if there is none.
func (s *Set) Member(id int) *Member {
	all := s.Members()
	if id < 0 || id >= len(all) {
		panic(fmt.Sprintf("mongosim: no member %d; they are 0 to %d", id, len(all)-1))
	}
	return all[id]
}

// Primary returns the member that accepts writes, nil if none does at this moment. Of
// two, as during a partition, it is the one with the higher term.
func (s *Set) Primary() *Member {
	var primary *Member
	term := int64(-1)
	for _, m := range s.Members() {
		if v, ok := m.view(); ok && v.Writable && v.Term > term {
			primary, term = m, v.Term
		}
	}
	return primary
}

// AwaitPrimary waits until a member accepts writes, and returns it.
func (s *Set) AwaitPrimary(ctx context.Context) (*Member, error) {
	return s.AwaitNewPrimary(ctx, nil)
}

// AwaitNewPrimary waits until a member other than old accepts writes in the highest term,
// and returns it.
func (s *Set) AwaitNewPrimary(ctx context.Context, old *Member) (*Member, error) {
	var primary *Member
	err := s.await(ctx, "a primary", func() bool {
		primary = s.Primary()
		return primary != nil && primary != old
	})
	return primary, err
}

// AwaitReady waits until every running member is primary, secondary or arbiter.
func (s *Set) AwaitReady(ctx context.Context) error {
	return s.await(ctx, "all members", func() bool {
		for _, m := range s.Members() {
			if !m.removed.Load() && !m.ready() {
				return false
			}
		}
		return true
	})
}

// AwaitSynced waits until every running data-bearing member that is not delayed has
// applied what the primary has applied at the time of the call, and knows that it is
// committed. A member that has to roll back has done so by then.
func (s *Set) AwaitSynced(ctx context.Context) error {
	primary, err := s.AwaitPrimary(ctx)
	if err != nil {
		return err
	}
	v, ok := primary.view()
	if !ok {
		return fmt.Errorf("mongosim: wait for members of %s: %w", s.opts.SetName, ErrNoPrimary)
	}
	goal := v.Applied
	return s.await(ctx, "members at "+goal.String(), func() bool {
		for _, m := range s.Members() {
			v, ok := m.view()
			if ok && !m.removed.Load() && !m.opts.Arbiter && m.opts.Delay == 0 && (v.Applied.Before(goal) || v.Committed.Before(goal)) {
				return false
			}
		}
		return true
	})
}

// await waits for a condition that a change of any member may satisfy.
func (s *Set) await(ctx context.Context, what string, done func() bool) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			err := context.Cause(ctx)
			if s.Primary() == nil {
				err = fmt.Errorf("%w: %w", ErrNoPrimary, err)
			}
			return fmt.Errorf("mongosim: wait for %s of %s: %w", what, s.opts.SetName, err)
		case <-s.ctx.Done():
			return fmt.Errorf("mongosim: wait for %s of %s: %w", what, s.opts.SetName, ErrClosed)
		}
	}
	return nil
}

// StepDown makes the primary step down and waits until the set has a primary in a higher
// term: in a set of one member the same one, else usually another. A member that is too slow to step down within its
// limits tries again.
func (s *Set) StepDown(ctx context.Context) error {
	var term int64
	for stepped := false; !stepped; {
		old, err := s.AwaitPrimary(ctx)
		if err != nil {
			return err
		}
		node, err := old.node()
		if err != nil {
			return fmt.Errorf("mongosim: step down: %w", err)
		}
		term = node.View().Term
		switch err := node.StepDown(ctx, s.opts.ElectionTimeout*2, s.opts.ElectionTimeout, true); {
		case err == nil, errors.Is(err, servererr.New(servererr.PrimarySteppedDown, "")): // another election was first
			stepped = true
		case !errors.Is(err, servererr.New(servererr.ExceededTimeLimit, "")) && !errors.Is(err, servererr.New(servererr.NotWritablePrimary, "")):
			return fmt.Errorf("mongosim: step down %s: %w", old.Host(), err)
		}
	}
	return s.await(ctx, "a primary after a step-down", func() bool {
		p := s.Primary()
		if p == nil {
			return false
		}
		now, ok := p.view()
		return ok && now.Term > term
	})
}

// newUUID makes a UUID of version 4 from the seed, or asks Options.NewUUID.
func (s *Set) newUUID() (u oplog.UUID) {
	if s.opts.NewUUID != nil {
		return s.opts.NewUUID()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range u {
		u[i] = byte(s.rng.Uint32())
	}
	u[6], u[8] = u[6]&0x0f|0x40, u[8]&0x3f|0x80
	return u
}

func (s *Set) byHost(host string) *Member {
	for _, m := range s.Members() {
		if m.Host() == host {
			return m
		}
	}
	return nil
}
