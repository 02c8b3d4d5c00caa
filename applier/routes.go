package applier

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/oplog"
)

// Routing is the version of the rules that give an operation to a lane, once it is
// known whether its collection has one lane: the hashes of namespaces and _ids, what
// is hashed, the remainder by the number of lanes, and the counting of operations
// inside of an entry. It is recorded in the link's document, and has to be raised
// with any change of these rules: see TestRoutingIsStable.
const Routing = 1

// routes remembers where namespaces go, until a command changes the catalog.
//
// Whether a collection has one lane is not what the catalog says at the moment, but
// what is recorded in the metadata: only so an attempt knows by which lane's position
// to report whether an operation is in the target. The record is changed to what the
// catalog says where no operation of the collection is between what is in the target
// in any case and the first one that is to go the new way. That is so for every
// collection that is first met since the start, or since a command, unless the lanes
// were apart then. As long as they are, the record stays (frozen); after that it is
// changed after a barrier, if need be (thaw).
type routes struct {
	a     *Applier
	known map[oplog.Namespace]*route
	last  *route
	// oneLane are the collections of the target that are recorded to have one lane.
	oneLane map[oplog.Namespace]bool
	// frozen: the lanes were apart at the start, up to until, and the log has not
	// come past that.
	frozen bool
	until  checkpoint.Position
	// turn is 1 and the lane that had the last operation that was inTurn, 0 for none.
	turn int
}

type route struct {
	source     oplog.Namespace // no view
	inScope    bool
	target     oplog.Namespace
	collection *catalog.Collection // nil where it does not exist
	seed       uint32              // of the hashes of its documents
	oneLane    bool
	// inTurn: the catalog asks for one lane, and the record is frozen without it.
	inTurn bool
}

// maxRoutes bounds what is remembered.
const maxRoutes = 50_000

func (r *routes) init(a *Applier) {
	r.a = a
	st := a.link.State()
	_, r.until, r.frozen = st.Apart()
	r.frozen = r.frozen && len(a.writers) > 1
	r.forget()
}

// load reads what is recorded.
func (r *routes) load(ctx context.Context) error {
	names, err := r.a.link.OneLane(ctx)
	if err != nil {
		return err
	}
	r.oneLane = make(map[oplog.Namespace]bool, len(names))
	for _, ns := range names {
		r.oneLane[ns] = true
	}
	return nil
}

// forget is for when the catalog, or the record, has changed.
func (r *routes) forget() {
	r.known, r.last = make(map[oplog.Namespace]*route), nil
}

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
	if c := to.collection; c != nil && c.Type == catalog.TypeCollection && c.Ordered != r.oneLane[to.target] {
		if r.frozen {
			to.inTurn = c.Ordered
		} else if err := d.reroute(ctx, checkpoint.Position{}, r.differences()); err != nil {
			return nil, err
		}
	}
	to.oneLane = r.oneLane[to.target]
	return to, nil
}

// differences is what is to be recorded for the record to be what the catalog says,
// as far as that was read: of all collections, not only of the one that was looked up.
// That is right only where nothing of any of them is between what is in the target and
// what is to go the new way. It is so because the catalog changes in commands alone, of
// which each is alone (barrier), and by being read for the first time, before anything
// of that database was handed out. Whatever else is to refresh the catalog while
// operations are on their way has to wait for them first, as a command does.
func (r *routes) differences() checkpoint.Rerouting {
	colls, dbs := r.a.cfg.Catalog.Known()
	var change checkpoint.Rerouting
	ordered := map[oplog.Namespace]bool{}
	for _, c := range colls {
		if c.Type != catalog.TypeCollection || !c.Ordered {
			continue
		}
		ordered[c.NS] = true
		if !r.oneLane[c.NS] {
			change.OneLane = append(change.OneLane, c.NS)
		}
	}
	read := make(map[string]bool, len(dbs))
	for _, db := range dbs {
		read[db] = true
	}
	for ns := range r.oneLane {
		if !ordered[ns] && read[ns.DB()] {
			change.ByID = append(change.ByID, ns)
		}
	}
	return change
}

// thaw ends the time in which the record stays, once all of the log up to where the
// lanes were apart was handed out. What the catalog says otherwise is recorded after
// a barrier: everything up to there is in the target then, whatever its lane.
func (d *dispatcher) thaw(ctx context.Context) error {
	r := &d.routes
	if !r.frozen || d.last.Before(r.until.OpTime) {
		return nil
	}
	r.frozen, r.turn = false, 0
	r.forget()
	change := r.differences()
	if len(change.OneLane) == 0 && len(change.ByID) == 0 {
		return nil
	}
	if err := d.quiesce(ctx, d.last); err != nil {
		return err
	}
	return d.reroute(ctx, checkpoint.Position{OpTime: d.last, Op: checkpoint.AllOps}, change)
}

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
	d.rise(at)
	for _, ns := range change.OneLane {
		d.routes.oneLane[ns] = true
	}
	for _, ns := range change.ByID {
		delete(d.routes.oneLane, ns)
	}
	d.cfg.Observer.Log(slog.LevelInfo, "collections go through other lanes from here on", slog.Int(keyOneLane, len(change.OneLane)),
		slog.Int(keyByID, len(change.ByID)), slog.String(keyNS, someOf(change.OneLane, change.ByID)))
	return nil
}

// inTurn keeps the log's order for an operation whose collection asks for it and has
// several lanes still: nothing of it is handed out before everything else is in the
// target, but to one lane.
func (d *dispatcher) inTurn(ctx context.Context, o *routed) error {
	if !o.inTurn || d.routes.turn == o.lane+1 || d.isCrossed(o.op.At.OpTime) {
		return nil
	}
	d.routes.turn = o.lane + 1
	return d.quiesce(ctx, o.op.At.OpTime)
}
