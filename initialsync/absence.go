package initialsync

import (
	"context"
	"errors"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync/progress"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/syncsource"
)

// absence is for how long something was observed to be absent. The zero value is for
// something that is there.
type absence struct {
	total time.Duration
	// since and last are the first observation and the last one.
	since, last time.Time
}

// observe adds the time since the last observation, at most the given one: without an
// observation in between (attempts end before members are asked if the target is away)
// nothing is known about that time.
func (a *absence) observe(now time.Time, most time.Duration) {
	if a.last.IsZero() {
		a.since = now
	} else {
		a.total += min(now.Sub(a.last), most)
	}
	a.last = now
}

// patience returns how long to wait for the member that a copy was read from, before
// another one continues it: as long as it took to read what would have to be read again.
// So the loss of a member costs at most twice the time of the better decision. If nothing
// would have to be read again, or the member has changed or left the set, that is zero. If
// why is nil, the member is there.
func (m *Members) patience(ctx context.Context, link *checkpoint.Link, c *checkpoint.Copy, why error) (time.Duration, error) {
	if isChanged(why) || why != nil && hasLeft(m.cfg.Watcher.View(), c.Host) {
		return 0, nil
	}
	share, err := lossOf(ctx, progress.Of(link))
	if err != nil {
		return 0, err // of the target
	}
	since := m.away.since
	if why == nil {
		since = m.trouble.since
	}
	spent := float64(max(0, since.Sub(c.Started)))
	return min(time.Duration(share*spent), m.cfg.Wait/2), nil
}

// hasLeft reports whether a host is known not to be a member of the set any more.
func hasLeft(view syncsource.View, host string) bool {
	known := false
	for i := range view.Members {
		v := &view.Members[i]
		if v.Host == host && !v.Stranger {
			return false
		}
		known = known || v.ID >= 0 && v.Up()
	}
	return known && view.ConfigFault == "" && !view.ConfigUnread
}

// level returns the newest entry that each of the members has that may be copied and were not tried. The newest of any of them
// would be that of the primary while clients write: no other member could be chosen. If none is known to be there, it is the newest
// of any member that can be read. It is not before begin.
func (m *Members) level(tried map[string]bool, begin oplog.OpTime) oplog.OpTime {
	at := m.cfg.Resolver.Level(tried)
	if at.IsNull() {
		at = newest(m.cfg.Watcher.View(), tried, begin)
	}
	if at.Before(begin) {
		return begin
	}
	return at
}

// newest returns the newest optime of the members that can be read and were not tried, or
// begin if there is none.
func newest(view syncsource.View, tried map[string]bool, begin oplog.OpTime) oplog.OpTime {
	at := begin
	for i := range view.Members {
		v := &view.Members[i]
		if !tried[v.Host] && v.Up() && !v.Arbiter && !v.Stranger && v.State.Readable() && v.Applied.After(at) {
			at = v.Applied
		}
	}
	return at
}

// readError is an error of a command on the member that is copied.
type readError struct{ err error }

func (e *readError) Error() string { return e.err.Error() }
func (e *readError) Unwrap() error { return e.err }

// asReadError returns an error of a command as a *readError, if the member caused it.
func asReadError(ctx context.Context, err error) error {
	if ctx.Err() != nil || errors.Is(err, context.Canceled) {
		return err
	}
	return &readError{err}
}
