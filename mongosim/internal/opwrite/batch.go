package opwrite

import (
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// Batch is Ops for statements outside of transactions, and all other commands
// that write.
type Batch struct {
	p *Path
	w *storage.Writer

	term    int64
	hasTerm bool
	// wall is the wall clock of the newest entry.
	wall time.Time
	// last is the newest optime written, if wrote.
	last  oplog.OpTime
	wrote bool
	// refuse, if not nil, returns the refusal of writes to a namespace.
	refuse func(ns oplog.Namespace) error
}

// Refuse sets a function that is called before each write to a namespace; its error refuses the
// write. Nil refuses none.
func (b *Batch) Refuse(refuse func(ns oplog.Namespace) error) { b.refuse = refuse }

// allowed returns the refusal of a write to a namespace.
func (b *Batch) allowed(ns oplog.Namespace) error {
	if b.refuse == nil {
		return nil
	}
	return b.refuse(ns)
}

var _ Ops = (*Batch)(nil)

// View returns a view of the newest state.
func (b *Batch) View() storage.View { return b.w.View(bson.Timestamp{}) }

// LastOpTime returns the optime of the newest entry that this batch wrote, else
// the newest of the oplog.
func (b *Batch) LastOpTime() oplog.OpTime {
	if b.wrote {
		return b.last
	}
	last, _ := b.w.Oplog().Last()
	return last.At
}

// Local runs fn on a unit for a database without versions (local); nothing is
// logged.
func (b *Batch) local(fn func(u *storage.Unit) error) error {
	u := b.w.Begin(bson.Timestamp{})
	if err := fn(u); err != nil {
		u.Abort()
		return err
	}
	u.Commit(bson.Timestamp{})
	return nil
}

// Note logs a no-op entry with the given o ("new primary", appendOplogNote, …).
func (b *Batch) Note(o bson.Raw) error {
	at, err := b.reserve(1)
	if err != nil {
		return err
	}
	b.log(&entry{op: "n", o: o}, at)
	return nil
}

// Raw logs an entry for an operation whose data change was made on the returned
// unit by apply: the way of the applyOps command. op is "i", "u", "d" or "c".
// Apply may be nil. What apply returns as an error undoes the operation.
func (b *Batch) Raw(op string, ns oplog.Namespace, ui *oplog.UUID, o, o2 bson.Raw, apply func(u *storage.Unit) error) error {
	e := entry{op: op, ns: ns, o: o, o2: o2}
	if ui != nil {
		e.ui = *ui
	}
	return b.write(&e, apply)
}

// maxScratch is up to which size, in bytes, the buffer of an entry is kept.
const maxScratch = 1 << 20

// log appends an entry.
func (b *Batch) log(e *entry, at oplog.OpTime) {
	raw := b.p.format.append(b.p.scratch[:0], e, at, b.wall)
	b.w.Append(raw, at)
	if cap(raw) <= maxScratch {
		b.p.scratch = raw
	}
	b.last, b.wrote = at, true
}

// unlogged reports whether writes to a namespace are local to a member.
func unlogged(ns oplog.Namespace) bool { return strings.HasPrefix(string(ns), "local.") }

// write commits what change does and the entry at the next timestamp; in the
// database local nothing is logged.
func (b *Batch) write(e *entry, change func(u *storage.Unit) error) error {
	if err := b.allowed(e.ns); err != nil {
		return err
	}
	if unlogged(e.ns) {
		if change == nil {
			return nil
		}
		return b.local(change)
	}
	at, err := b.reserve(1)
	if err != nil {
		return err
	}
	return b.writeAt(e, at, change)
}

func (b *Batch) writeAt(e *entry, at oplog.OpTime, change func(u *storage.Unit) error) error {
	if change != nil {
		u := b.w.Begin(bson.Timestamp{})
		if err := change(u); err != nil {
			u.Abort()
			return err
		}
		u.Commit(at.TS)
	}
	b.log(e, at)
	return nil
}
