package fetcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/syncsource"
)

// ErrOtherHistory is a source none of whose members has the position.
var ErrOtherHistory = errors.New("no member of the source has the link's position in its history")

// denial returns for how long a member is not chosen after an error of reading it, and
// whether another member, or the same one later, can be read at all after it.
func denial(err error) (lasts time.Duration, passes bool) {
	switch {
	case errors.Is(err, ErrTooStale), errors.Is(err, ErrStartMissing), errors.Is(err, ErrForeignSet), errors.Is(err, oplog.ErrCorrupt):
		return syncsource.DenyFetched, true
	case errors.Is(err, ErrMetadata), errors.Is(err, replset.ErrEmptyOplog), errors.Is(err, replset.ErrOpTime):
		return syncsource.DenyBadOplog, true
	case errors.Is(err, ErrSourceBehind), errors.Is(err, ErrRolledBack), errors.Is(err, ErrOutOfOrder):
		return 0, true
	}
	// Whatever a member answers, and a login that it refuses, need not be so with another
	// one: a member that cannot read its users refuses valid logins as well.
	return syncsource.DenyNetwork, servererr.Classify(err) != servererr.None || errors.Is(err, context.DeadlineExceeded)
}

// judge decides what an error of reading a member means. Nil means to choose again.
func (f *Fetcher) judge(ctx context.Context, host string, err error) error {
	lasts, passes := denial(err)
	if !passes {
		return err
	}
	f.cfg.Reader.Observer.Log(slog.LevelWarn, "source failed", slog.String(keyHost, host), slog.Any(keyError, err))
	// A member that shows nothing from the position on may only be slow to show it: it
	// proves nothing before there is something else in its place.
	if e, ok := errors.AsType[*StartMissingError](err); ok && !e.Got.IsNull() {
		f.missing[host] = true
		switch missing, all := f.missingEverywhere(); {
		case all:
			return f.final(fmt.Errorf("%w: %w", ErrOtherHistory, err))
		case missing: // a member that is away now may have it
			f.update(func(s *Status) { s.Stale, s.Why = true, f.why(err) })
		}
	}
	if e, ok := errors.AsType[*TooStaleError](err); ok {
		f.cfg.Resolver.DenyStale(host, e.Oldest)
		return nil
	}
	if quiet, ok := syncsource.QuietTime(err); ok {
		lasts = quiet
	}
	if lasts > 0 {
		f.cfg.Resolver.Deny(host, lasts, syncsource.DeniedBy(err))
		return nil
	}
	f.update(func(s *Status) {
		if !s.Stale {
			s.Why = err.Error()
		}
	})
	return pause(ctx, syncsource.RetryInterval, nil)
}

// missingEverywhere reports whether every member that can be asked now lacks the
// position, and whether that is all of them.
func (f *Fetcher) missingEverywhere() (missing, all bool) {
	view := f.cfg.Watcher.View()
	readable := 0
	all = !view.ConfigUnread
	for i := range view.Members {
		m := &view.Members[i]
		switch {
		case f.hasNoOplog(m):
		case !m.Up() || !m.State.Readable():
			all = false
		case !f.missing[m.Host] && !hasPassed(m, f.last):
			return false, false
		default:
			readable++
		}
	}
	return readable > 0, all && readable > 0
}

// hasPassed reports whether what a majority has goes on, as far as a member knows, after the timestamp of an entry in an older
// term. Terms do not go back, so the entry is not in the member's history: the set was restored from an older backup.
func hasPassed(m *syncsource.Member, at oplog.OpTime) bool {
	return !m.Committed.IsNull() && m.Committed.Before(at) && oplog.CompareTimestamps(m.Committed.TS, at.TS) >= 0
}

// why says why no member can be read from, and what it is waited for if the set's members are not all known.
func (f *Fetcher) why(err error) string {
	view := f.cfg.Watcher.View()
	if !view.ConfigUnread {
		return err.Error()
	}
	why := err.Error() + "; a hidden member may have it, and the set's configuration is not read yet"
	if view.ConfigFault != "" {
		why += ": " + view.ConfigFault
	}
	return why
}

// noSource waits where no member was found, if one may be found later.
func (f *Fetcher) noSource(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	tooStale, stale := errors.AsType[*syncsource.TooStaleError](err)
	missing, all := f.missingEverywhere()
	switch {
	case !stale && !errors.Is(err, syncsource.ErrNoSource):
		return err
	case stale && len(tooStale.Untold) == 0 && f.allSeen():
		return f.final(err)
	case all:
		return f.final(fmt.Errorf("%w: %v", ErrOtherHistory, err)) //nolint:errorlint // ErrNoSource is one that passes
	}
	if lost := f.away(err); lost != nil {
		return lost
	}
	if !stale && !missing {
		f.update(func(s *Status) {
			if !s.Stale {
				s.Why = err.Error()
			}
		})
		return pause(ctx, syncsource.RetryInterval, f.cfg.Watcher.Changed())
	}
	// A member that is away now may have more of the log.
	f.update(func(s *Status) { s.Stale, s.Why = true, f.why(err) })
	return pause(ctx, 10*syncsource.RetryInterval, f.cfg.Watcher.Changed())
}

// allSeen reports whether every member of the set serves, and has got as far as the position, and none
// of them is denied for a reason that may pass. One that lags, or is delayed, may have it later.
func (f *Fetcher) allSeen() bool {
	view, denied := f.cfg.Watcher.View(), f.cfg.Resolver.Status().Denied
	if view.ConfigUnread {
		return false // a hidden member may have more of the log
	}
	for i := range view.Members {
		m := &view.Members[i]
		if f.hasNoOplog(m) {
			continue
		}
		d, ok := denied[m.Host]
		if !m.Up() || !m.State.Readable() || m.Applied.Before(f.last) || ok && d.Oldest.IsNull() {
			return false
		}
	}
	return true
}

// hasNoOplog reports whether a member never has an oplog to read: one that represents a
// mirror, this one or another one, has no server. Those of other mirrors are recognized
// by what replicator member add sets, with its default tag.
func (f *Fetcher) hasNoOplog(m *syncsource.Member) bool {
	if m.Arbiter || m.Stranger {
		return true
	}
	if m.Up() {
		return false
	}
	_, tagged := m.Tags["mirror"]
	return m.ID >= 0 && m.ID == f.cfg.MirrorMember ||
		tagged && m.Hidden && m.NonVoting && m.NoIndexes && m.Priority == 0
}
