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

// ErrNoCopy reports that the link does not begin with a copy.
var ErrNoCopy = errors.New("the link has no copy")

// CopyPhase is how far the copy of a link is.
type CopyPhase string

const (
	// Copying means: documents are copied; the oplog is not applied yet.
	Copying CopyPhase = "copying"
	// Replaying means: the copy is complete, and the oplog is applied to it up to Stop.
	Replaying CopyPhase = "replaying"
	// Copied means: the oplog was applied up to Stop. The target is consistent.
	Copied CopyPhase = "done"
)

// Copy is the copy that a link begins with.
type Copy struct {
	// Number counts the copies of the link, from 1. A copy that starts over gets the
	// next number, and the documents of the previous one are void.
	Number int64
	Phase  CopyPhase
	// Host is the member that documents are read from, RBID its rollback id and SyncID the
	// _id of its local.replset.initialSyncId (zero where it has none) when the copy came to
	// it. If they change, record ids of it mean nothing any more.
	Host   string
	RBID   int64
	SyncID bson.RawValue
	// SyncIDUnread reports that this user is not allowed to read SyncID. SyncMark is
	// the UUID of its collection, as package initialsync/origin writes it, empty if unknown.
	SyncIDUnread bool
	SyncMark     string
	// Moves counts how often the copy went on with another member, or with the same one
	// after it had changed.
	Moves int64
	// FetchFrom is the optime from which the oplog is read, Begin the entry after
	// which it is applied (beginFetchingTimestamp and beginApplyingTimestamp).
	FetchFrom, Begin oplog.OpTime
	// Stop is the newest entry of the source once everything was copied
	// (stopTimestamp); null before that.
	Stop oplog.OpTime
	// Cleared reports that previous data were removed from the target. Listed reports
	// that all collections to copy are in the metadata.
	Cleared, Listed bool
	// Started is when this copy started, by this process's clock.
	Started time.Time
	// Why is the reason why the previous copy was void; empty for the first one.
	Why string
}

// phases are the phases in order.
var phases = []CopyPhase{Copying, Replaying, Copied}

// rank returns the index of p in phases, or -1.
func (p CopyPhase) rank() int { return slices.Index(phases, p) }

// validate checks the fields of a copy.
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

// validateNew checks a copy that has not started.
func (c *Copy) validateNew() error {
	if c.Phase != Copying || c.Listed {
		return errors.New("a new copy begins with nothing done")
	}
	return c.validate()
}

// after reports whether c is a later state of the copy was, or a later copy; nil
// precedes all copies.
func (c *Copy) after(was *Copy) bool {
	switch {
	case c == nil || was == nil:
		return c != nil
	case c.Number != was.Number:
		return c.Number > was.Number
	case c.Moves != was.Moves:
		return c.Moves > was.Moves
	}
	return c.Phase.rank() > was.Phase.rank() || c.Cleared && !was.Cleared || c.Listed && !was.Listed
}

// clone returns a deep copy.
func (c *Copy) clone() *Copy {
	if c == nil {
		return nil
	}
	d := *c
	d.SyncID.Value = bytes.Clone(c.SyncID.Value)
	return &d
}

// appendWhere appends to a filter the condition that the link's copy has the state
// of c, or that the link has no copy if c is nil.
func (c *Copy) appendWhere(dst []byte) []byte {
	if c == nil {
		return bsoncore.AppendNullElement(dst, "copy")
	}
	dst = bsoncore.AppendInt64Element(dst, "copy.number", c.Number)
	dst = bsoncore.AppendStringElement(dst, "copy.phase", string(c.Phase))
	if c.Moves > 0 {
		dst = bsoncore.AppendInt64Element(dst, "copy.moves", c.Moves)
	} else {
		dst = bsoncore.AppendNullElement(dst, "copy.moves")
	}
	dst = bsoncore.AppendBooleanElement(dst, "copy.cleared", c.Cleared)
	return bsoncore.AppendBooleanElement(dst, "copy.listed", c.Listed)
}

// Copy returns the link's copy as of the last UpdateCopy, or nil.
func (h *Link) Copy() *Copy {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.copy.clone()
}

