package command

import (
	"context"
	"time"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/mood"
)

const (
	// slowest is how late a write concern is met that is slow.
	slowest = 60 * time.Millisecond
	// shortest is how many documents a batch has that is short, at most.
	shortest = 7
)

// app is the name of the application that the client's handshake gave.
func (c *Conn) app() string {
	if c.named == nil && c.Metadata != nil {
		name := c.appName()
		c.named = &name
	}
	if c.named == nil {
		return ""
	}
	return *c.named
}

// meetMood asks which mood the command meets, before anything is done.
func (r *request) meetMood() error {
	t := r.srv.cfg.Moods
	if t == nil || r.conn.Internal || r.spec.beforeAuth || r.spec.test {
		return nil
	}
	touched, gentle := t.Touches(r.conn.app())
	if !touched {
		return nil
	}
	if r.conn.era < t.Era() && !gentle {
		r.failing = &failure{hangUp: true}
		return servererr.New(servererr.Interrupted, "the connection was dropped")
	}
	r.mood = t.Meet(r.place(), gentle)
	switch {
	case r.mood == nil:
	case r.mood.Kind == mood.HangUp:
		r.failing = &failure{hangUp: true}
		return servererr.New(servererr.Interrupted, "the connection is closed by a mood")
	case r.mood.Kind == mood.Shut:
		r.conn.era = -1 // it is closed at the next command
		return servererr.New(r.mood.Code, "%s", r.mood.Text)
	}
	return nil
}

// place describes the command for moods.
func (r *request) place() *mood.Place {
	ends := transactionCommands[r.spec.name]
	wc := r.writeConcern
	p := &mood.Place{
		Command: r.spec.name, Version: r.srv.version, Local: r.db == "local",
		Primary: r.self.Writable, Several: len(r.self.Members) > 2,
		Writes: r.spec.writes, Timed: wc.Timeout > 0,
		Majority: r.spec.writes && r.db != "local" && wc.Mode == majority && (!r.inTxn() || ends),
		InTxn:    r.inTxn(), Starts: r.startTxn, Ends: ends,
		Session: r.lsid != nil, Snapshot: r.readConcern.level == "snapshot", ReadMajority: r.readConcern.level == majority,
		Reads: r.spec.secondary == optIn, Limited: r.maxTime > 0 && !r.spec.ownMaxTime,
	}
	switch r.spec.name {
	case "find", "aggregate":
		p.Batch = true
		first := firstElem(r.cmd)
		p.Collection, _ = first.Text()
	case "listCollections", "listIndexes":
		p.Batch = true
	case "getMore":
		p.Batch, p.Reads = true, true
		p.Moved = r.srv.cursors.movedTo(r.cursorID(), r.conn.ID)
	}
	return p
}

// cursorID is the cursor that a getMore names.
func (r *request) cursorID() int64 {
	first := firstElem(r.cmd)
	id, _ := first.Int64()
	return id
}

// is tells whether the command has met a mood of a kind.
func (r *request) is(kind mood.Kind) bool { return r.mood != nil && r.mood.Kind == kind }

// strike carries out a mood of the command itself, once its session is checked out
// and its transaction has begun.
func (r *request) strike() error {
	if r.mood == nil {
		return nil
	}
	more := r.spec.name == "getMore"
	switch r.mood.Kind { //nolint:exhaustive // All others strike elsewhere.
	case mood.Refuse:
		// An error ends the cursor, but for one that is in use.
		if more && r.mood.Code != servererr.CursorInUse {
			r.srv.cursors.killOne(r.cursorID())
		}
		return servererr.New(r.mood.Code, "%s", r.mood.Text)
	case mood.Kill:
		r.srv.cursors.killOne(r.cursorID())
		return servererr.New(r.mood.Code, "%s", r.mood.Text)
	case mood.Forget:
		r.srv.cursors.killOne(r.cursorID())
	case mood.Abort:
		r.abandonTxn()
		if r.txn != nil {
			return servererr.New(servererr.NoSuchTransaction, "Transaction %d has been aborted.", *r.txnNumber)
		}
	}
	return nil
}

// afterwards carries out a mood that shows only when the work is done.
func (r *request) afterwards() {
	if r.is(mood.Lose) {
		r.failing = &failure{hangUp: true}
	}
}

// statementMood is the refusal that the first statement of a write has met.
func (r *request) statementMood() error {
	if !r.is(mood.Statement) {
		return nil
	}
	m := r.mood
	r.mood = nil
	return servererr.New(m.Code, "%s", m.Text)
}

// concernMood is what a write concern has met: the refusal of the wait for it, or
// none after a while.
func (r *request) concernMood(ctx context.Context) *servererr.Error {
	switch {
	case r.is(mood.Unmet):
		return servererr.New(r.mood.Code, "%s", r.mood.Text)
	case r.is(mood.Slow):
		late := time.NewTimer(time.Duration(r.mood.Draw % uint64(slowest)))
		defer late.Stop()
		select {
		case <-late.C:
		case <-ctx.Done():
		}
	}
	return nil
}

// atMost is how many documents the batch may have that the client has limited to n;
// 0 is no limit.
func (r *request) atMost(n int64) int64 {
	if !r.is(mood.Short) {
		return n
	}
	few := int64(r.mood.Draw%shortest) + 1
	if n > 0 {
		few = min(few, n)
	}
	return few
}
