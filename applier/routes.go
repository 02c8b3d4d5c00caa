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

// Routing is the version of the rules that assign an operation to a lane, given whether
// its collection has one lane: the hashes of namespaces and _ids, their input, the
// remainder by the number of lanes, and the numbering of operations inside an entry. It
// is recorded in the link's document, and must be raised with any change of these rules:
// see TestRoutingIsStable.
const Routing = 1

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
	// oneLane are the collections of the target with one lane, according to the record.
	oneLane map[oplog.Namespace]bool
	// frozen: the lanes were apart at the start, up to until, and the log has not passed
	// that.
	frozen bool
	until  checkpoint.Position
	// turn is 1 plus the lane of the last operation that was inTurn, 0 for none.
	turn int
}

type route struct {
	source     oplog.Namespace // not a view into other memory
	inScope    bool
	target     oplog.Namespace
	collection *catalog.Collection // nil where it does not exist
	seed       uint32              // for the hashes of its documents
	oneLane    bool
	// inTurn: the catalog requires one lane, and the frozen record has several.
	inTurn bool
}

// maxRoutes limits the cache.
const maxRoutes = 50_000

func (r *routes) init(a *Applier) {
	r.a = a
	st := a.link.State()
	_, r.until, r.frozen = st.Apart()
	r.frozen = r.frozen && len(a.writers) > 1
	r.forget()
}

// load reads the record.
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

// forget empties the cache, because the catalog or the record has changed.
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

// thaw ends the time in which the record stays, once the log up to where the lanes were
// apart was handed out. Differences to the catalog are recorded after a barrier, when
// everything up to there is in the target, in whichever lane.
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

// inTurn keeps the log's order for an operation whose collection requires it and still
// has several lanes: before the lane changes, everything that was handed out is in the
// target.
func (d *dispatcher) inTurn(ctx context.Context, o *routed) error {
	if !o.inTurn || d.routes.turn == o.lane+1 || d.isCrossed(o.op.At.OpTime) {
		return nil
	}
	d.routes.turn = o.lane + 1
	return d.quiesce(ctx, o.op.At.OpTime)
}
