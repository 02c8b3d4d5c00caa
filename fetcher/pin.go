package fetcher

import (
	"context"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/syncsource"
)

// Pin is one member that is read, and no other: the member whose data are copied.
type Pin struct {
	// Member knows whether the member is still what it was.
	Member
	// Resolver chooses that member only.
	Resolver *syncsource.Resolver
}

// Member is a member that must remain what it was when it was pinned. Its methods are
// called by one goroutine.
type Member interface {
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
	// LogLost returns the error that ends Run where the member no longer has the log
	// from the position on.
	LogLost(err error) error
	// Void reports whether an error of Check or Away ends Run. After any other one the
	// member is asked again.
	Void(err error) bool
}

// Unpin makes f read any member, once the one that it was pinned to is left.
func (f *Fetcher) Unpin() { f.unpinned.Store(true) }

// pin returns the pin, nil where any member may be read.
func (f *Fetcher) pin() *Pin {
	if f.unpinned.Load() {
		return nil
	}
	return f.cfg.Pin
}

// resolver returns what chooses the member.
func (f *Fetcher) resolver(pin *Pin) *syncsource.Resolver {
	if pin != nil {
		return pin.Resolver
	}
	return f.cfg.Resolver
}

// pinAway waits where the pinned member could not be asked.
func (f *Fetcher) pinAway(ctx context.Context, pin *Pin, err error) error {
	if pin.Void(err) || ctx.Err() != nil {
		return err
	}
	f.update(func(s *Status) { s.Why = err.Error() })
	return f.wait(ctx, syncsource.RetryInterval, true)
}
