package checkpoint

import (
	"context"
	"fmt"
	"log/slog"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
)

// SetWriters gives the link a number of lanes. No lane may be in use. While its lanes are not all at
// the checkpoint, it changes nothing, and returns the entry up to which they must continue. It
// returns lease.ErrSpent after a change: the link has to be acquired again.
func (h *Link) SetWriters(ctx context.Context, writers int) (until oplog.OpTime, err error) {
	st := h.State()
	if st.Writers == writers {
		return oplog.OpTime{}, nil
	}
	if ahead := st.Furthest(); ahead.After(st.Applied) {
		return ahead, nil
	}
	if err := h.Resize(ctx, st.Progress(), writers); err != nil {
		return oplog.OpTime{}, err
	}
	return oplog.OpTime{}, lease.ErrSpent
}

// Resize changes the number of lanes at the checkpoint cp: exactly the oplog up to cp
// must have been applied. No lane may be in use. The Link is spent afterwards: the caller
// has to acquire it again.
func (h *Link) Resize(ctx context.Context, cp Progress, writers int) error {
	return h.locked(ctx, func() error {
		if writers < 1 || writers > MaxWriters {
			return fmt.Errorf("not between 1 and %d", MaxWriters)
		}
		if err := h.checkProgress(cp); err != nil {
			return err
		}
		if err := h.resize(ctx, cp, writers); err != nil {
			return err
		}
		h.lease.Spend()
		h.store.cfg.Observer.Log(slog.LevelInfo, "number of writers changed", slog.String(keyLink, h.store.cfg.Link),
			slog.Int(keyFrom, len(h.lanes)), slog.Int(keyWriters, writers), slog.String(keyApplied, cp.Applied.String()))
		return nil
	}, "change its writers from %d to %d at %s", len(h.lanes), writers, cp.Applied)
}

func (h *Link) resize(ctx context.Context, cp Progress, writers int) error {
	at := Position{OpTime: cp.Applied, Op: AllOps}
	lanes := make([]Position, len(h.lanes))
	for i, l := range h.all() {
		switch {
		case l.position.Compare(at) > 0:
			return fmt.Errorf("lane %s is at %s already", l.id, l.position)
		case l.announced != (Position{}) && !h.isPassed(i, l, at):
			return fmt.Errorf("lane %s has announced operations up to %s and not completed them", l.id, l.announced)
		case i < len(lanes):
			lanes[i] = l.position
		}
	}
	resized := setCheckpoint(cp, func(dst []byte) []byte {
		return bsoncore.AppendInt32Element(dst, "writers", int32(writers))
	})
	return h.update(ctx, resized, func(txn *mongo.Txn) error {
		if err := h.Verify(ctx, txn, lanes); err != nil {
			return err
		}
		if err := h.dropFew(ctx, txn); err != nil {
			return err
		}
		return h.replaceLanes(ctx, txn, at, writers)
	})
}

// isPassed reports whether what an earlier term had announced in a lane is at the checkpoint or before it. That is so where the term after it
// had left the collection out: it passed over the operations, so nobody completed them.
func (h *Link) isPassed(i int, l *Lane, at Position) bool {
	earlier := h.state.Announced
	if i < len(h.lanes) {
		earlier = h.state.LanesAnnounced[i]
	}
	return l.announced == earlier && earlier.Compare(at) <= 0
}

// dropFew removes the routes of collections with few lanes: there may be fewer lanes than those.
// No operation lies between the positions of the lanes.
func (h *Link) dropFew(ctx context.Context, txn *mongo.Txn) error {
	cfg := &h.store.cfg
	few := func(dst []byte) []byte {
		return metadata.AppendDoc(metadata.Below(cfg.Link)(dst), "lanes", func(dst []byte) []byte {
			return bsoncore.AppendBooleanElement(dst, "$exists", true)
		})
	}
	return metadata.Run(ctx, txn, metadata.Delete(cfg.DB, metadata.Routes, few), -1)
}

// replaceLanes moves the remaining lanes to one position, and removes or adds the
// others.
func (h *Link) replaceLanes(ctx context.Context, txn *mongo.Txn, at Position, writers int) error {
	cfg := &h.store.cfg
	had := len(h.lanes)
	keep := laneIDs(cfg.Link, min(had, writers))
	err := metadata.Run(ctx, txn, metadata.Update(cfg.DB, metadata.Lanes, metadata.Statement{
		Filter: metadata.AnyOf(keep),
		Change: func(dst []byte) []byte {
			dst = metadata.AppendDoc(dst, "$set", func(dst []byte) []byte { return appendPosition(dst, at) })
			return metadata.AppendDoc(dst, "$unset", func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, "begun", "") })
		},
		Multi: true,
	}), int64(len(keep)))
	if err != nil {
		return err
	}
	switch {
	case writers < had:
		gone := laneIDs(cfg.Link, had)[writers:had]
		return metadata.Run(ctx, txn, metadata.Delete(cfg.DB, metadata.Lanes, metadata.AnyOf(gone)), int64(len(gone)))
	case writers > had:
		docs := laneDocs(cfg.Link, had, writers, h.lease.Term(), at)
		insert := metadata.Write(cfg.DB, "insert", metadata.Lanes, "documents", docs...)
		return metadata.Run(ctx, txn, insert, int64(len(docs)))
	}
	return nil
}
