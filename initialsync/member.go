package initialsync

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync/inventory"
	"github.com/oplogrep/replicator/initialsync/origin"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// Member is the member of the source that is copied. Until the target is consistent it
// must remain what it was when the copy began: if it rolls back, is resynced, or cannot
// be reached for too long, the copy is void. It is safe for concurrent use.
type Member struct {
	copy    checkpoint.Copy
	maxAway time.Duration

	mu   sync.Mutex // guards the rest
	stop oplog.OpTime
	// away is since when it cannot be reached, zero while it can.
	away time.Time
}

// NewMember returns the member that c is a copy of. It may be unreachable for maxAway.
func NewMember(c *checkpoint.Copy, maxAway time.Duration) *Member {
	return &Member{copy: *c, maxAway: maxAway, stop: c.Stop}
}

// Of reports whether c is the same copy, which may have got further.
func (m *Member) Of(c *checkpoint.Copy) bool {
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

// Check asks the member whether it is still what it was. The error is an
// [*origin.ChangedError] if it is not, and a [*GoneError] if it could not be asked for
// too long.
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

// Away records that the member could not be reached, and returns err, as a [*GoneError]
// once that has lasted for too long.
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

// LogLost returns an [ErrLogLost] for an error that says that the member no longer has
// the log that is to be read.
func (*Member) LogLost(err error) error { return fmt.Errorf("%w: %w", ErrLogLost, err) }

// Void is the function Void.
func (*Member) Void(err error) bool { return Void(err) }

// CheckRBID returns an [*origin.ChangedError] if the member says with a reply that it
// has rolled back since the copy began.
func (m *Member) CheckRBID(rbid int64) error {
	if rbid == m.copy.RBID {
		return nil
	}
	return &origin.ChangedError{Host: m.copy.Host, What: fmt.Sprintf("its rollback id is %d, it was %d", rbid, m.copy.RBID)}
}

// Where the feature compatibility version is, and its document's _id.
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

var (
	// ErrFCVChanged is a source whose feature compatibility version was changed
	// while it was copied.
	ErrFCVChanged = errors.New("the source's feature compatibility version was changed while it was copied")
	// ErrLogLost is a source whose oplog no longer has the entries that the copy
	// needs.
	ErrLogLost = errors.New("the source no longer has the log that the copy needs")
)

// GoneError is a member that was being copied and could not be reached for too long.
type GoneError struct {
	Host string
	For  time.Duration
	// Err is that of the last try.
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
	// An origin.FCVError is of the beginning of a copy, which is tried again; this one
	// is of a copy that had begun.
	return errors.Is(err, ErrFCVChanged) || errors.Is(err, ErrLogLost)
}
