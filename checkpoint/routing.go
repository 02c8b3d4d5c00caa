package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
)

// RoutingError reports that the lanes of a link are apart, and that operations were
// assigned to them by a rule that this program does not implement: the lanes do not show
// which operations are in the target.
type RoutingError struct {
	Link string
	// Recorded is the version of the link's rule, 0 if it was not recorded. Known is
	// the version of this program's rule.
	Recorded, Known int
	// From and To are the result of State.Apart.
	From, To Position
}

func (e *RoutingError) Error() string {
	by := fmt.Sprintf("routing rules %d", e.Recorded)
	if e.Recorded == 0 {
		by = "a release that did not record its routing"
	}
	return fmt.Sprintf("link %q was run with %s, this program has rules %d, and its lanes are apart between %s and %s: "+
		"which operations in between are in the target cannot be told", e.Link, by, e.Known, e.From, e.To)
}

// Apart returns the interval (from, to] of the oplog in which only some lanes have
// applied their operations: whether one of these is in the target depends on its lane,
// and so on the routing that was in effect. Apart is false if the interval is empty.
func (s *State) Apart() (from, to Position, apart bool) {
	from = Position{OpTime: s.Applied, Op: AllOps}
	later := func(p Position) {
		if p.Compare(from) > 0 {
			from = p
		}
	}
	later(s.Barrier)
	if s.Announced != (Position{}) {
		// The command of the barrier has waited for everything before its entry.
		later(Position{OpTime: s.Announced.OpTime, Op: -1})
	}
	for i, p := range s.Lanes {
		if i == 0 || p.Compare(to) < 0 {
			to = p
		}
	}
	if len(s.KeptBack) == 0 {
		later(to) // to is the earliest lane: all lanes have applied everything up to it
	}
	for _, p := range s.Lanes {
		if p.Compare(to) > 0 {
			to = p
		}
	}
	for _, p := range s.LanesAnnounced {
		if p.Compare(to) > 0 {
			to = p
		}
	}
	return from, to, to.Compare(from) > 0
}

// SetRouting records the version of the rule that assigns operations to lanes from now
// on, and upgrades documents of an older format. If the lanes are apart it returns a
// *RoutingError and changes nothing. No lane may be in use.
func (h *Link) SetRouting(ctx context.Context, routing int) error {
	if from, to, apart := h.state.Apart(); apart && (len(h.lanes) > 1 || len(h.state.KeptBack) > 0) {
		return h.store.wrap(&RoutingError{Link: h.store.cfg.Link, Recorded: h.state.Routing, Known: routing, From: from, To: to}, "begin it")
	}
	// A link of an older format may lack the collection.
	if err := h.store.Prepare(ctx); err != nil {
		return err
	}
	return h.locked(ctx, func() error {
		format := func(dst []byte) []byte {
			return metadata.AppendDoc(dst, "$set", func(dst []byte) []byte { return appendFormat(dst, routing, h.state.KeptBack) })
		}
		if err := h.update(ctx, format, func(*mongo.Txn) error { return nil }); err != nil {
			return err
		}
		h.state.Routing = routing
		return nil
	}, "record its routing")
}

// RoutingFew is the version of the rule under which collections may have few lanes: see FewLanes.
// A release that does not know it refuses the link while its lanes are apart, and otherwise
// records its own version. For it, the records of such collections are like those of OneLane,
// and so they are for everyone under its version.
const RoutingFew = 2

// RaiseRouting records a later version of the rule while lanes may be in use. Both versions
// must assign all operations to the same lanes until the record of routes changes. The version
// is majority-committed when RaiseRouting returns. State and Routes of this Link keep the one
// with which it was acquired.
func (h *Link) RaiseRouting(ctx context.Context, routing int) error {
	return h.locked(ctx, func() error {
		return h.update(ctx, func(dst []byte) []byte {
			return metadata.AppendDoc(dst, "$set", func(dst []byte) []byte { return bsoncore.AppendInt32Element(dst, "routing", int32(routing)) })
		}, func(*mongo.Txn) error { return nil })
	}, "raise its routing to %d", routing)
}

