package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/syncsource"
)

// upstream reads the source's log from one member after the other.
type upstream struct {
	p        *Pipeline
	resolver *syncsource.Resolver
	watcher  *syncsource.Watcher
	fetcher  *fetcher.Fetcher
	// until, if not null, is the entry after which reading ends.
	until oplog.OpTime
	// last is the entry that was handed on last, or the one to start from, which
	// is still to be handed on while first is true.
	last  oplog.OpTime
	first bool
	// left is set once a member has been left: the same one is not to be read
	// again at once then.
	left bool
	// missing are the members that do not have last in their history.
	missing map[string]bool
	// origin, if not nil, is the member that is copied, and no other is read: it must
	// remain what it was, and changed is how it did not. free lets it be read as any
	// other.
	origin  *initialsync.Member
	changed error
	free    atomic.Bool
	// failed is what was told last of a member that could not be read.
	failed string
}

// errUntil is why reading ends at until.
var errUntil = errors.New("read as far as wanted")

// member is a source for the fetcher.
type member struct {
	mongo.Caller
	host string
}

// Host implements fetcher.Source.
func (m member) Host() string { return m.host }

// Run sends replies on out until ctx is done or nobody can be read from for a
// reason that does not pass. It closes out. It returns nil when it is to drain.
func (u *upstream) Run(ctx context.Context, out chan<- oplog.Reply) error {
	defer close(out)
	for {
		err := u.readOne(ctx, out)
		switch cause := context.Cause(ctx); {
		case errors.Is(cause, errDrain), errors.Is(err, errUntil):
			return nil
		case cause != nil:
			return cause
		case err != nil:
			return err
		}
	}
}

// Unpin implements initialsync.Fetcher.
func (u *upstream) Unpin() { u.free.Store(true) }

// readOne chooses a member and reads it. Nil means to choose again.
func (u *upstream) readOne(ctx context.Context, out chan<- oplog.Reply) error {
	u.pin()
	src, err := u.resolver.Resolve(ctx, u.last, oplog.OpTime{})
	if err != nil {
		return u.noSource(ctx, err)
	}
	if src.Same && u.left {
		if err := u.wait(ctx, syncsource.RetryInterval, false); err != nil {
			return err
		}
	}
	if c := u.pin(); c != nil {
		// It may have been started anew since it was asked last.
		if err := c.Check(ctx, src.Caller); err != nil {
			return u.originError(ctx, err)
		}
	}
	u.p.sourceIs(src.Host, src.Caller)
	res, err := u.fetcher.Tail(ctx, member{src.Caller, src.Host}, u.last, u.first,
		func(ctx context.Context, r oplog.Reply) error {
			u.cut(&r)
			if c := u.pin(); c != nil {
				if err := c.CheckEntries(r.Entries); err != nil {
					return err
				}
			}
			if err := u.hand(ctx, out, r); err != nil {
				return err
			}
			last := r.Entries[len(r.Entries)-1].OpTime
			u.p.fetched(last)
			if !u.until.IsNull() && !last.Before(u.until) {
				return errUntil
			}
			return nil
		})
	u.left = true
	if res.Emitted {
		u.first, u.failed = false, ""
	}
	if res.Last.After(u.last) {
		clear(u.missing)
	}
	u.last = res.Last
	u.p.sourceIs("", nil)
	if u.changed != nil {
		return u.changed
	}
	if err == nil || ctx.Err() != nil || errors.Is(err, errUntil) {
		return err
	}
	return u.judge(ctx, src, err)
}

// cut leaves out of a reply what is behind until: it may not be due for long.
func (u *upstream) cut(r *oplog.Reply) {
	if u.until.IsNull() {
		return
	}
	for i := range r.Entries {
		if !r.Entries[i].OpTime.Before(u.until) {
			r.Entries = r.Entries[: i+1 : i+1]
			return
		}
	}
}

