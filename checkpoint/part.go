package checkpoint

import (
	"context"
	"slices"
	"time"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
)

// CreatePart creates the link of a part of this one in the state first, as Create does: to copy a collection that is left out, for the
// request of a time. The transaction also updates the document of this link under its term. So a process that was
// suspended cannot create the part once another process has acquired the lease, which may have copied the collection and removed
// the part: the new part would have a lease of its own, under which nothing keeps its process from dropping the collection.
//
// The error is ErrNotLeftOut if the link does not leave out the collection for that request (any more), ErrExists if the part exists,
// and otherwise as for Within.
func (h *Link) CreatePart(ctx context.Context, part *Store, ns oplog.Namespace, asked time.Time, first State) error {
	return part.createWithin(ctx, first, func(link *linkDoc) error {
		return h.store.patience().Do(ctx, func() error {
			unlock, err := h.lease.Lock(ctx)
			if err != nil {
				return err
			}
			defer unlock()
			if !h.leavesOut(ns, asked) {
				return ErrNotLeftOut
			}
			return lease.Judge(h.txns.InTxn(ctx, true, func(txn *mongo.Txn) error {
				if err := part.create(ctx, txn, link, 0); err != nil {
					return err
				}
				return h.changeLink(ctx, txn, nothing) // last, as in Within
			}))
		})
	})
}

// leavesOut reports whether a collection is left out while it is copied for the request of a time. The lease is locked.
func (h *Link) leavesOut(ns oplog.Namespace, asked time.Time) bool {
	return slices.ContainsFunc(h.leftOut, func(out LeftOut) bool {
		return out.NS == ns && out.Failed == "" && out.Asked.UnixMilli() == asked.UnixMilli()
	})
}