// appendFormat appends the versions of the format and of the routing rule.
func appendFormat(dst []byte, routing int, kept []KeptBack) []byte {
	dst = bsoncore.AppendInt32Element(dst, "version", versionOf(kept))
	return bsoncore.AppendInt32Element(dst, "routing", int32(routing))
}

// routeID returns the _id of the document that assigns a collection to one lane.
func routeID(link string, ns oplog.Namespace) string { return link + "/" + string(ns) }

// Routes returns the collections of the target whose operations all go to one lane, as the change
// that has recorded them. Operations of the others go to the lane of their document.
//
// The routes were majority-committed before the lanes were fenced, so read concern local
// is safe. Read concern majority might return older ones on a newly elected primary.
func (h *Link) Routes(ctx context.Context) (Rerouting, error) {
	var routes Rerouting
	cfg := &h.store.cfg
	docs, err := metadata.FindAll(ctx, h.store.patience(), h.store.once, h.txns.ID(), cfg.DB, metadata.Routes, "local", metadata.Below(cfg.Link))
	if err != nil {
		return routes, h.store.wrap(err, "read its routing")
	}
	for _, doc := range docs {
		if err := h.readRoute(doc, &routes); err != nil {
			err := &metadata.DamagedError{Link: cfg.Link, What: fmt.Sprintf("a document of %s: field %v", metadata.Routes, err)}
			return Rerouting{}, h.store.wrap(err, "read its routing")
		}
	}
	return routes, nil
}

// readRoute adds what a document of the routes says.
func (h *Link) readRoute(doc bson.Raw, routes *Rerouting) error {
	r := metadata.NewReader(doc)
	ns := oplog.Namespace(r.Text("ns"))
	few := r.Has("lanes") || r.Has("first")
	if few && h.state.Routing < RoutingFew {
		// Its lanes may have changed their number, too.
		routes.Void = append(routes.Void, ns)
		return r.Err()
	}
	if few {
		lanes, first := r.Int64("lanes"), r.Int64("first")
		n := int64(len(h.lanes))
		switch {
		case r.Err() != nil:
		case lanes < 1 || lanes > n:
			r.Fault("lanes", fmt.Sprintf("from 1 to %d", n))
		case first < 0 || first >= n:
			r.Fault("first", fmt.Sprintf("from 0 to %d", n-1))
		}
		routes.Few = append(routes.Few, FewLanes{NS: ns, Lanes: int(lanes), First: int(first)})
		return r.Err()
	}
	if thin, ok := doc.Lookup("thin").BooleanOK(); ok && thin {
		routes.Thin = append(routes.Thin, ns)
	} else {
		routes.OneLane = append(routes.OneLane, ns)
	}
	return r.Err()
}

// FewLanes is a collection whose operations go to some lanes, by their documents: to Lanes of
// them, First and the following ones. Lane 0 follows the last one.
type FewLanes struct {
	NS           oplog.Namespace
	Lanes, First int
}

// Rerouting is a change of the result of Routes.
type Rerouting struct {
	// OneLane are the collections whose operations go to one lane from now on, ByID
	// those whose operations go to the lanes of their documents again. Thin are like
	// OneLane, for another reason: they have few operations.
	OneLane, ByID, Thin []oplog.Namespace
	// Few are those that have a few lanes from now on. The version of the routing must be
	// RoutingFew.
	Few []FewLanes
	// Void, only in the result of Routes, are recorded to have a few lanes, but under a version
	// without that: their operations go to one lane. Their records have to be removed (ByID)
	// before the version is raised.
	Void []oplog.Namespace
}

// Len returns the number of collections whose routing changes.
func (r *Rerouting) Len() int { return len(r.OneLane) + len(r.ByID) + len(r.Thin) + len(r.Few) }

