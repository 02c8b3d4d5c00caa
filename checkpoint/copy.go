package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// ErrNoCopy is a link that does not begin with a copy.
var ErrNoCopy = errors.New("the link has no copy")

// CopyPhase is how far the copy of a link is.
type CopyPhase string

const (
	// Copying copies documents; nothing of the log is applied.
	Copying CopyPhase = "copying"
	// Replaying applies the log to the complete copy, up to Stop.
	Replaying CopyPhase = "replaying"
	// Copied is a copy to which the log was applied up to Stop, of a source that was
	// found not to have rolled back meanwhile. The target is consistent.
	Copied CopyPhase = "done"
)

// Copy is the copy that a link begins with.
type Copy struct {
	// Number counts the copies of the link, from 1. One that had to be begun
	// anew has the next number; the documents of the old one are void.
	Number int64
	Phase  CopyPhase
	// Host is the member that is copied, RBID its rollback id and SyncID the
	// _id of its local.replset.initialSyncId (zero where it has none), as of the
	// beginning. If they change, the copy is void.
	Host   string
	RBID   int64
	SyncID bson.RawValue
	// SyncIDUnread tells that SyncID may not be read; SyncMark is the UUID of its
	// collection, as package initialsync/origin writes it, empty for not known.
	SyncIDUnread bool
	SyncMark     string
	// FetchFrom is where reading of the log began, Begin the entry after which
	// it is applied (beginFetching and beginApplying).
	FetchFrom, Begin oplog.OpTime
	// Stop is the newest entry of the source when everything had been copied;
	// null before that.
	Stop oplog.OpTime
	// Cleared tells that what an earlier copy, or somebody else, had left in the
	// target is gone. Listed tells that all collections to copy are in the
	// metadata.
	Cleared, Listed bool
	// Started is when this copy was begun, by our clock.
	Started time.Time
	// Why says why the copy before this one was void; empty for the first.
	Why string
}

// phases are in order.
var phases = []CopyPhase{Copying, Replaying, Copied}

// rank returns which one of the phases p is, -1 for none of them.
func (p CopyPhase) rank() int { return slices.Index(phases, p) }

// validate checks a copy by itself.
func (c *Copy) validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if c.Number < 1 {
		fault("copy %d: they count from 1", c.Number)
	}
	if c.Phase.rank() < 0 {
		fault("phase %q: it is none", c.Phase)
	}
	if c.Begin.IsNull() || c.FetchFrom.IsNull() {
		fault("no optime to begin after, or to read from")
	}
	if c.FetchFrom.After(c.Begin) {
		fault("reading from %s would miss what follows %s", c.FetchFrom, c.Begin)
	}
	switch {
	case c.Stop.IsNull() != (c.Phase == Copying):
		fault("phase %q with the optime %s to stop at", c.Phase, c.Stop)
	case !c.Stop.IsNull() && c.Stop.Before(c.Begin):
		fault("it stops at %s and begins after %s", c.Stop, c.Begin)
	}
	return errors.Join(faults...)
}

// validateNew checks a copy that nothing was done for.
func (c *Copy) validateNew() error {
	if c.Phase != Copying || c.Listed {
		return errors.New("a new copy begins with nothing done")
	}
	return c.validate()
}

// after tells whether c is further than was, or anew; nil is before all copies.
func (c *Copy) after(was *Copy) bool {
	switch {
	case c == nil || was == nil:
		return c != nil
	case c.Number != was.Number:
		return c.Number > was.Number
	}
	return c.Phase.rank() > was.Phase.rank() || c.Cleared && !was.Cleared || c.Listed && !was.Listed
}

// clone returns a copy of its own.
func (c *Copy) clone() *Copy {
	if c == nil {
		return nil
	}
	d := *c
	d.SyncID.Value = bytes.Clone(c.SyncID.Value)
	return &d
}

// appendWhere appends, to a filter on the link's document, that its copy is as
// far as c, or that it has none.
func (c *Copy) appendWhere(dst []byte) []byte {
	if c == nil {
		return bsoncore.AppendNullElement(dst, "copy")
	}
	dst = bsoncore.AppendInt64Element(dst, "copy.number", c.Number)
	dst = bsoncore.AppendStringElement(dst, "copy.phase", string(c.Phase))
	dst = bsoncore.AppendBooleanElement(dst, "copy.cleared", c.Cleared)
	return bsoncore.AppendBooleanElement(dst, "copy.listed", c.Listed)
}

// Copy returns the link's copy as UpdateCopy left it last, nil for none.
func (h *Link) Copy() *Copy {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.copy.clone()
}

// BeginCopy makes c the link's copy, in place of one that is void, and moves the
// checkpoint to it, back as well as forward: Applied is c.Begin, of wall, in
// milliseconds since the epoch. All lanes are put there too, so that none passes
// over what it had applied to the void copy. None may be in use. It is committed
// by a majority when it returns. The Link is spent then (lease.ErrSpent): Acquire anew.
func (h *Link) BeginCopy(ctx context.Context, c Copy, wall int64) error {
	return h.locked(ctx, func() error {
		if err := h.beginCopy(ctx, &c, wall); err != nil {
			return err
		}
		h.lease.Spend()
		h.store.cfg.Observer.Log(slog.LevelWarn, "new copy begun", slog.String(keyLink, h.store.cfg.Link), slog.Int64(keyNumber, c.Number),
			slog.String(keyHost, c.Host), slog.String(keyBegin, c.Begin.String()), slog.String(keyWhy, c.Why))
		return nil
	}, "begin copy %d after %s", c.Number, c.Begin)
}

