package initialsync

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/initialsync/inventory"
	"github.com/oplogrep/replicator/initialsync/origin"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// Member is the member of the source that is copied. Until the target is consistent it
// must not change: if it rolls back, is resynced, or is unreachable for too long, the
// copy is void. It is safe for concurrent use.
type Member struct {
	copy    checkpoint.Copy
	maxAway time.Duration

	mu   sync.Mutex // guards the rest
	stop oplog.OpTime
	// away is since when it is unreachable, zero if it is reachable.
	away time.Time
}

// newMember returns the member that c is a copy of. It may be unreachable for maxAway.
func newMember(c *checkpoint.Copy, maxAway time.Duration) *Member {
	return &Member{copy: *c, maxAway: maxAway, stop: c.Stop}
}

// of reports whether c is the same copy, which may have advanced.
func (m *Member) of(c *checkpoint.Copy) bool {
	if m == nil || m.copy.Number != c.Number || !m.copy.Started.Equal(c.Started) {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stop = c.Stop
	return true
}

// Host returns the member's address.
func (m *Member) Host() string { return m.copy.Host }

// Check asks the member for its identity. The error is an [*origin.ChangedError] if it
// has changed, and a [*GoneError] if the member has been unreachable for too long.
func (m *Member) Check(ctx context.Context, caller mongo.Caller) error {
	c := &m.copy
	err := origin.Check(ctx, caller, origin.Identity{
		Host: c.Host, RBID: c.RBID, SyncID: c.SyncID, Unread: c.SyncIDUnread, SyncMark: c.SyncMark,
	})
	if err == nil {
		m.mu.Lock()
		m.away = time.Time{}
		m.mu.Unlock()
		return nil
	}
	if _, changed := errors.AsType[*origin.ChangedError](err); changed || ctx.Err() != nil {
		return err
	}
	return m.Away(err)
}

// Away records that the member is unreachable, and returns err, as a [*GoneError] once
// that has lasted too long.
func (m *Member) Away(err error) error {
	m.mu.Lock()
	if m.away.IsZero() {
		m.away = time.Now()
	}
	lasted := time.Since(m.away)
	m.mu.Unlock()
	if lasted > m.maxAway {
		return &GoneError{Host: m.copy.Host, For: lasted, Err: err}
	}
	return fmt.Errorf("ask %s, which is being copied: %w", m.copy.Host, err)
}

// Void is the function Void.
func (*Member) Void(err error) bool { return Void(err) }

// CheckRBID returns an [*origin.ChangedError] if the rollback id of a reply shows that
// the member has rolled back since the copy began.
func (m *Member) CheckRBID(rbid int64) error {
	if rbid == m.copy.RBID {
		return nil
	}
	return &origin.ChangedError{Host: m.copy.Host, What: fmt.Sprintf("its rollback id is %d, it was %d", rbid, m.copy.RBID)}
}

// The document with the feature compatibility version.
const (
	versions    = "admin.system.version"
	fcvDocument = "featureCompatibilityVersion"
)

// CheckEntries returns [ErrFCVChanged] if entries of the member's oplog change the
// feature compatibility version while the copy is not consistent.
func (m *Member) CheckEntries(entries []oplog.Entry) error {
	m.mu.Lock()
	stop := m.stop
	m.mu.Unlock()
	for i := range entries {
		e := &entries[i]
		if e.NS != versions || !e.Kind.IsCRUD() || !e.OpTime.After(m.copy.Begin) || !bytes.Contains(e.Raw, []byte(fcvDocument)) {
			continue
		}
		if !stop.IsNull() && e.OpTime.After(stop) {
			continue
		}
		return fmt.Errorf("%w, at %s", ErrFCVChanged, e.OpTime)
	}
	return nil
}

// ErrFCVChanged reports that the source's feature compatibility version was changed
// during the copy.
var ErrFCVChanged = errors.New("the source's feature compatibility version was changed while it was copied")

// GoneError reports that the member being copied was unreachable for too long.
type GoneError struct {
	Host string
	For  time.Duration
	// Err is the error of the last try.
	Err error
}

func (e *GoneError) Error() string {
	return fmt.Sprintf("%s, which was being copied, has been away for %s: %v", e.Host, e.For.Round(time.Second), e.Err)
}

// Unwrap returns the error of the last try.
func (e *GoneError) Unwrap() error { return e.Err }

// Void reports whether an error means that a copy can no longer become consistent, so
// that another one has to be made.
func Void(err error) bool {
	if _, ok := errors.AsType[*origin.ChangedError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*GoneError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*inventory.DuplicateError](err); ok {
		return true
	}
	// An origin.FCVError occurs before a copy has begun, and is retried; ErrFCVChanged
	// occurs after.
	return errors.Is(err, ErrFCVChanged) || errors.Is(err, fetcher.ErrLogLost)
}
