package checkpoint

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
)

// RoutingError is a link whose lanes are apart, and whose operations were given to
// lanes by rules that this program does not follow: which of them are in the target
// cannot be told from the lanes.
type RoutingError struct {
	Link string
	// Recorded is the version of the rules that the link was run with, 0 where they
	// were not recorded. Known is this program's.
	Recorded, Known int
	// From and To are where the lanes are apart.
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

// Apart returns where the lanes are apart: an operation after from, up to to, is in
// the target if its lane has come so far, and which lane that is follows from the
// routing of then. It is false where no lane is ahead of what is in the target in any
// case.
func (s *State) Apart() (from, to Position, apart bool) {
	from = Position{OpTime: s.Applied, Op: AllOps}
	later := func(p Position) {
		if p.Compare(from) > 0 {
			from = p
		}
	}
	later(s.Barrier)
	if s.Begun != (Position{}) {
		// What was begun alone had waited for everything before its entry.
		later(Position{OpTime: s.Begun.OpTime, Op: -1})
	}
	for i, p := range s.Lanes {
		if i == 0 || p.Compare(to) < 0 {
			to = p
		}
	}
	later(to) // what is not after the last lane is not after any
	for _, p := range s.Lanes {
		if p.Compare(to) > 0 {
			to = p
		}
	}
	for _, p := range s.LanesBegun {
		if p.Compare(to) > 0 {
			to = p
		}
	}
	return from, to, to.Compare(from) > 0
}

// SetRouting records by which rules operations are given to lanes from now on, and
// brings documents of an older format to the present one. Where the lanes are apart
// it is a *RoutingError, and nothing is changed. No lane may be in use.
func (h *Link) SetRouting(ctx context.Context, routing int) error {
	if from, to, apart := h.state.Apart(); apart && len(h.lanes) > 1 {
		return h.store.wrap(&RoutingError{Link: h.store.cfg.Link, Recorded: h.state.Routing, Known: routing, From: from, To: to}, "begin it")
	}
	// A link of an older format may have been made without the collection.
	if err := h.store.Prepare(ctx); err != nil {
		return err
	}
	return h.locked(ctx, func() error {
		format := func(dst []byte) []byte {
			return metadata.AppendDoc(dst, "$set", func(dst []byte) []byte { return appendFormat(dst, routing) })
		}
		if err := h.update(ctx, format, func(*mongo.Txn) error { return nil }); err != nil {
			return err
		}
		h.state.Routing = routing
		return nil
	}, "record its routing")
}

// appendFormat appends what says how a link's documents are to be read.
func appendFormat(dst []byte, routing int) []byte {
	dst = bsoncore.AppendInt32Element(dst, "version", Version)
	return bsoncore.AppendInt32Element(dst, "routing", int32(routing))
}

// routeID returns the _id of what says that a collection has one lane.
func routeID(link string, ns oplog.Namespace) string { return link + "/" + string(ns) }

// OneLane returns the collections of the target all of whose operations go to one
// lane, as it was recorded last. The others' go to that of their document.
//
// What was recorded before the lanes were fenced is committed by a majority, so it is
// read as the primary has it: one that was elected meanwhile may show less to who
// asks for what a majority has.
func (h *Link) OneLane(ctx context.Context) ([]oplog.Namespace, error) {
	cfg := &h.store.cfg
	var names []oplog.Namespace
	all := metadata.Below(cfg.Link)
	err := h.store.readAll(ctx, h.txns.ID(), metadata.Routes, "local", all, func(doc bson.Raw) error {
		r := metadata.NewReader(doc)
		ns := oplog.Namespace(r.Text("ns"))
		if r.Err() != nil {
			return &metadata.DamagedError{Link: cfg.Link, What: fmt.Sprintf("a document of %s: field %v", metadata.Routes, r.Err())}
		}
		names = append(names, ns)
		return nil
	})
	if err != nil {
		return nil, h.store.wrap(err, "read its routing")
	}
	return names, nil
}

// Rerouting is a change of what OneLane returns.
type Rerouting struct {
	// OneLane are collections that have one lane from now on, ByID those that have
	// not any more.
	OneLane, ByID []oplog.Namespace
}

// Reroute records, with majority, a change of the routing, in a transaction of the
// barrier. No operation of these collections may be between at and the barrier: or,
// where at is behind the barrier, it moves there, and finds the writers' lanes at the
// positions that are given, as BeginAlone does. None of those may be ahead of at.
func (l *Lane) Reroute(ctx context.Context, at Position, lanes []Position, change Rerouting) error {
	moves := at.Compare(l.position) > 0
	if err := l.reroute(ctx, at, moves, lanes, change); err != nil {
		return l.Fail(err, "record another routing of %d collections at %s", len(change.OneLane)+len(change.ByID), at)
	}
	if moves {
		l.Moved(at)
	}
	return nil
}

// errAhead is a routing that is to be changed where a lane has been already.
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
	add := func(yield func(bson.Raw) bool) {
		for _, ns := range change.OneLane {
			doc := metadata.Insertion(routeID(s.cfg.Link, ns), func(dst []byte) []byte {
				return bsoncore.AppendStringElement(dst, "ns", string(ns))
			})
			if !yield(doc) {
				return
			}
		}
	}
	for docs := range metadata.Chunks(add) {
		err := metadata.Run(ctx, txn, metadata.Write(s.cfg.DB, "update", metadata.Routes, "updates", docs...), int64(len(docs)))
		if err != nil {
			return err
		}
	}
	remove := func(yield func(bson.Raw) bool) {
		for _, ns := range change.ByID {
			doc := metadata.Document(func(dst []byte) []byte {
				dst = metadata.AppendDoc(dst, "q", metadata.ByID(routeID(s.cfg.Link, ns)))
				return bsoncore.AppendInt32Element(dst, "limit", 1)
			})
			if !yield(doc) {
				return
			}
		}
	}
	for docs := range metadata.Chunks(remove) {
		err := metadata.Run(ctx, txn, metadata.Write(s.cfg.DB, "delete", metadata.Routes, "deletes", docs...), -1)
		if err != nil {
			return err
		}
	}
	return nil
}
