package checkpoint

import (
	"context"
	"slices"
	"strconv"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// LeftOut is a collection that a link leaves out while it is copied again: the link
// does not apply the oplog to it, and its data in the target are not valid.
type LeftOut struct {
	NS oplog.Namespace
	// Since is the checkpoint up to which the link applied the oplog to it, Wall that
	// entry's wall time in milliseconds since the epoch.
	Since oplog.OpTime
	Wall  int64
	// Asked is when the resync was requested. Target is a timestamp of the target's oplog, at which
	// nothing of that copy had been read or written; zero if it is not known.
	Asked  time.Time
	Target bson.Timestamp
	// Failed is the reason why it could not be copied, empty if it has not failed. A
	// failed collection stays left out until it is requested again.
	Failed string
}

// Gaps are the differences between the target and the source at a link's position.
type Gaps struct {
	// CopiedUntil is the optime from which the target is consistent. Null if it always
	// was.
	CopiedUntil oplog.OpTime
	// Copying reports that the link's copy is not known to be consistent, whatever
	// was applied to it.
	Copying bool
	// LeftOut are the collections that are left out, sorted by name. The slice is
	// replaced and never modified.
	LeftOut []LeftOut
}

// Reached returns p with the optimes up to which everything that the link mirrors is in
// the target. They are null while the copy is not consistent, and while a collection is
// left out from before it was. FetchFrom and Ops do not change: they concern the oplog.
//
// All code that reports a position (to the source, to operators, as metrics) must
// report the one that Reached returns.
func (g *Gaps) Reached(p Progress) Progress {
	for i := range g.LeftOut {
		out := &g.LeftOut[i]
		if out.Since.Before(p.Applied) {
			p.Applied, p.AppliedWall = out.Since, out.Wall
		}
		if out.Since.Before(p.Durable) {
			p.Durable, p.DurableWall = out.Since, out.Wall
		}
	}
	if g.Copying || p.Applied.Before(g.CopiedUntil) {
		p.Applied, p.AppliedWall = oplog.OpTime{}, 0
	}
	if g.Copying || p.Durable.Before(g.CopiedUntil) {
		p.Durable, p.DurableWall = oplog.OpTime{}, 0
	}
	return p
}

// Gaps returns the gaps that the link's document records.
func (s *State) Gaps() Gaps {
	return gapsOf(s.CopiedUntil, s.Copy, s.LeftOut)
}

func gapsOf(copiedUntil oplog.OpTime, c *Copy, out []LeftOut) Gaps {
	g := Gaps{CopiedUntil: copiedUntil, LeftOut: out}
	if c != nil {
		g.Copying, g.CopiedUntil = c.Phase != Copied, c.Stop
	}
	return g
}

// Progress returns the progress as of the checkpoint, which is durable.
func (s *State) Progress() Progress {
	return Progress{
		Applied: s.Applied, AppliedWall: s.AppliedWall, FetchFrom: s.FetchFrom,
		Durable: s.Applied, DurableWall: s.AppliedWall,
	}
}

// Reached returns the checkpoint to report: see Gaps.Reached.
func (s *State) Reached() Progress {
	gaps := s.Gaps()
	return gaps.Reached(s.Progress())
}

// Gaps returns the gaps as of this Link's last change.
func (h *Link) Gaps() Gaps {
	h.mu.Lock()
	defer h.mu.Unlock()
	return gapsOf(h.state.CopiedUntil, h.copy, h.leftOut)
}

// ChangeLeftOut replaces the list of the collections that the link leaves out by the
// result of change, in a transaction in which change may write, too. Change may be called
// more than once, and must not modify its argument. The transaction is majority-committed
// when ChangeLeftOut returns.
func (h *Link) ChangeLeftOut(ctx context.Context, change func(txn mongo.Caller, list []LeftOut) ([]LeftOut, error)) error {
	return h.locked(ctx, func() error {
		var list []LeftOut
		err := h.lease.InTxn(ctx, h.txns, func(txn *mongo.Txn) (err error) {
			if list, err = change(txn, h.leftOut); err != nil {
				return err
			}
			return h.changeLink(ctx, txn, func(dst []byte) []byte {
				if slices.Equal(list, h.leftOut) {
					return dst
				}
				return changeLeftOut(dst, h.copy, list)
			})
		})
		if err != nil {
			return err
		}
		h.mu.Lock()
		h.leftOut = list
		h.mu.Unlock()
		return nil
	}, "change what it leaves out")
}

// changeLeftOut appends the update that replaces the list of a link's document.
func changeLeftOut(dst []byte, c *Copy, list []LeftOut) []byte {
	consistent := len(list) == 0 && (c == nil || c.Phase == Copied)
	if len(list) > 0 || c != nil {
		dst = metadata.AppendDoc(dst, "$set", func(dst []byte) []byte {
			if len(list) > 0 {
				dst = appendLeftOut(dst, list)
			}
			return bsoncore.AppendBooleanElement(dst, "consistent", consistent)
		})
	}
	if len(list) > 0 {
		return dst
	}
	return metadata.AppendDoc(dst, "$unset", func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, "leftOut", "")
		if c == nil {
			dst = bsoncore.AppendStringElement(dst, "consistent", "")
		}
		return dst
	})
}

func appendLeftOut(dst []byte, list []LeftOut) []byte {
	i, dst := bsoncore.AppendArrayElementStart(dst, "leftOut")
	for j := range list {
		out := &list[j]
		dst = metadata.AppendDoc(dst, strconv.Itoa(j), func(dst []byte) []byte {
			dst = bsoncore.AppendStringElement(dst, "ns", string(out.NS))
			dst = metadata.AppendOpTime(dst, "since", out.Since)
			dst = bsoncore.AppendDateTimeElement(dst, "wall", out.Wall)
			dst = bsoncore.AppendDateTimeElement(dst, "asked", out.Asked.UnixMilli())
			if !out.Target.IsZero() {
				dst = bsoncore.AppendTimestampElement(dst, "target", out.Target.T, out.Target.I)
			}
			return bsoncore.AppendStringElement(dst, "failed", out.Failed)
		})
	}
	return metadata.CloseDoc(dst, i)
}

// readLeftOut reads the collections that a link leaves out.
func readLeftOut(r *metadata.Reader) []LeftOut {
	if !r.Has("leftOut") {
		return nil
	}
	var list []LeftOut
	r.Docs("leftOut", func(sub *metadata.Reader) {
		out := LeftOut{
			NS: oplog.Namespace(sub.Text("ns")), Since: sub.OpTime("since", false), Wall: sub.Date("wall"),
			Asked: time.UnixMilli(sub.Date("asked")).UTC(), Failed: sub.Text("failed"),
		}
		if sub.Has("target") {
			out.Target = sub.Timestamp("target")
		}
		list = append(list, out)
	})
	return list
}
