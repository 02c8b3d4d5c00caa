package command

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
	// cursorIdle is how long a cursor lives without use.
	cursorIdle = 10 * time.Minute
	// cursorSweep is how often idle ones are looked for.
	cursorSweep = time.Minute
)

// feed is where the documents of a cursor come from.
type feed interface {
	// fill hands documents to take until it returns false; what take was given is
	// delivered. It reports whether nothing is left, as far as it knows without
	// looking further.
	fill(ctx context.Context, look looker, take func(doc bson.Raw) bool) (end bool, err error)
	// close frees what the feed holds. It is called once.
	close()
}

// cursor is a read whose answer has not been told to its end. Whoever has
// checked it out owns it, but for the fields that the table guards.
type cursor struct {
	id int64
	// ns is the namespace that getMore has to name.
	ns oplog.Namespace
	// session is the logged lsid of the session, "" for none; shown is how
	// messages name it. txn is the transaction's number, nil outside of one.
	session, shown string
	owner          *lsid
	txn            *int64
	user           [32]byte

	feed feed
	// scan is set for tailable cursors.
	scan *scan
	// spare is a document that did not fit into the last batch.
	spare bson.Raw
	// tailable cursors live on at the end, awaitData ones wait there. noTimeout
	// ones are not swept.
	tailable, awaitData, noTimeout bool
	// level and at are the read concern that the cursor was opened with; release,
	// if not nil, ends the pin on at.
	level   string
	at      bson.Timestamp
	release func()
	// timed is true if maxTimeMS was given, and left is what remains of it.
	timed bool
	left  time.Duration
	// token, if not nil, gives the postBatchResumeToken.
	token func() bson.Raw

	// conn is the connection of the command that used it last.
	conn int64

	// Guarded by the table's mutex. stop is set while the cursor is checked out.
	// doomed is the refusal of the next getMore.
	stop   context.CancelCauseFunc
	doomed error
	used   time.Time
}

// newCursor returns a cursor for the request's session, not yet in the table.
func (r *request) newCursor(ns oplog.Namespace, f feed) *cursor {
	c := &cursor{ns: ns, feed: f, level: r.readConcern.level, user: r.userID()}
	if r.lsid != nil {
		c.session, c.shown, c.owner = string(r.lsid.logged), r.lsid.text(r.srv), r.lsid.clone()
	}
	if r.inTxn() {
		c.txn, c.level = r.txnNumber, ""
	}
	if r.maxTime > 0 {
		c.timed, c.left = true, r.maxTime
	}
	return c
}

// close frees what the cursor holds, once.
func (c *cursor) close() {
	if c.feed != nil {
		c.feed.close()
		c.feed = nil
	}
	if c.release != nil {
		c.release()
		c.release = nil
	}
}

// cursorTable holds the open cursors of a member.
type cursorTable struct {
	now func() time.Time

	mu    sync.Mutex // guards what follows, and some fields of each cursor
	open  map[int64]*cursor
	swept time.Time
	ended bool
}

func newCursorTable(now func() time.Time) *cursorTable {
	if now == nil {
		now = time.Now
	}
	return &cursorTable{now: now, open: map[int64]*cursor{}}
}

// add gives the cursor an id. It stays checked out until checkin; ctx ends when
// it is killed meanwhile.
func (t *cursorTable) add(ctx context.Context, c *cursor) (context.Context, error) {
	t.sweep()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return nil, errShutdown
	}
	for c.id == 0 || t.open[c.id] != nil {
		c.id = rand.Int64() //nolint:gosec // ids need to be different, not secret
	}
	t.open[c.id] = c
	ctx, c.stop = context.WithCancelCause(ctx)
	return ctx, nil
}

// checkout finds a cursor. check is asked, with the table locked, whether the
// request may use it.
func (t *cursorTable) checkout(ctx context.Context, id int64, check func(c *cursor) error) (*cursor, context.Context, error) {
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

// checkin ends the use of a cursor; one that is not kept, or was killed
// meanwhile, is closed. It reports whether the cursor lives.
func (t *cursorTable) checkin(c *cursor, keep bool) bool {
	t.mu.Lock()
	c.stop(nil)
	c.stop, c.used = nil, t.now()
	if t.open[c.id] != c {
		keep = false
	}
	if !keep {
		delete(t.open, c.id)
	}
	t.mu.Unlock()
	if !keep {
		c.close()
	}
	return keep
}

// movedTo tells whether an idle cursor was used last on another connection.
func (t *cursorTable) movedTo(id, conn int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.open[id]
	return c != nil && c.stop == nil && c.conn != conn
}

// doom returns why the cursor cannot be used any more, if that is so.
func (t *cursorTable) doom(c *cursor) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return c.doomed
}

// owner returns who opened a cursor, and on what.
func (t *cursorTable) owner(id int64) (user [32]byte, ns oplog.Namespace, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.open[id]
	if c == nil {
		return user, "", false
	}
	return c.user, c.ns, true
}

// kill ends the cursors that which selects, and returns how many there were. A
// command that uses one of them is interrupted.
func (t *cursorTable) kill(cause error, which func(c *cursor) bool) int {
	var idle []*cursor
	n := 0
	t.mu.Lock()
	for id, c := range t.open {
		if !which(c) {
			continue
		}
		n++
		delete(t.open, id)
		if c.stop != nil {
			c.stop(cause) // who uses it closes it
		} else {
			idle = append(idle, c)
		}
	}
	t.mu.Unlock()
	for _, c := range idle {
		c.close()
	}
	return n
}

var errCursorKilled = servererr.New(servererr.CursorKilled, "operation was interrupted")

// killOne ends one cursor and reports whether it was there.
func (t *cursorTable) killOne(id int64) bool {
	return t.kill(errCursorKilled, func(c *cursor) bool { return c.id == id }) > 0
}

// killSession ends the cursors of a session.
func (t *cursorTable) killSession(l *lsid) {
	t.kill(errCursorKilled, func(c *cursor) bool { return c.session == string(l.logged) })
}

// killTxn ends the cursors of a transaction.
func (t *cursorTable) killTxn(l *lsid, txnNumber int64) {
	t.kill(errCursorKilled, func(c *cursor) bool {
		return c.txn != nil && *c.txn == txnNumber && c.session == string(l.logged)
	})
}

// rolledBack dooms all cursors: a rollback reopens the catalog, and what a cursor
// has seen may never have been.
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

// close ends all cursors and lets no more in.
func (t *cursorTable) close() {
	t.mu.Lock()
	t.ended = true
	t.mu.Unlock()
	t.kill(errShutdown, func(*cursor) bool { return true })
}

// sweep ends idle cursors, if it is time.
func (t *cursorTable) sweep() {
	now := t.now()
	t.mu.Lock()
	due := now.Sub(t.swept) >= cursorSweep
	if due {
		t.swept = now
	}
	t.mu.Unlock()
	if due {
		t.kill(errCursorKilled, func(c *cursor) bool {
			return c.stop == nil && !c.noTimeout && now.Sub(c.used) >= cursorIdle
		})
	}
}
