package fetcher

import (
	"context"
	"errors"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/syncsource"
)

// Member is a member that must remain what it was when it was pinned: the one whose data
// are copied. Its methods are called by one goroutine.
type Member interface {
	// Host returns its address.
	Host() string
	// Check asks the member whether it is what it was. It is called each time before
	// the member is read.
	Check(ctx context.Context, member mongo.Caller) error
	// CheckRBID returns an error, which ends Run, if the rollback id of a reply is
	// another one.
	CheckRBID(rbid int64) error
	// CheckEntries returns an error, which ends Run, if entries must not be sent.
	CheckEntries(entries []oplog.Entry) error
	// Away records that the member could not be reached, and returns err, or the error
	// that follows from it.
	Away(err error) error
	// Void reports whether an error of Check or Away ends Run. After any other one the
	// member is asked again.
	Void(err error) bool
}

// Unpin makes f read any member, once the one that it was pinned to is left.
func (f *Fetcher) Unpin() { f.unpinned.Store(true) }

// ErrLogLost reports that the pinned member no longer has the oplog after the position.
var ErrLogLost = errors.New("the source no longer has the log that the copy needs")

// pinned returns the only member that may be read, nil where any may be.
func (f *Fetcher) pinned() Member {
	if f.unpinned.Load() {
		return nil
	}
	return f.cfg.Pinned
}

// resolver returns the Resolver that chooses the member.
func (f *Fetcher) resolver(pinned Member) *syncsource.Resolver {
	if pinned != nil {
		return f.only
	}
	return f.cfg.Resolver
}

// memberAway waits after the pinned member could not be asked.
func (f *Fetcher) memberAway(ctx context.Context, member Member, err error) error {
	if member.Void(err) || ctx.Err() != nil {
		return err
	}
	f.update(func(s *Status) { s.Why = err.Error() })
	return pause(ctx, syncsource.RetryInterval, f.cfg.Watcher.Changed())
}
