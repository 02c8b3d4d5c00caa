package initialsync

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync/origin"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/syncsource"
)

// choose chooses a member to copy, whose newest entry is not before least.
func choose(ctx context.Context, r *syncsource.Resolver, least oplog.OpTime) (syncsource.Source, error) {
	member, err := r.Resolve(ctx, least)
	if stale, ok := errors.AsType[*syncsource.TooStaleError](err); ok {
		// Members have written entries since they reported their newest one; they will
		// report it again.
		err = fmt.Errorf("%w: %v", syncsource.ErrNoSource, stale) //nolint:errorlint // To wrap it would make it final.
	}
	if err != nil {
		return member, fmt.Errorf("choose a member to copy: %w", err)
	}
	return member, nil
}

// warnBlind warns of a member whose initial syncs could not be noticed.
func warnBlind(id *origin.Identity, o event.Observer) {
	if id.Blind() {
		o.Log(slog.LevelWarn,
			"the initial-sync id of the member that is copied may not be seen: if it is resynced meanwhile, that is not noticed",
			slog.String(keyHost, id.Host), slog.String(keyGrant, origin.GrantSyncID))
	}
}

// Begin chooses a member to copy and finds where the copy begins: the member's identity,
// the entry from which the oplog has to be read (beginFetchingTimestamp), and the entry
// after which it is applied (beginApplyingTimestamp), with the wall time of the latter. If a
// member cannot be copied, another one is tried; if there is none, the error is the first. While no
// member has [MembersConfig.Since], the error wraps [syncsource.ErrNoSource], for sinceWait at most.
func (m *Members) Begin(ctx context.Context) (checkpoint.Copy, int64, error) {
	var first error
	tried := map[string]bool{}
	since := m.since()
	least := m.level(tried, since)
	for {
		member, err := choose(ctx, m.cfg.Resolver, least)
		if err != nil {
			err = m.noteLacking(since, err)
		}
		switch {
		case ctx.Err() != nil:
			return checkpoint.Copy{}, 0, context.Cause(ctx)
		case first != nil && (err != nil || tried[member.Host]):
			for host := range tried {
				m.cfg.Resolver.Deny(host, 0, "is tried again")
			}
			return checkpoint.Copy{}, 0, first
		case err != nil:
			return checkpoint.Copy{}, 0, err
		}
		c, wall, err := m.beginOn(ctx, member)
		if err == nil || ctx.Err() != nil {
			m.lacking = time.Time{}
			return c, wall, err
		}
		tried[member.Host] = true
		m.cfg.Resolver.Deny(member.Host, syncsource.DenyNetwork, "cannot be copied: "+err.Error())
		if first == nil {
			first = err
		}
		least = m.level(tried, since)
	}
}

// sinceWait is for how long Begin does not begin before [MembersConfig.Since]: that is majority-committed, so the members
// that can be read have it soon.
const sinceWait = 10 * time.Second

// since returns the entry that a copy that begins now must not begin before.
func (m *Members) since() oplog.OpTime {
	first := oplog.NewOpTime(1, 0, oplog.UninitializedTerm)
	if m.cfg.Since.Before(first) || !m.lacking.IsZero() && time.Since(m.lacking) >= m.sinceWait() {
		return first
	}
	return m.cfg.Since
}

func (m *Members) sinceWait() time.Duration { return min(sinceWait, m.cfg.Wait/8) }

// noteLacking returns the error of a choice among the members that have an entry, and observes that none has MembersConfig.Since.
func (m *Members) noteLacking(since oplog.OpTime, err error) error {
	if m.cfg.Since.IsNull() || since != m.cfg.Since {
		return err
	}
	if m.lacking.IsZero() {
		m.lacking = time.Now()
	}
	return fmt.Errorf("wait for a member that has %s, for %s at most: %w", since, m.sinceWait(), err)
}

// beginOn finds where a copy of a member begins.
func (m *Members) beginOn(ctx context.Context, member syncsource.Source) (checkpoint.Copy, int64, error) {
	id, err := origin.Identify(ctx, member.Caller, member.Host)
	if err != nil {
		return checkpoint.Copy{}, 0, err
	}
	at, err := origin.Begin(ctx, member.Caller)
	if err == nil {
		// Begin is majority-committed, and the entries before it are of the same history.
		err = origin.Check(ctx, member.Caller, id)
	}
	if err != nil {
		return checkpoint.Copy{}, 0, fmt.Errorf("begin a copy of %s: %w", member.Host, err)
	}
	warnBlind(&id, m.cfg.Observer)
	return checkpoint.Copy{
		Number: 1, Phase: checkpoint.Copying, Host: member.Host, RBID: id.RBID,
		SyncID: id.SyncID, SyncIDUnread: id.Unread, SyncMark: id.SyncMark,
		FetchFrom: at.FetchFrom, Begin: at.Begin, Started: time.Now(),
	}, at.Wall, nil
}
