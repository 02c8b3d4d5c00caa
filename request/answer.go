package request

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// LeaveOut sets a request to Copying, and leaves its collection out of the link, from the
// checkpoint at which the lease was acquired. A collection that is left out already keeps
// its Since, and for the same copy its Target. Both changes are majority-committed when LeaveOut returns, before the
// collection's data in the target change.
func (s *Store) LeaveOut(ctx context.Context, link *checkpoint.Link, resync Resync) error {
	target := s.newest(ctx)
	return s.answer(ctx, link, resync.NS, Copying, "", func(list []checkpoint.LeftOut) []checkpoint.LeftOut {
		out, found := find(list, resync.NS)
		if !found {
			st := link.State()
			out = checkpoint.LeftOut{NS: resync.NS, Since: st.Applied, Wall: st.AppliedWall}
		}
		if !found || out.Asked.UnixMilli() != resync.Asked.UnixMilli() {
			out.Asked, out.Target = resync.Asked, target
		}
		out.Failed = ""
		return with(list, out)
	})
}

// newest returns the newest timestamp of the target that a failover does not roll back, zero if the target
// does not show its oplog. Writes up to it precede a copy that begins after the call.
func (s *Store) newest(ctx context.Context) bson.Timestamp {
	e, err := replset.NewestEntry(ctx, s.target, replset.Majority)
	if err != nil {
		return bson.Timestamp{} // The guard then takes writes made before the copy for writes made during it.
	}
	return e.OpTime.TS
}

// Answer sets the state of a request. It does not restore a removed request. With Done
// the link has the collection again, unless another copy was requested meanwhile; with
// Failed the collection stays left out.
func (s *Store) Answer(ctx context.Context, link *checkpoint.Link, ns oplog.Namespace, state, why string) error {
	return s.answer(ctx, link, ns, state, why, func(list []checkpoint.LeftOut) []checkpoint.LeftOut {
		out, found := find(list, ns)
		switch {
		case found && state == Done:
			return without(list, ns)
		case found && state == Failed:
			out.Failed = cmp.Or(why, "for a reason that is not known")
			return with(list, out)
		}
		return list
	})
}

// answer sets the state of a request, and changes the list leftOut of the link, in one
// transaction.
func (s *Store) answer(ctx context.Context, link *checkpoint.Link, ns oplog.Namespace, state, why string, change func([]checkpoint.LeftOut) []checkpoint.LeftOut) error {
	if !validState(state) {
		return s.wrap(errors.New("not a state of a request"), "set the request to copy %s again to %q", ns, state)
	}
	err := link.ChangeLeftOut(ctx, func(txn mongo.Caller, was []checkpoint.LeftOut) ([]checkpoint.LeftOut, error) {
		list := change(was)
		if out, left := find(was, ns); left && state == Done {
			if err := checkpoint.TakeDiverged(ctx, txn, s.db, s.link, ns.Series()); err != nil {
				return nil, err
			}
			again, err := s.isAskedAgain(ctx, txn, ns)
			if err != nil {
				return nil, err
			}
			if again {
				// The data in the target may be damaged, so the collection stays left out
				// until it was copied once more.
				list = with(was, out)
			}
		}
		return list, metadata.Run(ctx, txn, metadata.Update(s.db, metadata.Requests, s.changes(ns, state, why)...), -1)
	})
	if err != nil {
		return s.wrap(err, "set the request to copy %s again to %q", ns, state)
	}
	return nil
}

// isAskedAgain reports whether a collection is to be copied once more.
func (s *Store) isAskedAgain(ctx context.Context, txn mongo.Caller, ns oplog.Namespace) (bool, error) {
	doc, err := metadata.FindOne(ctx, txn, s.db, metadata.Requests, metadata.ByID(s.id(ns)), againField)
	if err != nil || doc == nil {
		return false, err
	}
	again, _ := rawbson.Lookup(doc, againField)
	return again.Truth(), nil
}

// changes returns the updates that set the state of a request. A request that ends, and
// was made again meanwhile, becomes Asked.
func (s *Store) changes(ns oplog.Namespace, state, why string) []metadata.Statement {
	list := []metadata.Statement{{
		Filter: metadata.ByID(s.id(ns)),
		Change: func(dst []byte) []byte {
			return metadata.AppendDoc(dst, "$set", func(dst []byte) []byte {
				dst = bsoncore.AppendStringElement(dst, "state", state)
				return bsoncore.AppendStringElement(dst, "why", why)
			})
		},
	}}
	if state != Done && state != Failed {
		return list
	}
	return append(list, metadata.Statement{
		Filter: func(dst []byte) []byte {
			return bsoncore.AppendBooleanElement(metadata.ByID(s.id(ns))(dst), againField, true)
		},
		Change: func(dst []byte) []byte {
			dst = metadata.AppendDoc(dst, "$set", func(dst []byte) []byte {
				dst = bsoncore.AppendDateTimeElement(dst, "asked", time.Now().UnixMilli())
				return bsoncore.AppendStringElement(dst, "state", Asked)
			})
			return metadata.AppendDoc(dst, "$unset", func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, againField, "") })
		},
	})
}

// with returns list with out in place of the element for the same collection.
func with(list []checkpoint.LeftOut, out checkpoint.LeftOut) []checkpoint.LeftOut {
	list = append(without(list, out.NS), out)
	slices.SortFunc(list, func(a, b checkpoint.LeftOut) int { return cmp.Compare(a.NS, b.NS) })
	return list
}

// without returns list without a collection.
func without(list []checkpoint.LeftOut, ns oplog.Namespace) []checkpoint.LeftOut {
	return slices.DeleteFunc(slices.Clone(list), func(o checkpoint.LeftOut) bool { return o.NS == ns })
}

// find returns the element of list for a collection.
func find(list []checkpoint.LeftOut, ns oplog.Namespace) (checkpoint.LeftOut, bool) {
	i := slices.IndexFunc(list, func(o checkpoint.LeftOut) bool { return o.NS == ns })
	if i < 0 {
		return checkpoint.LeftOut{}, false
	}
	return list[i], true
}
