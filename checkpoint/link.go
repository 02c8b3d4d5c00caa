package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
)

// Link is a link under one term of its lease. Its methods are safe for concurrent
// use; each of its Lanes is for one goroutine.
type Link struct {
	store   *Store
	lease   *lease.Lease
	state   State
	lanes   []*Lane
	barrier *Lane

	// mu guards barrierAt, the position of the barrier that the target acknowledged
	// last, and the readers of copy and leftOut that do not have the lease locked.
	mu        sync.Mutex
	barrierAt Position

	// cuts counts the cuts of this term. listed are those in the metadata, for the goroutine
	// that calls OpenCuts and Confirm.
	cuts   atomic.Int64
	listed []Cut

	// The remaining fields are those of the link's document. The lock of the lease
	// guards them and txns, the session that writes them.
	txns    *mongo.Session
	applied oplog.OpTime
	source  Source
	copy    *Copy // nil for none
	leftOut []LeftOut
}

// State returns the link as it was when the lease was acquired.
func (h *Link) State() State {
	st := h.state
	st.Lanes, st.LanesAnnounced = slices.Clone(st.Lanes), slices.Clone(st.LanesAnnounced)
	st.Copy = st.Copy.clone()
	return st
}

// Instance identifies the link among all of the same name: those on other targets, and
// those that were removed and created again.
func (h *Link) Instance() string { return h.lease.Instance() }

// Term returns the term.
func (h *Link) Term() int64 { return h.lease.Term() }

// Config returns the link's Config. Its Target retries transient errors.
func (h *Link) Config() Config { return h.store.cfg }

// Lane returns writer i's lane, the same one each time.
func (h *Link) Lane(i int) *Lane { return h.lanes[i] }

// all returns the writers' lanes and the barrier's.
func (h *Link) all() []*Lane { return append(slices.Clip(h.lanes), h.barrier) }

// Barrier returns the barrier's lane.
func (h *Link) Barrier() *Lane { return h.barrier }

func (h *Link) barrierPosition() Position {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.barrierAt
}