// Reroute records a change of the routing at the position at, in a transaction of the
// barrier that commits with write concern majority. If at is after the barrier, the
// barrier moves there, and the given positions of the writers' lanes, none of which may be
// after at, are verified as in Announce. Otherwise no operation of these collections may
// lie between at and the barrier.
func (l *Lane) Reroute(ctx context.Context, at Position, lanes []Position, change Rerouting) error {
	moves := at.Compare(l.position) > 0
	if err := l.reroute(ctx, at, moves, lanes, change); err != nil {
		return l.Fail(err, "record another routing of %d collections at %s", change.Len(), at)
	}
	if moves {
		l.Moved(at)
	}
	return nil
}

// errAhead reports that a lane is after the position at which the routing should change.
var errAhead = errors.New("a lane is ahead of where the routing is to change")

func (l *Lane) reroute(ctx context.Context, at Position, moves bool, lanes []Position, change Rerouting) error {
	if l != l.link.barrier {
		return errors.New("only the barrier changes the routing")
	}
	move := lease.AppendCount
	if moves {
		move = l.forward(at)
		for _, p := range lanes {
			if p.Compare(at) > 0 {
				return errAhead
			}
		}
	}
	return l.link.lease.InTxn(ctx, l.session, func(txn *mongo.Txn) error {
		if err := l.change(ctx, txn, move); err != nil {
			return err
		}
		if moves {
			if err := l.link.Verify(ctx, txn, lanes); err != nil {
				return err
			}
		}
		return l.link.store.saveRoutes(ctx, txn, change)
	})
}

func (s *Store) saveRoutes(ctx context.Context, txn *mongo.Txn, change Rerouting) error {
	var add, remove []bson.Raw
	for _, ns := range change.OneLane {
		add = append(add, s.route(ns, nil, "thin", "lanes", "first"))
	}
	for _, ns := range change.Thin {
		add = append(add, s.route(ns, func(dst []byte) []byte {
			return bsoncore.AppendBooleanElement(dst, "thin", true)
		}, "lanes", "first"))
	}
	for _, few := range change.Few {
		add = append(add, s.route(few.NS, func(dst []byte) []byte {
			return bsoncore.AppendInt32Element(bsoncore.AppendInt32Element(dst, "lanes", int32(few.Lanes)), "first", int32(few.First))
		}, "thin"))
	}
	for _, ns := range change.ByID {
		remove = append(remove, metadata.Document(func(dst []byte) []byte {
			dst = metadata.AppendDoc(dst, "q", metadata.ByID(routeID(s.cfg.Link, ns)))
			return bsoncore.AppendInt32Element(dst, "limit", 1)
		}))
	}
	for docs := range metadata.Chunks(slices.Values(add)) {
		err := metadata.Run(ctx, txn, metadata.Write(s.cfg.DB, "update", metadata.Routes, "updates", docs...), int64(len(docs)))
		if err != nil {
			return err
		}
	}
	for docs := range metadata.Chunks(slices.Values(remove)) {
		err := metadata.Run(ctx, txn, metadata.Write(s.cfg.DB, "delete", metadata.Routes, "deletes", docs...), -1)
		if err != nil {
			return err
		}
	}
	return nil
}

// route returns the statement that records the routing of a collection: some fields are set, and
// others removed.
func (s *Store) route(ns oplog.Namespace, set func(dst []byte) []byte, unset ...string) bson.Raw {
	st := metadata.Statement{Filter: metadata.ByID(routeID(s.cfg.Link, ns)), Upsert: true}
	st.Change = func(dst []byte) []byte {
		dst = metadata.AppendDoc(dst, "$set", func(dst []byte) []byte {
			dst = bsoncore.AppendStringElement(dst, "ns", string(ns))
			if set != nil {
				dst = set(dst)
			}
			return dst
		})
		return metadata.AppendDoc(dst, "$unset", func(dst []byte) []byte {
			for _, field := range unset {
				dst = bsoncore.AppendStringElement(dst, field, "")
			}
			return dst
		})
	}
	return st.Doc()
}
