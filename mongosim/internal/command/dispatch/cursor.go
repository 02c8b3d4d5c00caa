package dispatch

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

const (
	// CursorIdle is how long a cursor lives without use.
	CursorIdle = 10 * time.Minute
	// CursorSweep is the interval between checks for idle cursors.
	CursorSweep = time.Minute
)

// Feed is the source of a cursor's documents.
type Feed interface {
	// Fill calls take with documents until it returns false; all of these are
	// delivered. It reports whether nothing is left, as far as known without
	// reading further.
	Fill(ctx context.Context, look Looker, take func(doc bson.Raw) bool) (end bool, err error)
	// Close frees the feed's resources. It is called once.
	Close()
}

// Cursor is a read with more documents to return. The command that has checked
// it out owns it, but for the fields that the table guards.
type Cursor struct {
	ID int64
	// NS is the namespace that getMore has to name.
	NS oplog.Namespace
	// Session is the logged lsid of the session, "" for none; shown is how
	// messages name it. txn is the transaction's number, nil outside of one.
	Session, Shown string
	owner          *LSID
	Txn            *int64
	User           [32]byte

	Feed Feed
	// Any reports whether there has been anything to return. It is set for tailable cursors.
	Any func(look Looker) (bool, error)
	// Spare is a document that did not fit into the last batch.
	Spare bson.Raw
	// Tailable cursors live on at the end, awaitData ones wait there. noTimeout
	// ones are not swept.
	Tailable, AwaitData, NoTimeout bool
	// Level and at are the read concern that the cursor was opened with; release,
	// if not nil, ends the pin on at.
	Level   string
	At      bson.Timestamp
	Release func()
	// Timed is true if maxTimeMS was given, and left is what remains of it.
	Timed bool
	Left  time.Duration
	// Token, if not nil, gives the postBatchResumeToken.
	Token func() bson.Raw

	// Conn is the connection of the command that used it last.
	Conn int64

	// Guarded by the table's mutex. stop is set while the cursor is checked out.
	// doomed is the refusal of the next getMore.
	stop   context.CancelCauseFunc
	doomed error
	used   time.Time
}

// NewCursor returns a cursor for the request's session, not yet in the table.
func (r *Request) NewCursor(ns oplog.Namespace, f Feed) *Cursor {
	c := &Cursor{NS: ns, Feed: f, Level: r.ReadConcern.Level, User: r.UserID()}
	if r.LSID != nil {
		c.Session, c.Shown, c.owner = string(r.LSID.Logged), r.LSID.Text(r.Server), r.LSID.clone()
	}
	if r.InTxn() {
		c.Txn, c.Level = r.TxnNumber, ""
	}
	if r.maxTime > 0 {
		c.Timed, c.Left = true, r.maxTime
	}
	return c
}

// Close frees the cursor's resources, once.
func (c *Cursor) Close() {
	if c.Feed != nil {
		c.Feed.Close()
		c.Feed = nil
	}
	if c.Release != nil {
		c.Release()
		c.Release = nil
	}
}

// cursorTable holds the open cursors of a member.
type cursorTable struct {
	now func() time.Time

	mu    sync.Mutex // guards the fields below, and some fields of each cursor
	open  map[int64]*Cursor
	swept time.Time
	ended bool
}

func newCursorTable(now func() time.Time) *cursorTable {
	if now == nil {
		now = time.Now
	}
	return &cursorTable{now: now, open: map[int64]*Cursor{}}
}

// Add gives the cursor an id. It stays checked out until checkin; ctx ends when
// it is killed meanwhile.
func (t *cursorTable) Add(ctx context.Context, c *Cursor) (context.Context, error) {
	t.sweep()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return nil, errShutdown
	}
	for c.ID == 0 || t.open[c.ID] != nil {
		c.ID = rand.Int64() //nolint:gosec // ids need to be different, not secret
	}
	t.open[c.ID] = c
	ctx, c.stop = context.WithCancelCause(ctx)
	return ctx, nil
}

