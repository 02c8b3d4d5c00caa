package applier

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/oplog"
)

// Routing is the version of the rules that assign an operation to a lane, given whether
// its collection has one lane: the hashes of namespaces and _ids, their input, the
// remainder by the number of lanes, and the numbering of operations inside an entry. It
// is recorded in the link's document, and must be raised with any change of these rules:
// see TestRoutingIsStable.
const Routing = 1

// KnowsRouting reports whether an applier can continue a link with this version of the rules.
// Version 1 with recorded few lanes is version 2: see fewlanes.go.
func KnowsRouting(version int) bool { return version == Routing || version == checkpoint.RoutingFew }

// routes caches the targets and lanes of namespaces, until a command changes the catalog.
//
// Whether a collection has one lane is decided by the record in the metadata, not by the
// current catalog: only then does an attempt know which lane's position shows whether an
// operation is in the target. The record may follow the catalog only where none of the
// collection's operations is between those known to be in the target and the first one
// that is routed in the new way. That holds for every collection first seen after the
// start or after a command, unless the lanes were apart at the start. As long as they
// are, the record stays (frozen); afterwards it is changed after a barrier, if necessary
// (thaw).
type routes struct {
	a     *Applier
	known map[oplog.Namespace]*route
	last  *route
	// emptied counts how often the cache was emptied.
	emptied uint32
	// oneLane are the collections of the target with one lane, according to the record.
	oneLane map[oplog.Namespace]bool
	// thin are those of them that have one lane because they have few operations, not
	// because their order requires it.
	thin map[oplog.Namespace]bool
	// few are those with a few lanes, according to the record; raised: it may have such.
	few    map[oplog.Namespace]fewLanes
	raised bool
	// void are those that must not have a record of lanes before it is raised.
	void []oplog.Namespace
	// frozen: the lanes were apart at the start, up to until, and the log has not passed
	// that.
	frozen bool
	until  checkpoint.Position
	// kept are the collections of the target that are kept back, according to the record:
	// see backlog.
	kept map[oplog.Namespace]checkpoint.Position
	// turn is 1 plus the lane of the last operation that was inTurn, 0 for none.
	turn int
}

// route has the fields that the dispatcher reads for each operation in its first cache line,
// the collection's among them.
type route struct {
	source     oplog.Namespace // not a view into other memory
	target     oplog.Namespace
	collection *catalog.Collection // nil where it does not exist
	seed       uint32              // for the hashes of its documents
	// emptied is routes.emptied when it was looked up: as long as they are equal, it is the one
	// in the cache.
	emptied uint32
	// isCollection: it exists, and is no view. ordered and direct are its own.
	inScope, isCollection, ordered, direct bool
	oneLane, thin                          bool // thin: see routes
	// inTurn: the catalog requires one lane, and the frozen record has several.
	inTurn bool
	// kept: operations after since are kept back.
	kept bool
	// few are its lanes, if it has neither one nor all.
	few   fewLanes
	since checkpoint.Position
	// The fields below change with each operation, and lanes read those above: they have a
	// cache line of their own.
	_ [64]byte
	// ops counts its operations during the comparison of shares with this number.
	ops, comparison int
}

// maxRoutes limits the cache.
const maxRoutes = 50_000

func (r *routes) init(a *Applier) {
	r.a = a
	st := a.link.State()
	_, r.until, r.frozen = st.Apart()
	r.raised = st.Routing >= checkpoint.RoutingFew
	r.kept = make(map[oplog.Namespace]checkpoint.Position, len(st.KeptBack))
	for _, k := range st.KeptBack {
		r.kept[k.NS] = k.Since
	}
	r.frozen = r.frozen && (len(a.writers) > 1 || len(r.kept) > 0)
	r.forget()
}

// areAhead reports whether a lane was ahead of last at the start.
func (r *routes) areAhead(last oplog.OpTime) bool { return last.Before(r.until.OpTime) }