func (h *Link) beginCopy(ctx context.Context, c *Copy, wall int64) error {
	if err := c.validateNew(); err != nil {
		return err
	}
	if !c.after(h.copy) {
		return fmt.Errorf("the link is at copy %d already", h.copy.Number)
	}
	// A link that was made by an earlier version lacks some.
	if err := h.store.prepare(ctx); err != nil {
		return err
	}
	return h.lease.InTxn(ctx, h.txns, func(txn *mongo.Txn) error {
		err := h.changeLink(ctx, txn, func(dst []byte) []byte {
			dst = metadata.AppendDoc(dst, "$set", func(dst []byte) []byte {
				return appendCopy(appendCheckpoint(dst, c.Begin, wall, c.FetchFrom), c, nil)
			})
			return metadata.AppendDoc(dst, "$unset", func(dst []byte) []byte {
				dst = bsoncore.AppendStringElement(dst, "copiedUntil", "")
				// They are copied with all others.
				return bsoncore.AppendStringElement(dst, "leftOut", "")
			})
		})
		if err != nil {
			return err
		}
		// Whatever positions they lost, or have, belong to data that are void; only
		// their term counts.
		if err := h.verify(ctx, txn, make([]Position, len(h.lanes)), Position{}); err != nil {
			return err
		}
		// What the copy before lacked is of no interest.
		void := metadata.Delete(h.store.cfg.DB, metadata.Missing, metadata.Below(h.store.cfg.Link))
		if err := metadata.Run(ctx, txn, void, -1); err != nil {
			return err
		}
		return h.resetLanes(ctx, txn, Position{OpTime: c.Begin, Op: AllOps})
	})
}

// resetLanes puts all lanes at one position, with nothing begun.
func (h *Link) resetLanes(ctx context.Context, txn *mongo.Txn, at Position) error {
	cfg := &h.store.cfg
	ids := laneIDs(cfg.Link, len(h.lanes))
	return metadata.Run(ctx, txn, metadata.Update(cfg.DB, metadata.Lanes, metadata.Statement{
		Filter: metadata.AnyOf(ids),
		Change: func(dst []byte) []byte {
			dst = metadata.AppendDoc(dst, "$set", func(dst []byte) []byte { return appendPosition(dst, at) })
			return metadata.AppendDoc(dst, "$unset", func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, "begun", "") })
		},
		Multi: true,
	}), int64(len(ids)))
}

// UpdateCopy writes the fields Phase, Stop, Cleared and Listed of the link's
// copy, which has to have the same Number and must not go back; the phases follow
// one another. A change to Replaying needs Stop, and sets State.CopiedUntil to it. A
// change to Copied needs a checkpoint at Stop or after it. If also is not nil it runs in
// the same transaction, and may run more than once. The transaction is committed by a
// majority when UpdateCopy returns.
func (h *Link) UpdateCopy(ctx context.Context, c Copy, also func(txn *mongo.Txn) error) error {
	return h.locked(ctx, func() error { return h.updateCopy(ctx, &c, also) }, "update copy %d to phase %q", c.Number, c.Phase)
}

func (h *Link) updateCopy(ctx context.Context, c *Copy, also func(txn *mongo.Txn) error) error {
	if h.copy == nil {
		return ErrNoCopy
	}
	was := *h.copy
	next := was
	next.Phase, next.Stop, next.Cleared, next.Listed = c.Phase, c.Stop, c.Cleared, c.Listed
	if err := h.checkUpdate(c.Number, &was, &next); err != nil {
		return err
	}
	err := h.lease.InTxn(ctx, h.txns, func(txn *mongo.Txn) error {
		err := h.changeLink(ctx, txn, func(dst []byte) []byte {
			return metadata.AppendDoc(dst, "$set", func(dst []byte) []byte {
				dst = appendCopy(dst, &next, h.leftOut)
				if next.Phase != Copying {
					dst = metadata.AppendOpTime(dst, "copiedUntil", next.Stop)
				}
				return dst
			})
		})
		if err != nil || also == nil {
			return err
		}
		return also(txn)
	})
	if err != nil {
		return err
	}
	h.mu.Lock()
	h.copy = &next
	h.mu.Unlock()
	if next.Phase != was.Phase {
		h.store.cfg.Observer.Log(slog.LevelInfo, "copy in its next phase", slog.String(keyLink, h.store.cfg.Link), slog.Int64(keyNumber, next.Number),
			slog.String(keyPhase, string(next.Phase)), slog.String(keyStop, next.Stop.String()))
	}
	return nil
}

// checkUpdate checks whether the copy may go from was to next.
func (h *Link) checkUpdate(number int64, was, next *Copy) error {
	if number != was.Number {
		return fmt.Errorf("the link is at copy %d", was.Number)
	}
	if err := next.validate(); err != nil {
		return err
	}
	switch steps := next.Phase.rank() - was.Phase.rank(); {
	case steps < 0 || was.Cleared && !next.Cleared || was.Listed && !next.Listed:
		return errors.New("a copy does not go back")
	case steps > 1:
		return fmt.Errorf("it is in phase %q", was.Phase)
	case !was.Stop.IsNull() && next.Stop != was.Stop:
		return fmt.Errorf("it stops at %s, not %s", was.Stop, next.Stop)
	case next.Phase == Replaying && (!next.Cleared || !next.Listed):
		return errors.New("the target was not cleared, or the source was not listed")
	case next.Phase == Copied && h.applied.Before(next.Stop):
		return fmt.Errorf("the checkpoint is at %s and the copy stops at %s", h.applied, next.Stop)
	}
	return nil
}