// hand hands on a reply. The longer nobody takes it, the further behind the target
// is.
func (u *upstream) hand(ctx context.Context, out chan<- oplog.Reply, r oplog.Reply) error {
	select {
	case out <- r:
		return nil
	default:
	}
	look := time.NewTicker(syncsource.RetryInterval)
	defer look.Stop()
	for {
		select {
		case out <- r:
			return nil
		case <-look.C:
			u.p.judgeState()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// judge says what an error of reading a member means.
func (u *upstream) judge(ctx context.Context, src syncsource.Source, err error) error {
	if initialsync.Void(err) {
		return err
	}
	v := onMember(err)
	if v.Action != NewSource {
		return err
	}
	// The member that is copied is asked every second, whatever it answers.
	if u.pin() == nil || u.failed != err.Error() {
		u.failed = err.Error()
		u.p.cfg.Observer.Log(slog.LevelWarn, "source failed", slog.String(keyHost, src.Host), slog.Any(keyError, err))
	}
	if u.pin() != nil && (errors.Is(err, fetcher.ErrTooStale) || errors.Is(err, fetcher.ErrStartMissing)) {
		return fmt.Errorf("%w: %w", initialsync.ErrLogLost, err)
	}
	// A member that shows nothing from the position on may only be slow to show it:
	// it is no proof before there is something else at its place.
	if e, ok := errors.AsType[*fetcher.StartMissingError](err); ok && !e.Got.IsNull() {
		u.missing[src.Host] = true
		if missing, all := u.missingEverywhere(); missing {
			if all {
				return fmt.Errorf("%w: %w", ErrOtherHistory, err)
			}
			// A member that is away now may have it.
			u.p.state.set(Stale, err.Error())
		}
	}
	if e, ok := errors.AsType[*fetcher.TooStaleError](err); ok {
		u.resolver.DenyStale(src.Host, e.Oldest)
		return nil
	}
	if quiet, ok := syncsource.QuietTime(err); ok {
		v.Deny = quiet
	}
	if v.Deny > 0 && u.pin() == nil { // there is no other to read from
		u.resolver.Deny(src.Host, v.Deny, "could not be read from: "+err.Error())
		return nil
	}
	return u.wait(ctx, syncsource.RetryInterval, false)
}

// missingEverywhere tells whether every member that can be asked now is without
// the position, and whether that is all of them.
func (u *upstream) missingEverywhere() (missing, all bool) {
	view := u.watcher.View()
	readable := 0
	all = true
	for i := range view.Members {
		m := &view.Members[i]
		switch {
		case m.Arbiter || m.Stranger || u.p.standsIn(m):
		case !m.Up() || !m.State.Readable():
			all = false
		case !u.missing[m.Host]:
			return false, false
		default:
			readable++
		}
	}
	return readable > 0, all && readable > 0
}

// noSource waits where that can help.
func (u *upstream) noSource(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	pause := syncsource.RetryInterval
	if u.pin() != nil {
		return u.originAway(ctx, err)
	}
	if _, ok := errors.AsType[*syncsource.TooStaleError](err); ok {
		if u.allSeen() {
			return err
		}
		// A member that is away now may have more of the log.
		u.p.state.set(Stale, err.Error())
		pause = 10 * syncsource.RetryInterval
	} else if !errors.Is(err, syncsource.ErrNoSource) {
		return err
	} else if state, _, _ := u.p.state.get(); state == Starting {
		u.p.state.set(Starting, err.Error())
	} else if state != Stale {
		// What is stale stays so until somebody has the position.
		u.p.state.set(CatchingUp, err.Error())
	}
	return u.wait(ctx, pause, true)
}

// allSeen tells whether every member of the set serves, and that none of them is
// passed over for a reason that may pass.
func (u *upstream) allSeen() bool {
	view, denied := u.watcher.View(), u.resolver.Status().Denied
	for i := range view.Members {
		m := &view.Members[i]
		if m.Arbiter || m.Stranger || u.p.standsIn(m) {
			continue
		}
		d, ok := denied[m.Host]
		if !m.Up() || !m.State.Readable() || ok && d.Oldest.IsNull() {
			return false
		}
	}
	return true
}

// standsIn tells whether a member stands for a mirror, this one's or another one's:
// nobody runs it, so it has no log to wait for. Those of others are made as by
// replicator member add, with its default tag.
func (p *Pipeline) standsIn(m *syncsource.Member) bool {
	if m.Up() {
		return false
	}
	_, tagged := m.Tags["mirror"]
	return m.ID >= 0 && m.ID == p.cfg.standIn-1 ||
		tagged && m.Hidden && m.NonVoting && m.NoIndexes && m.Priority == 0
}

// wait waits for d, or until more is known of the members if that is enough.
func (u *upstream) wait(ctx context.Context, d time.Duration, orNews bool) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	var news <-chan struct{}
	if orNews {
		news = u.watcher.Changed()
	}
	select {
	case <-timer.C:
		return nil
	case <-news:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