// load reads the record.
func (r *routes) load(ctx context.Context) error {
	recorded, err := r.a.link.Routes(ctx)
	if err != nil {
		return err
	}
	r.oneLane, r.thin, r.few = make(map[oplog.Namespace]bool, recorded.Len()), map[oplog.Namespace]bool{}, map[oplog.Namespace]fewLanes{}
	r.changed(recorded)
	for _, ns := range recorded.Void {
		r.oneLane[ns] = true
	}
	r.void = recorded.Void
	return nil
}

// changed records a change in memory.
func (r *routes) changed(change checkpoint.Rerouting) {
	for _, ns := range change.OneLane {
		r.oneLane[ns] = true
		delete(r.thin, ns)
		delete(r.few, ns)
	}
	for _, ns := range change.Thin {
		r.oneLane[ns], r.thin[ns] = true, true
		delete(r.few, ns)
	}
	for _, few := range change.Few {
		r.few[few.NS] = fewLanes{n: uint32(few.Lanes), first: uint32(few.First)} //nolint:gosec // at most MaxWriters
		delete(r.oneLane, few.NS)
		delete(r.thin, few.NS)
	}
	for _, ns := range change.ByID {
		delete(r.oneLane, ns)
		delete(r.thin, ns)
		delete(r.few, ns)
	}
}

// forget empties the cache, because the catalog or the record has changed.
func (r *routes) forget() {
	r.known, r.last = make(map[oplog.Namespace]*route), nil
	r.emptied++
}

// isKnown reports whether a route is the one in the cache.
func (r *routes) isKnown(to *route) bool { return to.emptied == r.emptied }

func (r *routes) of(ctx context.Context, d *dispatcher, ns oplog.Namespace) (*route, error) {
	if r.last != nil && ns == r.last.source {
		return r.last, nil
	}
	to, ok := r.known[ns]
	if !ok {
		var err error
		if to, err = r.find(ctx, d, ns.Clone()); err != nil {
			return nil, err
		}
		if len(r.known) >= maxRoutes {
			r.forget()
		}
		r.known[to.source] = to
		to.emptied = r.emptied
	}
	r.last = to
	return to, nil
}

func (r *routes) find(ctx context.Context, d *dispatcher, ns oplog.Namespace) (*route, error) {
	target, ok := r.a.cfg.Scope.Target(ns)
	if !ok {
		return &route{source: ns}, nil
	}
	to := &route{source: ns, inScope: true, target: target.Clone(), seed: oplog.HashNamespace(target)}
	var err error
	to.collection, _, err = r.a.cfg.Catalog.Get(ctx, to.target)
	if err != nil {
		return nil, fmt.Errorf("look up %s in the target's catalog: %w", target, err)
	}
	to.since, to.kept = r.kept[to.target]
	if c := to.collection; c != nil {
		to.isCollection, to.ordered, to.direct = c.Type == catalog.TypeCollection, c.Ordered, c.Direct
	}
	if to.isCollection && to.ordered != r.oneLane[to.target] && !r.thin[to.target] {
		if r.frozen {
			to.inTurn = to.ordered
		} else if to.kept {
			// Its routing may change once it is not kept back any more.
		} else if err := d.reroute(ctx, checkpoint.Position{}, r.differences()); err != nil {
			return nil, err
		}
	}
	to.oneLane, to.thin, to.few = r.oneLane[to.target], r.thin[to.target], r.few[to.target]
	return to, nil
}

