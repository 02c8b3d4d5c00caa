package dispatch

import (
	"context"
	"time"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/mood"
)

const (
	// slowest is the longest delay of a slow write concern.
	slowest = 60 * time.Millisecond
	// shortest is the most documents that a short batch has.
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

// meetMood decides which mood the command meets, before it starts.
func (r *Request) meetMood() error {
	t := r.Server.Config.Moods
	if t == nil || r.Conn.Internal || r.Spec.BeforeAuth || r.Spec.Test {
		return nil
	}
	touched, gentle := t.Touches(r.Conn.app())
	if !touched {
		return nil
	}
	if r.Conn.era < t.Era() && !gentle {
		r.Failing = &Failure{HangUp: true}
		return servererr.New(servererr.Interrupted, "the connection was dropped")
	}
	r.mood = t.Meet(r.place(), gentle)
	switch {
	case r.mood == nil:
	case r.mood.Kind == mood.HangUp:
		r.Failing = &Failure{HangUp: true}
		return servererr.New(servererr.Interrupted, "the connection is closed by a mood")
	case r.mood.Kind == mood.Shut:
		r.Conn.era = -1 // it is closed at the next command
		return servererr.New(r.mood.Code, "%s", r.mood.Text)
	}
	return nil
}

// place describes the command for moods.
func (r *Request) place() *mood.Place {
	ends := transactionCommands[r.Spec.Name]
	wc := r.writeConcern
	p := &mood.Place{
		Command: r.Spec.Name, Version: r.Server.Version, Local: r.DB == "local",
		Primary: r.Self.Writable, Several: len(r.Self.Members) > 2,
		Writes: r.Spec.Writes, Timed: wc.Timeout > 0,
		Majority: r.Spec.Writes && r.DB != "local" && wc.Mode == Majority && (!r.InTxn() || ends),
		InTxn:    r.InTxn(), Starts: r.startTxn, Ends: ends,
		Session: r.LSID != nil, Snapshot: r.ReadConcern.Level == "snapshot", ReadMajority: r.ReadConcern.Level == Majority,
		Reads: r.Spec.Secondary == OptIn, Limited: r.maxTime > 0 && !r.Spec.OwnMaxTime,
	}
	switch r.Spec.Name {
	case "find", "aggregate":
		p.Batch = true
		first := FirstElem(r.Cmd)
		p.Collection, _ = first.Text()
	case "listCollections", "listIndexes":
		p.Batch = true
	case "getMore":
		p.Batch, p.Reads = true, true
		p.Moved = r.Server.Cursors.movedTo(r.cursorID(), r.Conn.ID)
	}
	return p
}

// cursorID is the cursor that a getMore names.
func (r *Request) cursorID() int64 {
	first := FirstElem(r.Cmd)
	id, _ := first.Int64()
	return id
}

// Is reports whether the command has met a mood of this kind.
func (r *Request) Is(kind mood.Kind) bool { return r.mood != nil && r.mood.Kind == kind }

// strike executes a mood of the command itself, once its session is checked out
// and its transaction has begun.
func (r *Request) strike() error {
	if r.mood == nil {
		return nil
	}
	more := r.Spec.Name == "getMore"
	switch r.mood.Kind { //nolint:exhaustive // All others strike elsewhere.
	case mood.Refuse:
		// An error ends the cursor, but for one that is in use.
		if more && r.mood.Code != servererr.CursorInUse {
			r.Server.Cursors.KillOne(r.cursorID())
		}
		return servererr.New(r.mood.Code, "%s", r.mood.Text)
	case mood.Kill:
		r.Server.Cursors.KillOne(r.cursorID())
		return servererr.New(r.mood.Code, "%s", r.mood.Text)
	case mood.Forget:
		r.Server.Cursors.KillOne(r.cursorID())
	case mood.Abort:
		r.AbandonTxn()
		if r.txn != nil {
			return servererr.New(servererr.NoSuchTransaction, "Transaction %d has been aborted.", *r.TxnNumber)
		}
	}
	return nil
}

// afterwards executes a mood that takes effect after the work.
func (r *Request) afterwards() {
	if r.Is(mood.Lose) {
		r.Failing = &Failure{HangUp: true}
	}
}

// StatementMood is the error of the first statement of a write.
func (r *Request) StatementMood() error {
	if !r.Is(mood.Statement) {
		return nil
	}
	m := r.mood
	r.mood = nil
	return servererr.New(m.Code, "%s", m.Text)
}

// concernMood is the mood of a write concern: an error of the wait for it, or a
// delay.
func (r *Request) concernMood(ctx context.Context) *servererr.Error {
	switch {
	case r.Is(mood.Unmet):
		return servererr.New(r.mood.Code, "%s", r.mood.Text)
	case r.Is(mood.Slow):
		late := time.NewTimer(time.Duration(r.mood.Draw % uint64(slowest)))
		defer late.Stop()
		select {
		case <-late.C:
		case <-ctx.Done():
		}
	}
	return nil
}

// AtMost is how many documents the batch may have that the client has limited to n;
// 0 means no limit.
func (r *Request) AtMost(n int64) int64 {
	if !r.Is(mood.Short) {
		return n
	}
	few := int64(r.mood.Draw%shortest) + 1
	if n > 0 {
		few = min(few, n)
	}
	return few
}