// TouchLoop keeps the server from forgetting the link's sessions, until ctx is done.
func (h *Link) TouchLoop(ctx context.Context) error {
	tick := time.NewTicker(lease.TouchEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := h.lease.Touch(ctx); err != nil && ctx.Err() == nil {
				return h.store.wrap(err, "keep its sessions")
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// Check returns lease.ErrFenced if another process has acquired the lease since, and
// lease.ErrRewound if the target lost its term: see [lease.Lease.Check].
func (h *Link) Check(ctx context.Context) error {
	if err := h.lease.Check(ctx); err != nil {
		return h.fail(err, "check its lease")
	}
	return nil
}

// Within runs work in a transaction that also updates the link's document under the
// term, and commits it with majority: it cannot succeed once another process has
// acquired the lease. What work sends must be allowed in transactions. It may run
// more than once. The error is lease.ErrFenced, lease.ErrRewound, that of work, or
// that of the target.
//
// The link's document comes last: until the commit, a renewal of the lease would wait for
// the transaction. One that takes longer than the time between two renewals conflicts with
// them, and runs again.
func (h *Link) Within(ctx context.Context, work func(txn mongo.Caller) error) error {
	// Another goroutine may write between two tries: what this one sends may wait for long.
	return h.store.patience().Do(ctx, func() error {
		return h.locked(ctx, func() error {
			return lease.Judge(h.txns.InTxn(ctx, true, func(txn *mongo.Txn) error {
				if err := work(txn); err != nil {
					return err
				}
				return h.changeLink(ctx, txn, nothing)
			}))
		}, "write under its lease")
	})
}

// nothing appends no change: only the count of writes in the link's document changes.
func nothing(dst []byte) []byte { return dst }

// Advance moves the checkpoint to cp, in a transaction that commits with write concern
// majority and verifies that no lane is before its given position. Lanes are the
// positions that the writers' lanes had acknowledged when cp was the watermark, or later
// ones; the Link knows the barrier's. The error is lease.ErrFenced, lease.ErrRewound,
// ErrOtherSource, or that of the target.
func (h *Link) Advance(ctx context.Context, cp Progress, lanes []Position, src Source) error {
	return h.locked(ctx, func() error {
		started := time.Now()
		err := h.advance(ctx, cp, lanes, src)
		gaps := h.Gaps()
		h.store.metrics.advanced(time.Since(started), gaps.Reached(cp), err)
		if err != nil {
			return err
		}
		h.applied = cp.Applied
		h.store.cfg.Observer.Tell(Advanced{Link: h.store.cfg.Link, Applied: cp.Applied, FetchFrom: cp.FetchFrom})
		return nil
	}, "advance it to %s", cp.Applied)
}

func (h *Link) advance(ctx context.Context, cp Progress, lanes []Position, src Source) error {
	if err := h.checkProgress(cp); err != nil {
		return err
	}
	if !sameSet(src.ReplicaSetID, h.source.ReplicaSetID) {
		return fmt.Errorf("%w: it has %s, the link has %s", ErrOtherSource, src.ReplicaSetID, h.source.ReplicaSetID)
	}
	if src.ReplicaSetID.IsZero() {
		src.ReplicaSetID = h.source.ReplicaSetID
	}
	// The barrier may move concurrently: the transaction is certain to see only a
	// position that was acknowledged before its first statement.
	barrier := h.barrierPosition()
	moved := setCheckpoint(cp, func(dst []byte) []byte { return appendSource(dst, src) })
	err := h.update(ctx, moved, func(txn *mongo.Txn) error { return h.verify(ctx, txn, lanes, barrier) })
	if err == nil {
		h.source = src
	}
	return err
}

// checkProgress checks a new checkpoint for the link's document.
func (h *Link) checkProgress(cp Progress) error {
	switch {
	case cp.Applied.IsNull() || cp.FetchFrom.IsNull():
		return errors.New("it has no optime")
	case cp.Applied.Before(h.applied):
		return fmt.Errorf("a checkpoint cannot move backwards from %s", h.applied)
	case cp.FetchFrom.After(cp.Applied):
		return fmt.Errorf("reading from %s would miss what follows it", cp.FetchFrom)
	case h.copy != nil && h.copy.Phase == Copying && (cp.Applied != h.copy.Begin || cp.FetchFrom.After(h.copy.FetchFrom)):
		return errors.New("a checkpoint cannot move while documents are copied")
	}
	return nil
}

// locked runs do while no other goroutine changes the link's document. Format and
// args describe the attempted action, for errors.
func (h *Link) locked(ctx context.Context, do func() error, format string, args ...any) error {
	unlock, err := h.lease.Lock(ctx)
	if err != nil {
		return h.store.wrap(err, format, args...)
	}
	defer unlock()
	if err := do(); err != nil {
		return h.fail(err, format, args...)
	}
	return nil
}

// fail wraps an error with the attempted action, and logs errors that an operator has
// to interpret.
func (h *Link) fail(err error, format string, args ...any) error {
	h.report(err)
	return h.store.wrap(err, "%s in term %d", fmt.Sprintf(format, args...), h.lease.Term())
}

func (h *Link) report(err error) {
	attrs := func() []slog.Attr {
		return []slog.Attr{slog.String(keyLink, h.store.cfg.Link), slog.Int64(keyTerm, h.lease.Term()), slog.String(keyError, err.Error())}
	}
	switch {
	case errors.Is(err, lease.ErrFenced):
		h.store.cfg.Keeper.CountFenced(err)
		h.store.cfg.Observer.Log(slog.LevelWarn, "another process has acquired the lease", attrs()...)
	case errors.Is(err, lease.ErrRewound):
		h.store.metrics.rewound.Inc()
		h.store.cfg.Observer.Log(slog.LevelWarn, "the target lost acknowledged writes, which are written again", attrs()...)
	}
}

// setCheckpoint returns the change of the link's document that sets the checkpoint, and
// the fields that more appends.
func setCheckpoint(cp Progress, more func(dst []byte) []byte) func(dst []byte) []byte {
	return func(dst []byte) []byte {
		return metadata.AppendDoc(dst, "$set", func(dst []byte) []byte {
			return more(appendCheckpoint(dst, cp.Applied, cp.AppliedWall, cp.FetchFrom))
		})
	}
}

// update changes the link's document, and runs work, in a transaction that commits with
// write concern majority. The caller has locked the lease.
func (h *Link) update(ctx context.Context, change func(dst []byte) []byte, work func(txn *mongo.Txn) error) error {
	return h.lease.InTxn(ctx, h.txns, func(txn *mongo.Txn) error {
		if err := h.changeLink(ctx, txn, change); err != nil {
			return err
		}
		return work(txn)
	})
}

// changeLink changes the link's document in a transaction, if this Link made the last
// change to it.
func (h *Link) changeLink(ctx context.Context, txn *mongo.Txn, change func(dst []byte) []byte) error {
	doc, err := h.lease.Update(ctx, txn, func(dst []byte) []byte {
		dst = bsoncore.AppendTimestampElement(dst, "applied.ts", h.applied.TS.T, h.applied.TS.I)
		dst = bsoncore.AppendInt64Element(dst, "applied.t", h.applied.Term)
		return h.copy.appendWhere(dst)
	}, change)
	if err != nil || doc == nil {
		return err
	}
	return h.whyNotMoved(doc)
}

// whyNotMoved returns the reason why the link's document did not match although it has
// the lease's term.
func (h *Link) whyNotMoved(doc bson.Raw) error {
	link, err := readLink(h.store.cfg.Link, doc)
	switch {
	case err != nil:
		return err
	case link.Copy.after(h.copy):
		return fmt.Errorf("its copy is further, or another one: %w", ErrAhead)
	case h.copy.after(link.Copy):
		return fmt.Errorf("its copy is not as far as it was: %w", lease.ErrRewound)
	case link.Applied.Before(h.applied):
		return fmt.Errorf("it is at %s: %w", link.Applied, lease.ErrRewound)
	}
	return fmt.Errorf("it is at %s: %w", link.Applied, ErrAhead)
}

// Verify checks in a transaction that no writer's lane is before its given position, and
// that the barrier is not before its acknowledged one. Otherwise it returns
// lease.ErrRewound, or lease.ErrFenced if a lane has a newer term. The positions must
// have been acknowledged before the transaction's first statement, so the barrier must
// not move concurrently, except in this transaction.
func (h *Link) Verify(ctx context.Context, txn *mongo.Txn, lanes []Position) error {
	return h.verify(ctx, txn, lanes, h.barrierPosition())
}

func (h *Link) verify(ctx context.Context, txn *mongo.Txn, lanes []Position, barrier Position) error {
	if len(lanes) != len(h.lanes) {
		return fmt.Errorf("find the lanes at their positions: %d positions for %d lanes", len(lanes), len(h.lanes))
	}
	cfg := &h.store.cfg
	reply, err := txn.Call(ctx, lanesCommand(cfg.DB, cfg.Link, len(lanes)))
	if err != nil {
		return fmt.Errorf("read the lanes: %w", lease.Judge(err))
	}
	return h.verifyReply(reply, lanes, barrier)
}

// verifyReply verifies the lanes in the reply to lanesCommand.
func (h *Link) verifyReply(reply bson.Raw, lanes []Position, barrier Position) error {
	docs, err := readLanes(h.store.cfg.Link, len(lanes), reply)
	if err != nil {
		return err
	}
	for i, want := range lanes {
		if err := h.notBefore(&docs[i], want); err != nil {
			return err
		}
	}
	return h.notBefore(&docs[len(lanes)], barrier)
}