// BeginCopy replaces the link's void copy by c, and moves the checkpoint, forward or
// back, to c.Begin, whose wall time is wall, in milliseconds since the epoch. All lanes
// move there too, so that none skips entries that it had applied to the void copy. No
// lane may be in use. The change is majority-committed when BeginCopy returns. The Link
// is spent afterwards (lease.ErrSpent): the caller has to acquire it again.
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
	// A link that an earlier version created lacks some collections.
	if err := h.store.prepare(ctx); err != nil {
		return err
	}
	return h.lease.InTxn(ctx, h.txns, func(txn *mongo.Txn) error {
		err := h.changeLink(ctx, txn, func(dst []byte) []byte {
			dst = metadata.AppendDoc(dst, "$set", func(dst []byte) []byte {
				dst = bsoncore.AppendInt32Element(dst, "version", plain)
				return appendCopy(appendCheckpoint(dst, c.Begin, wall, c.FetchFrom), c, nil)
			})
			return metadata.AppendDoc(dst, "$unset", func(dst []byte) []byte {
				dst = bsoncore.AppendStringElement(dst, "copiedUntil", "")
				dst = bsoncore.AppendStringElement(dst, "keptBack", "")
				// The new copy includes them.
				return bsoncore.AppendStringElement(dst, "leftOut", "")
			})
		})
		if err != nil {
			return err
		}
		// The lanes' positions belong to void data, so only their term is checked.
		if err := h.verify(ctx, txn, make([]Position, len(h.lanes)), Position{}); err != nil {
			return err
		}
		// These are the collections that the previous copy lacked.
		void := metadata.Delete(h.store.cfg.DB, metadata.Missing, metadata.Below(h.store.cfg.Link))
		if err := metadata.Run(ctx, txn, void, -1); err != nil {
			return err
		}
		return h.resetLanes(ctx, txn, Position{OpTime: c.Begin, Op: AllOps})
	})
}

// resetLanes moves all lanes to one position, with nothing begun.
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

// UpdateCopy writes the fields Phase, Stop, Cleared and Listed of the link's copy.
// Number must be that of the current copy; Cleared and Listed must not be reset, and
// Phase may only advance by one. A change to Replaying needs Stop, and sets
// State.CopiedUntil to it. A change to Copied needs a checkpoint at Stop or after it. If
// also is not nil it runs in the same transaction, and may run more than once. The
// transaction is majority-committed when UpdateCopy returns.
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

// MoveCopy records that documents are read from another member from now on, or from the
// same one after it has changed: it writes the fields Host, RBID, SyncID, SyncIDUnread and
// SyncMark of c, and counts Moves. Number must be that of the current copy, and its Phase
// Copying. also runs in the same transaction, and may run more than once. The change is
// majority-committed when MoveCopy returns.
func (h *Link) MoveCopy(ctx context.Context, c Copy, also func(txn *mongo.Txn) error) error {
	return h.locked(ctx, func() error { return h.moveCopy(ctx, &c, also) }, "continue copy %d from %s", c.Number, c.Host)
}

func (h *Link) moveCopy(ctx context.Context, c *Copy, also func(txn *mongo.Txn) error) error {
	switch {
	case h.copy == nil:
		return ErrNoCopy
	case h.copy.Number != c.Number || h.copy.Phase != Copying:
		return fmt.Errorf("the link is at copy %d, phase %q", h.copy.Number, h.copy.Phase)
	}
	next := *h.copy
	next.Host, next.RBID, next.SyncID, next.SyncIDUnread, next.SyncMark = c.Host, c.RBID, c.SyncID, c.SyncIDUnread, c.SyncMark
	next.Moves++
	err := h.lease.InTxn(ctx, h.txns, func(txn *mongo.Txn) error {
		err := h.changeLink(ctx, txn, func(dst []byte) []byte {
			return metadata.AppendDoc(dst, "$set", func(dst []byte) []byte { return appendCopy(dst, &next, h.leftOut) })
		})
		if err != nil {
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
	return nil
}

// checkUpdate checks whether the copy may change from was to next.
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
