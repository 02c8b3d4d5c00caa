package mongo

import (
	"context"
	"time"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// ClockSession runs transactions that are numbered by this machine's clock, in a session that all processes share which do
// the same: with the first transaction the server aborts one that a dead process has left open. It fences nothing. It is
// for one goroutine at a time.
type ClockSession struct {
	caller  Caller
	session *Session
}

// NewClockSession returns the session whose id depends on parts: see SessionID.
func NewClockSession(caller Caller, parts ...string) *ClockSession {
	return &ClockSession{caller, NewSession(caller, SessionID(parts...), time.Now().UnixMicro())}
}

// InTxn is that of a Session, with write concern majority. If another process has used a larger number, because
// its clock was ahead or this one has gone back, it continues in a session of its own.
func (c *ClockSession) InTxn(ctx context.Context, work func(txn *Txn) error) error {
	err := c.session.InTxn(ctx, true, work)
	if !servererr.IsOldNumber(err) {
		return err
	}
	c.session = NewSession(c.caller, NewSessionID(), 1)
	return c.session.InTxn(ctx, true, work)
}
