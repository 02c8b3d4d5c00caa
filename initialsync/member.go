package initialsync

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/initialsync/inventory"
	"github.com/oplogrep/replicator/initialsync/origin"
	"github.com/oplogrep/replicator/initialsync/progress"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/syncsource"
)

// troubleWait is for how long attempts may fail on reads of a member that answers, without
// any progress, before the copy leaves it.
const troubleWait = 30 * time.Second

// MembersConfig says how a copy chooses its members.
type MembersConfig struct {
	Watcher *syncsource.Watcher
	// Resolver is not used for anything else.
	Resolver *syncsource.Resolver
	Dialer   syncsource.Dialer
	// Direct is set if the other members of the set are not to be asked.
	Direct bool
	// Wait is that of [Options.SourceWait].
	Wait time.Duration
	// Since, if not null, is an entry that the copy has to begin at or after: it would meet that again, and be void by it. A member
	// that has it is waited for, but not for ever.
	Since    oplog.OpTime
	Observer event.Observer
}

// Members chooses the member that a copy is read from. The documents already copied stay valid
// with another one: see docs/adr/0016. Its methods must not be called concurrently.
type Members struct {
	cfg MembersConfig
	// number is that of the copy that the fields below are about.
	number int64
	// away is for how long no member could be read.
	away absence
	// trouble is for how long attempts have failed on reads of the member, and at is the
	// last such failure, nil if the last attempt did not end by one.
	trouble absence
	at      error
	// set is the id of the replica set, zero if it is unknown.
	set bson.RawValue
	// shown is the newest time that a read of this process showed.
	shown shown
	// lacking is since when no member was found that has MembersConfig.Since, zero if there is one.
	lacking time.Time
}

// NewMembers returns the Members of all copies of a link.
func NewMembers(cfg MembersConfig) *Members { return &Members{cfg: cfg} }

// ErrNoMember reports that no member can continue a copy at present.
var ErrNoMember = errors.New("no member of the source can continue the copy at present")

// Choose returns the member to read from: the one that the link's copy was read from so
// far if it is unchanged and can be read, otherwise one that can continue the copy, which
// is recorded. If there is none, the error is ErrNoMember; if there has been none for too
// long, a [*NoMemberError].
func (m *Members) Choose(ctx context.Context, link *checkpoint.Link) (mongo.Caller, error) {
	c := link.Copy()
	m.begin(c.Number)
	m.set = link.State().Source.ReplicaSetID
	m.away.observe(time.Now(), m.step())
	member := m.cfg.Dialer.Member(c.Host)
	why := m.fit(ctx, c, member)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case servererr.IsDenied(why):
		return nil, why // it stays so until the privilege is granted
	case why == nil && m.at == nil:
		m.away = absence{}
		return m.observe(member, c.Host), nil
	}
	wait, err := m.patience(ctx, link, c, why)
	if err != nil {
		return nil, err
	}
	if why == nil {
		return m.leave(ctx, link, c, member, wait)
	}
	if m.away.total < wait {
		return nil, fmt.Errorf("%w: it is read from %s, which is waited for, for another %s at most, as another member has to read collections again: %w",
			ErrNoMember, c.Host, (wait - m.away.total).Round(time.Second), why)
	}
	next, caller, failed := m.candidate(ctx, c, isChanged(why))
	if failed == nil {
		return m.move(ctx, link, c, &next, caller, why)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	m.away.observe(time.Now(), m.cfg.Wait)
	failed = fmt.Errorf("it was read from %s (%w), and no other member can continue it: %w", c.Host, why, failed)
	if m.away.total > m.cfg.Wait || isChanged(why) && m.cfg.Direct {
		return nil, &NoMemberError{For: m.away.total, Err: failed}
	}
	return nil, fmt.Errorf("%w; the copy starts over if this lasts for another %s: %w", ErrNoMember, (m.cfg.Wait - m.away.total).Round(time.Second), failed)
}

// begin resets the state of the members if another copy has begun.
func (m *Members) begin(number int64) {
	if m.number != number {
		m.number, m.away, m.trouble, m.at = number, absence{}, absence{}, nil
	}
}

// step is how much of the time between two tries counts.
func (m *Members) step() time.Duration { return min(time.Minute, m.cfg.Wait/8) }

// fit checks that the member that a copy was read from is unchanged, and can be read.
func (m *Members) fit(ctx context.Context, c *checkpoint.Copy, member mongo.Caller) error {
	err := origin.Check(ctx, member, identityOf(c, m.set))
	if err == nil {
		err = origin.Serves(ctx, member, c.Begin)
	}
	return err
}

// Ended tells how an attempt ended that read from the member that Choose returned, and
// whether it has copied anything.
func (m *Members) Ended(progressed bool, err error) {
	if _, ok := errors.AsType[*readError](err); !ok || progressed {
		m.trouble, m.at = absence{}, nil
		return
	}
	m.trouble.observe(time.Now(), m.step())
	m.at = err
}