// differences returns the changes that make the record equal to the catalog, as far as
// that was read: for all collections, not only for the one that was looked up. That is
// correct only where none of their operations is between those in the target and those
// routed in the new way. It holds because the catalog changes only in commands, each
// with a barrier, and when a database is first read, before anything of it was handed
// out. Anything else that refreshes the catalog while operations are in flight must first
// wait for them, as a command does.
func (r *routes) differences() checkpoint.Rerouting {
	colls, dbs := r.a.cfg.Catalog.Known()
	var change checkpoint.Rerouting
	stays, there := map[oplog.Namespace]bool{}, map[oplog.Namespace]bool{}
	for _, c := range colls {
		_, kept := r.kept[c.NS]
		there[c.NS] = kept || c.Type == catalog.TypeCollection
		if !kept && (c.Type != catalog.TypeCollection || !c.Ordered && !r.thin[c.NS]) {
			continue
		}
		stays[c.NS] = true
		if kept {
			continue // its routing stays as long as operations of it may be kept back
		}
		if !r.oneLane[c.NS] {
			change.OneLane = append(change.OneLane, c.NS)
		}
	}
	read := make(map[string]bool, len(dbs))
	for _, db := range dbs {
		read[db] = true
	}
	for ns := range r.oneLane {
		if !stays[ns] && read[ns.DB()] {
			change.ByID = append(change.ByID, ns)
		}
	}
	for ns := range r.few {
		if !there[ns] && read[ns.DB()] {
			change.ByID = append(change.ByID, ns)
		}
	}
	return change
}

// thaw ends the time in which the record stays, once the log up to where the lanes were
// apart was handed out. Differences to the catalog are recorded after a barrier, when
// everything up to there is in the target, in whichever lane.
func (d *dispatcher) thaw(ctx context.Context) error {
	r := &d.routes
	if !r.frozen || r.areAhead(d.last) || len(r.kept) > 0 {
		return nil // the backlog ends in the same way: see rejoin
	}
	r.frozen, r.turn = false, 0
	r.forget()
	change := r.differences()
	if change.Len() == 0 {
		return nil
	}
	return d.rerouteHere(ctx, change)
}

// rerouteHere records a change of the routing after a barrier, when everything that was
// handed out is in the target, in whichever lane.
func (d *dispatcher) rerouteHere(ctx context.Context, change checkpoint.Rerouting) error {
	if err := d.quiesce(ctx, d.last); err != nil {
		return err
	}
	return d.reroute(ctx, checkpoint.Position{OpTime: d.last, Op: checkpoint.AllOps}, change)
}

// rerouted is the message about a change of the routing.
const rerouted = "collections go through other lanes from here on"

// reroute records a change of the routing. If at is after the barrier, the barrier
// moves there.
func (d *dispatcher) reroute(ctx context.Context, at checkpoint.Position, change checkpoint.Rerouting) error {
	s := span{ops: []plan.Op{{At: checkpoint.Position{OpTime: d.last, Op: checkpoint.AllOps}}}}
	for tries := d.barrier.tries(&s); ; {
		err := d.barrier.lane.Reroute(ctx, at, d.tracker.positions(), change)
		if err == nil {
			break
		}
		if err := tries.wait(ctx, err); err != nil {
			return err
		}
	}
	d.raiseFloor(at)
	d.routes.changed(change)
	if change.Len() == 0 {
		return nil
	}
	d.cfg.Observer.Log(slog.LevelInfo, rerouted, slog.Int(keyOneLane, len(change.OneLane)+len(change.Thin)),
		slog.Int(keyFew, len(change.Few)), slog.Int(keyByID, len(change.ByID)),
		slog.String(keyNS, someOf(slices.Concat(change.OneLane, change.Thin, namesOf(change.Few)), change.ByID)))
	return nil
}

// inTurn keeps the log's order for an operation whose collection requires it and still
// has several lanes: before the lane changes, everything that was handed out is in the
// target.
func (d *dispatcher) inTurn(ctx context.Context, o *routed) error {
	if !o.inTurn || d.routes.turn == o.lane+1 || d.isCrossed(o.op.at.OpTime) {
		return nil
	}
	d.routes.turn = o.lane + 1
	return d.quiesceLanes(ctx, o.op.at.OpTime) // nothing of it is kept back
}
