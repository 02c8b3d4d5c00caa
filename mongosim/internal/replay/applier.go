package replay

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// ErrOutOfOrder is the error of an entry that does not come after the newest one
// of the store.
var ErrOutOfOrder = errors.New("entry out of order")

// ErrBrokenChain is the error of an entry whose link leads to a missing or
// unsuitable entry.
var ErrBrokenChain = errors.New("broken chain of entries")

// Options are how an Applier applies. The zero value is a secondary of version 5.0
// or later.
type Options struct {
	// Tolerant is for a copy that is newer than the log, as in an initial sync:
	// missing documents are skipped, existing ones replaced, names in use are
	// freed. A change of the feature compatibility version is refused.
	Tolerant bool
	// TrimCapped makes the Applier trim capped collections after each insert, as
	// opwrite.Dialect.TrimsCapped says that members have to.
	TrimCapped bool
}

// Applier applies a log in order. It is not safe for concurrent use.
type Applier struct {
	store *storage.Store
	opts  Options
	// prepared are the transactions that wait for their end, by the timestamp of
	// their prepare entry.
	prepared map[bson.Timestamp]opwrite.Prepared
	// skipIndexes leaves indexes other than that on _id alone.
	skipIndexes bool
}

// New makes an Applier that continues after the newest entry of the store's
// oplog. Transactions prepared at that point are read from the oplog.
func New(store *storage.Store, opts Options) (*Applier, error) {
	a := &Applier{store: store, opts: opts, prepared: map[bson.Timestamp]opwrite.Prepared{}}
	if err := store.Write(a.recover); err != nil {
		return nil, errors.Join(fmt.Errorf("replay: read open transactions: %w", err), a.Close())
	}
	return a, nil
}

// SkipIndexes makes the Applier leave all indexes but that on _id alone: for a
// member with buildIndexes false. Their entries are kept in the oplog only.
func (a *Applier) SkipIndexes(skip bool) { a.skipIndexes = skip }

// recover prepares again the transactions that are prepared by the records of
// sessions.
func (a *Applier) recover(w *storage.Writer) error {
	coll, ok := w.View(bson.Timestamp{}).Collection(opwrite.TransactionsNS)
	if !ok {
		return nil
	}
	var open []oplog.OpTime
	for found := range coll.ByID(storage.Bound{}, storage.Bound{}, false) {
		state, _ := rawbson.Lookup(found.Doc, "state")
		if text, _ := state.Text(); text != opwrite.StatePrepared {
			continue
		}
		id, _ := rawbson.Lookup(found.Doc, "_id")
		lsid, _ := id.Document()
		r, _, err := opwrite.ReadRecord(w.View(bson.Timestamp{}), lsid)
		if err != nil {
			return err
		}
		open = append(open, r.LastWrite)
	}
	// In log order: one may have created what another one changed.
	slices.SortFunc(open, oplog.OpTime.Compare)
	for _, at := range open {
		e, err := entryAt(w, at)
		if err != nil {
			return err
		}
		if err := a.prepare(w, e); err != nil {
			return opError(&e.Op, err)
		}
	}
	return nil
}

// Apply applies entries and appends them to the oplog, each at its own optime,
// with the records of sessions. An entry that cannot be applied is an error that
// names it; entries before it stay applied. The entries are copied.
func (a *Applier) Apply(entries []bson.Raw) (last oplog.OpTime, err error) {
	err = a.store.Write(func(w *storage.Writer) error {
		if newest, ok := w.Oplog().Last(); ok {
			last = newest.At
		}
		for _, raw := range entries {
			e, err := oplog.ParseEntry(raw)
			if err != nil {
				return fmt.Errorf("replay: %w", err)
			}
			if oplog.CompareTimestamps(e.OpTime.TS, last.TS) <= 0 || !last.IsNull() && e.OpTime.Before(last) {
				return fmt.Errorf("replay: entry %s after %s: %w", e.OpTime, last, ErrOutOfOrder)
			}
			if err := a.apply(w, &e); err != nil {
				return opError(&e.Op, err)
			}
			w.Append(raw, e.OpTime)
			last = e.OpTime
		}
		return nil
	})
	return last, err
}

// opError says which operation could not be applied.
func opError(op *oplog.Op, err error) error {
	what := op.Kind.String()
	if op.Kind == oplog.KindCommand {
		what = op.Command.String()
	}
	return fmt.Errorf("replay: apply %s %s on %s: %w", op.OpTime, what, op.NS, err)
}

// Prepared returns the prepared transactions that wait for their end, for a
// member that was elected, by optime; the Applier forgets them.
func (a *Applier) Prepared() []opwrite.Prepared {
	var all []opwrite.Prepared
	for _, p := range a.prepared {
		all = append(all, p)
	}
	clear(a.prepared)
	slices.SortFunc(all, func(p, q opwrite.Prepared) int { return cmp.Or(p.At.Compare(q.At), 0) })
	return all
}

// Close releases the Applier's resources, aborting prepared units. It must be
// called before a rollback and before a new Applier on the same store.
func (a *Applier) Close() error {
	if len(a.prepared) == 0 {
		return nil
	}
	return a.store.Write(func(*storage.Writer) error {
		for _, p := range a.prepared {
			if p.Unit.Open() {
				p.Unit.Abort()
			}
		}
		clear(a.prepared)
		return nil
	})
}

// apply carries out one entry.
func (a *Applier) apply(w *storage.Writer, e *oplog.Entry) error {
	if a.opts.Tolerant && changesFCV(&e.Op) {
		return errFCV
	}
	switch {
	case e.Kind == oplog.KindNoop:
		if !e.FromMigrate || e.O2 == nil {
			return nil
		}
		// A retryable write that came with a migrated session.
		return a.commit(w, e, nil)
	case e.Command == oplog.CommandApplyOps:
		return a.applyGroup(w, e)
	case e.Command == oplog.CommandCommitTransaction, e.Command == oplog.CommandAbortTransaction:
		return a.decide(w, e)
	case e.Kind == oplog.KindCommand:
		return a.commit(w, e, func(u *storage.Unit) error { return a.command(u, &e.Op) })
	default:
		return a.commit(w, e, func(u *storage.Unit) error {
			pre, post, err := a.crud(u, &e.Op, rules{replace: a.opts.Tolerant, upsert: e.Upsert})
			if err != nil {
				return err
			}
			return keepImage(u, e, pre, post)
		})
	}
}

// begin starts a unit for an entry. In a copy that is newer than the log two
// documents may have the same unique value until the log has been applied.
func (a *Applier) begin(w *storage.Writer) *storage.Unit {
	u := w.Begin(bson.Timestamp{})
	if a.opts.Tolerant {
		u.Relax()
	}
	return u
}

// commit commits what change does at the entry's timestamp, with the record of
// the entry's session.
func (a *Applier) commit(w *storage.Writer, e *oplog.Entry, change func(u *storage.Unit) error) error {
	u := a.begin(w)
	var err error
	if change != nil {
		err = change(u)
	}
	if err == nil {
		err = writeRecord(u, e)
	}
	if err != nil {
		u.Abort()
		return err
	}
	u.Commit(e.OpTime.TS)
	return nil
}