// leave leaves a member that answers, but whose reads have made attempts fail for too
// long, if another one can continue the copy.
func (m *Members) leave(ctx context.Context, link *checkpoint.Link, c *checkpoint.Copy, member mongo.Caller, wait time.Duration) (mongo.Caller, error) {
	m.away = absence{}
	if m.trouble.total < max(wait, min(troubleWait, m.cfg.Wait/2)) {
		return m.observe(member, c.Host), nil
	}
	next, caller, failed := m.candidate(ctx, c, false)
	switch {
	case failed == nil:
		return m.move(ctx, link, c, &next, caller, m.at)
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	m.cfg.Observer.Log(slog.LevelWarn, "reads of the member that is copied fail, and no other one can continue the copy",
		slog.String(keyHost, c.Host), slog.String(keyError, m.at.Error()), slog.String(keyWhy, failed.Error()))
	return m.observe(member, c.Host), nil
}

// move records another member, and returns it.
func (m *Members) move(ctx context.Context, link *checkpoint.Link, c, next *checkpoint.Copy, member mongo.Caller, why error) (mongo.Caller, error) {
	moved := CopyMoved{Number: c.Number, From: c.Host, To: next.Host, Why: why.Error()}
	var err error
	if moved.Again, err = move(ctx, progress.Of(link), *next); err != nil {
		return nil, err // of the target
	}
	m.away, m.trouble, m.at = absence{}, absence{}, nil
	m.cfg.Observer.Tell(moved)
	return m.observe(member, next.Host), nil
}

// errUnknownSet reports a set of which not all members are known: then it is not known
// either what a majority of them has.
var errUnknownSet = errors.New("the configuration of the source's set cannot be read (the role clusterMonitor allows it), or the connection is to one member only")

// errUnread reports a set whose configuration can be expected to be read soon.
var errUnread = errors.New("the configuration of the source's set is not read yet")

// candidate chooses a member that can continue a copy. changed says that the one that it
// was read from is up, and a candidate.
func (m *Members) candidate(ctx context.Context, c *checkpoint.Copy, changed bool) (checkpoint.Copy, mongo.Caller, error) {
	view := m.cfg.Watcher.View()
	switch {
	case m.cfg.Direct || view.ConfigFault != "":
		return *c, nil, fmt.Errorf("%w: %s", errUnknownSet, view.ConfigFault)
	case view.ConfigUnread: // if it cannot be read, the end of a copy that has moved is never found
		return *c, nil, errUnread
	}
	var failed []error
	if changed {
		member := m.cfg.Dialer.Member(c.Host)
		next, err := m.examine(ctx, c, c.Host, member)
		if err == nil || ctx.Err() != nil {
			return next, member, err
		}
		failed = append(failed, err)
	}
	m.cfg.Resolver.Deny(c.Host, syncsource.DenyNetwork, "was read from so far")
	tried := map[string]bool{c.Host: true}
	for {
		src, err := choose(ctx, m.cfg.Resolver, m.level(tried, c.Begin))
		if err == nil && tried[src.Host] {
			err = errors.New("every member was tried")
		}
		if err != nil {
			return *c, nil, errors.Join(append(failed, err)...)
		}
		tried[src.Host] = true
		next, err := m.examine(ctx, c, src.Host, src.Caller)
		if err == nil || ctx.Err() != nil {
			return next, src.Caller, err
		}
		m.cfg.Resolver.Deny(src.Host, syncsource.DenyNetwork, "cannot continue the copy: "+err.Error())
		m.cfg.Observer.Log(slog.LevelWarn, "a member cannot continue the copy", slog.String(keyHost, src.Host), slog.String(keyWhy, err.Error()))
		failed = append(failed, err)
	}
}

// examine checks that a member is of the copy's set and can serve its reads, and returns
// the copy as it is read from it.
func (m *Members) examine(ctx context.Context, c *checkpoint.Copy, host string, member mongo.Caller) (checkpoint.Copy, error) {
	next := *c
	id, err := origin.Identify(ctx, member, host)
	if err != nil {
		return next, err
	}
	if !id.Set.IsZero() && !m.set.IsZero() && !id.Set.Equal(m.set) {
		return next, fmt.Errorf("%s is of the set %s, not of %s", host, id.Set, m.set)
	}
	if err := origin.Serves(ctx, member, c.Begin); err != nil {
		return next, fmt.Errorf("%s: %w", host, err)
	}
	warnBlind(&id, m.cfg.Observer)
	next.Host, next.RBID, next.SyncID, next.SyncIDUnread, next.SyncMark = id.Host, id.RBID, id.SyncID, id.Unread, id.SyncMark
	return next, nil
}

// identityOf returns the identity of the member that a copy is read from, of a set.
func identityOf(c *checkpoint.Copy, set bson.RawValue) origin.Identity {
	return origin.Identity{Host: c.Host, Set: set, RBID: c.RBID, SyncID: c.SyncID, Unread: c.SyncIDUnread, SyncMark: c.SyncMark}
}

func isChanged(err error) bool {
	_, ok := errors.AsType[*origin.ChangedError](err)
	return ok
}

// NoMemberError reports that there is no member that can continue a copy.
type NoMemberError struct {
	For time.Duration
	Err error
}

func (e *NoMemberError) Error() string {
	return fmt.Sprintf("no member of the source could continue the copy, for %s: %v", e.For.Round(time.Second), e.Err)
}

// Unwrap returns the error of the last try.
func (e *NoMemberError) Unwrap() error { return e.Err }

// Void reports whether an error means that a copy can no longer become consistent, so
// that another one has to be made.
func Void(err error) bool {
	if _, ok := errors.AsType[*NoMemberError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*inventory.DuplicateError](err); ok {
		return true
	}
	// An origin.FCVError occurs before a copy has begun, and is retried; ErrFCVChanged
	// occurs after.
	return errors.Is(err, ErrFCVChanged) || errors.Is(err, fetcher.ErrLogLost)
}