// Checkout finds a cursor. check is asked, with the table locked, whether the
// request may use it.
func (t *cursorTable) Checkout(ctx context.Context, id int64, check func(c *Cursor) error) (*Cursor, context.Context, error) {
	t.sweep()
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.open[id]
	switch {
	case c == nil:
		return nil, nil, servererr.New(servererr.CursorNotFound, "cursor id %d not found", id)
	case c.stop != nil:
		return nil, nil, servererr.New(servererr.CursorInUse, "cursor id %d is already in use", id)
	}
	if err := check(c); err != nil {
		return nil, nil, err
	}
	ctx, c.stop = context.WithCancelCause(ctx)
	return c, ctx, nil
}

// Checkin ends the use of a cursor; one that is not kept, or was killed
// meanwhile, is closed. It reports whether the cursor lives.
func (t *cursorTable) Checkin(c *Cursor, keep bool) bool {
	t.mu.Lock()
	c.stop(nil)
	c.stop, c.used = nil, t.now()
	if t.open[c.ID] != c {
		keep = false
	}
	if !keep {
		delete(t.open, c.ID)
	}
	t.mu.Unlock()
	if !keep {
		c.Close()
	}
	return keep
}

// movedTo reports whether an idle cursor was last used on another connection.
func (t *cursorTable) movedTo(id, conn int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.open[id]
	return c != nil && c.stop == nil && c.Conn != conn
}

// Doom returns why the cursor can no longer be used, nil if it can.
func (t *cursorTable) Doom(c *Cursor) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return c.doomed
}

// Owner returns the user that opened a cursor, and its namespace.
func (t *cursorTable) Owner(id int64) (user [32]byte, ns oplog.Namespace, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.open[id]
	if c == nil {
		return user, "", false
	}
	return c.User, c.NS, true
}

// kill kills the cursors that which selects, and returns their number. A
// command that uses one of them is interrupted.
func (t *cursorTable) kill(cause error, which func(c *Cursor) bool) int {
	var idle []*Cursor
	n := 0
	t.mu.Lock()
	for id, c := range t.open {
		if !which(c) {
			continue
		}
		n++
		delete(t.open, id)
		if c.stop != nil {
			c.stop(cause) // the command that uses it closes it
		} else {
			idle = append(idle, c)
		}
	}
	t.mu.Unlock()
	for _, c := range idle {
		c.Close()
	}
	return n
}

// ErrCursorKilled is the error of a getMore on a cursor that was killed.
var ErrCursorKilled = servererr.New(servererr.CursorKilled, "operation was interrupted")

// KillOne ends one cursor and reports whether it was there.
func (t *cursorTable) KillOne(id int64) bool {
	return t.kill(ErrCursorKilled, func(c *Cursor) bool { return c.ID == id }) > 0
}

// killSession ends the cursors of a session.
func (t *cursorTable) killSession(l *LSID) {
	t.kill(ErrCursorKilled, func(c *Cursor) bool { return c.Session == string(l.Logged) })
}

// killTxn ends the cursors of a transaction.
func (t *cursorTable) killTxn(l *LSID, txnNumber int64) {
	t.kill(ErrCursorKilled, func(c *Cursor) bool {
		return c.Txn != nil && *c.Txn == txnNumber && c.Session == string(l.Logged)
	})
}

// rolledBack dooms all cursors: a rollback reopens the catalog, and may have
// undone data that a cursor has returned.
func (t *cursorTable) rolledBack() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.open {
		c.doomed = servererr.New(servererr.QueryPlanKilled, "the catalog was closed and reopened")
		if c.stop != nil {
			c.stop(errSteppedDown)
		}
	}
}

// close ends all cursors and admits no more.
func (t *cursorTable) close() {
	t.mu.Lock()
	t.ended = true
	t.mu.Unlock()
	t.kill(errShutdown, func(*Cursor) bool { return true })
}

// sweep ends idle cursors, if it is time.
func (t *cursorTable) sweep() {
	now := t.now()
	t.mu.Lock()
	due := now.Sub(t.swept) >= CursorSweep
	if due {
		t.swept = now
	}
	t.mu.Unlock()
	if due {
		t.kill(ErrCursorKilled, func(c *Cursor) bool {
			return c.stop == nil && !c.NoTimeout && now.Sub(c.used) >= CursorIdle
		})
	}
}

// Count is the number of open cursors.
func (t *cursorTable) Count() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return int64(len(t.open))
}
