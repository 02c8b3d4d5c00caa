package applier

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
)

const (
	// repairReads limits the time for which the dispatcher waits for the source's documents.
	repairReads = 3 * time.Second
	// RepairBytes is how many bytes of documents, of both sides, a group may have, if it has more
	// than one _id.
	RepairBytes = 8 << 20
)

// Repair is a group of documents to be made the same as the source's: see dispatcher.repair.
type Repair struct {
	// NS is the collection, by the source's name.
	NS  oplog.Namespace
	IDs []bson.RawValue
	// After is a time of the source. The documents are read as of a later entry, up to which
	// there is no entry after After that is processed individually: so the collection that had
	// the name at After has it there.
	After bson.Timestamp
	// Read returns the source's documents with the IDs as of an entry of its log. It must end
	// when ctx does.
	Read func(ctx context.Context, at bson.Timestamp) ([]bson.Raw, error)
	// Done is called once with the result. It must not block.
	Done func(Repaired)
}

// RepairState is the outcome of a Repair.
type RepairState uint8

// The outcomes of a Repair. Except with RepairDone, nothing was written.
const (
	// RepairLater: it cannot be done now.
	RepairLater RepairState = iota
	// RepairDone: the target had the source's documents as of Source at that place of the log.
	RepairDone
	// RepairSmaller: it is too much for one transaction, or one of several is refused.
	RepairSmaller
	// RepairRefused: the target refuses the only document.
	RepairRefused
	// RepairImpossible: documents of that collection cannot be written in this way.
	RepairImpossible
)

// ErrRepairSize is for Repair.Read: several documents have more than RepairBytes.
var ErrRepairSize = errors.New("the documents are too much for one transaction")

// Repaired is the result of a Repair.
type Repaired struct {
	State RepairState
	// Why says why, unless it is done.
	Why string
	// Source is the entry as of which the source was read, Target the cluster time of the commit.
	Source oplog.OpTime
	Target bson.Timestamp
	// Rewritten, Inserted and Deleted count documents; Equal were the same already.
	Rewritten, Inserted, Deleted, Equal int
	// Idle is how long lanes had nothing to do for it, on average.
	Idle time.Duration
}

// errNoAttempt is the reason of a Repair that an attempt leaves when it ends.
const errNoAttempt = "the link reads its position again"

// repairing is the Repair that the dispatcher has.
type repairing struct {
	// now is the one to do, nil for none.
	now *Repair
	// alone is the last entry that was processed individually, or the first position of the
	// attempt, which does not know the entries before it.
	alone oplog.OpTime
}

// endRepair gives back the documents that were not repaired.
func (d *dispatcher) endRepair() {
	if r := d.repairing.now; r != nil {
		d.repairing.now = nil
		r.Done(Repaired{Why: errNoAttempt})
	}
}

// repairs returns the channel of repairs, unless one is being done.
func (d *dispatcher) repairs() <-chan *Repair {
	if d.repairing.now != nil {
		return nil
	}
	return d.cfg.Repairs
}

// repairIfAsked carries out a repair that was asked for, once the log has come to where it can be done. It is called
// between batches, so between two entries or transactions of the source.
func (d *dispatcher) repairIfAsked(ctx context.Context) error {
	r := d.repairing.now
	if r == nil || oplog.CompareTimestamps(d.last.TS, r.After) < 0 {
		return nil
	}
	d.repairing.now = nil
	out, err := d.repair(ctx, r)
	if err != nil {
		out = Repaired{Why: errNoAttempt}
	}
	r.Done(out)
	return err
}

// repair writes documents as they were on the source as of the last entry that was handed out,
// when everything up to there, and nothing later, is in the target. Later entries of
// the log then find the documents that they were logged for, as with any other document. It is written in a
// transaction of the barrier's lane that verifies the lease and the positions of all lanes: a
// failover that loses a flush of one lane also loses it, and a process that was fenced writes
// nothing.
//
// An error ends the attempt: the lease or a lane's write is lost, or it is not known whether
// the transaction is committed. It might be later otherwise, among writes of lanes that do not
// conflict with it, such as deletes that find nothing yet.
func (d *dispatcher) repair(ctx context.Context, r *Repair) (Repaired, error) {
	to, out, err := d.repairable(ctx, r)
	if to == nil || err != nil {
		return out, err
	}
	d.handOver()
	began := time.Now() // lanes that run out of operations wait for the source's answer, too
	want, err := d.readSource(ctx, r)
	switch {
	case ctx.Err() != nil:
		return out, context.Cause(ctx)
	case errors.Is(err, ErrRepairSize):
		return Repaired{State: RepairSmaller, Idle: d.tracker.idleSince(began), Why: err.Error()}, nil
	case err != nil:
		return Repaired{Idle: d.tracker.idleSince(began), Why: fmt.Sprintf("the source's documents cannot be read as of %s: %v", d.last, err)}, nil
	}
	if err := d.quiesceLanes(ctx, d.last); err != nil {
		return out, err
	}
	out = Repaired{Source: d.last}
	txn := d.barrier.lane.Session().Begin()
	err = d.rewrite(ctx, txn, r, to, want, &out)
	reply, err := txn.EndWith(ctx, false, err)
	out.Idle = d.tracker.idleSince(began)
	if err != nil {
		return d.notRepaired(ctx, r, out, err)
	}
	e, _ := rawbson.Lookup(reply, "operationTime")
	out.Target, _ = e.Timestamp()
	out.State = RepairDone
	return out, nil
}

// readSource reads the source's documents, while lanes continue with their operations.
func (d *dispatcher) readSource(ctx context.Context, r *Repair) ([]bson.Raw, error) {
	limited, cancel := context.WithTimeout(ctx, repairReads)
	defer cancel()
	return r.Read(limited, d.last.TS)
}

// repairable returns the route of the collection if documents of it can be written now.
func (d *dispatcher) repairable(ctx context.Context, r *Repair) (*route, Repaired, error) {
	later := func(why string) (*route, Repaired, error) { return nil, Repaired{Why: why}, nil }
	refused := func(why string) (*route, Repaired, error) {
		return nil, Repaired{State: RepairImpossible, Why: why}, nil
	}
	gaps := d.link.Gaps()
	switch {
	case !d.ended || gaps.Copying || d.last.Before(gaps.CopiedUntil):
		return later("the copy is not consistent yet")
	case slices.ContainsFunc(gaps.LeftOut, func(o checkpoint.LeftOut) bool { return o.NS == r.NS }):
		return later("the collection is left out until it has been copied again")
	case d.last.Before(d.furthest):
		return later("before the last start some lanes were ahead of others, up to " + d.furthest.String())
	case d.inDoubt:
		return later("a prepared transaction of the source is not ended: it may take effect at an earlier time than its commit")
	case oplog.CompareTimestamps(d.repairing.alone.TS, r.After) > 0:
		return later("the source has just changed its catalog")
	}
	to, err := d.routes.of(ctx, d, r.NS)
	switch {
	case err != nil:
		return nil, Repaired{}, err
	case !to.inScope:
		return refused("the link does not mirror it")
	case to.kept:
		return later("the collection waits for its index build")
	case to.collection == nil:
		return refused("the target does not have the collection: copy it again with replicator resync")
	case to.collection.Type != catalog.TypeCollection:
		return refused("on the target it is not a collection")
	case r.NS.IsBuckets():
		return refused("transactions cannot write to the buckets of a time series: copy it again with replicator resync --namespace " + string(r.NS.Series()))
	case to.collection.Direct:
		return refused("transactions cannot write to it (it is capped, or one of the system's): copy it again with replicator resync")
	}
	return to, Repaired{}, nil
}

// rewrite makes the target's documents those of want.
func (d *dispatcher) rewrite(ctx context.Context, txn *mongo.Txn, r *Repair, to *route, want []bson.Raw, out *Repaired) error {
	defer d.barrier.planner.Release()
	if err := d.barrier.lane.Stay(ctx, txn); err != nil {
		return err
	}
	if err := d.link.Verify(ctx, txn, d.tracker.positions()); err != nil {
		return err
	}
	got, err := findByIDs(ctx, txn, to.target, r.IDs)
	if err != nil {
		return err
	}
	if len(r.IDs) > 1 && sizeOfAll(want)+sizeOfAll(got) > RepairBytes {
		return ErrRepairSize
	}
	stale, missing := unlike(got, want)
	out.count(got, stale, missing)
	if err := d.send(ctx, txn, repairOps(r.NS, to, oplog.KindDelete, stale, d.last)); err != nil {
		return err
	}
	return d.send(ctx, txn, repairOps(r.NS, to, oplog.KindInsert, missing, d.last))
}

// send executes operations in a transaction.
func (d *dispatcher) send(ctx context.Context, txn *mongo.Txn, ops []plan.Op) error {
	if len(ops) == 0 {
		return nil
	}
	w := d.barrier
	w.planner.SetOptions(w.cfg.Plan)
	p, err := w.planner.Build(ops)
	if err != nil {
		return err
	}
	var t tally
	for i := range p.Writes {
		pw := &p.Writes[i]
		if pw.Kind == plan.Modify {
			err = w.sendModify(ctx, inTxn{txn}, pw, ops, &t)
		} else {
			var n int64
			if n, err = w.statements(ctx, inTxn{txn}, pw); err == nil && n != int64(pw.Documents) {
				err = &shortError{want: int64(pw.Documents), got: n}
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// notRepaired judges the error of a transaction.
func (d *dispatcher) notRepaired(ctx context.Context, r *Repair, out Repaired, err error) (Repaired, error) {
	err = lease.Judge(err)
	out = Repaired{Idle: out.Idle, Source: out.Source}
	_, commit := errors.AsType[*mongo.CommitError](err)
	alone := len(r.IDs) == 1
	out.Why = fmt.Sprintf("the target has refused it: %v", err)
	switch {
	case ctx.Err() != nil:
		return out, context.Cause(ctx)
	case errors.Is(err, lease.ErrFenced), errors.Is(err, lease.ErrRewound), errors.Is(err, checkpoint.ErrAhead):
		return out, err
	case errors.Is(err, ErrRepairSize):
		out.State, out.Why = RepairSmaller, err.Error()
		return out, nil
	}
	switch judge(err) {
	case again:
	case smaller, single:
		if out.State = RepairSmaller; alone {
			out.State = RepairRefused
		}
	default:
		if _, refused := asServerError(err); commit || !refused || isPassing(err) {
			return out, err
		}
		if out.State = RepairSmaller; alone { // the server has aborted the transaction
			out.State = RepairRefused
		}
	}
	return out, nil
}

// isPassing reports whether an error is of the server, or of the session, and not of a statement.
func isPassing(err error) bool {
	switch servererr.Classify(err) {
	case servererr.NotPrimary, servererr.Leaving, servererr.Session, servererr.Unconfirmed, servererr.Lost, servererr.Ended:
		return true
	default:
		return false
	}
}

// unlike returns the documents of got that want does not have, byte for byte, and the other way
// round.
func unlike(got, want []bson.Raw) (stale, missing []bson.Raw) {
	without := func(list, other []bson.Raw) (rest []bson.Raw) {
		for _, doc := range list {
			if !slices.ContainsFunc(other, func(o bson.Raw) bool { return bytes.Equal(o, doc) }) {
				rest = append(rest, doc)
			}
		}
		return rest
	}
	return without(got, want), without(want, got)
}

// count counts the documents that are written: a document that is deleted and inserted is rewritten.
func (out *Repaired) count(got, stale, missing []bson.Raw) {
	keys := map[string]bool{}
	for _, doc := range stale {
		keys[string(bsonorder.AppendKey(nil, docID(doc), nil))] = true
	}
	for _, doc := range missing {
		if keys[string(bsonorder.AppendKey(nil, docID(doc), nil))] {
			out.Rewritten++
		}
	}
	out.Equal = len(got) - len(stale)
	out.Inserted, out.Deleted = len(missing)-out.Rewritten, len(stale)-out.Rewritten
}

func docID(doc bson.Raw) bson.RawValue {
	e, _ := rawbson.Lookup(doc, "_id")
	return e.Raw()
}

func sizeOfAll(docs []bson.Raw) (n int) {
	for _, doc := range docs {
		n += len(doc)
	}
	return n
}

// repairOps returns operations of one kind on documents.
func repairOps(ns oplog.Namespace, to *route, kind oplog.Kind, docs []bson.Raw, at oplog.OpTime) []plan.Op {
	ops := make([]plan.Op, 0, len(docs))
	for _, doc := range docs {
		op := plan.Op{
			Op: oplog.Op{OpTime: at, Kind: kind, NS: ns, O: doc, ID: docID(doc)},
			At: checkpoint.Position{OpTime: at, Op: checkpoint.AllOps}, Target: to.target, Collection: to.collection, Mode: plan.ModeExact,
		}
		if kind == oplog.KindDelete {
			op.O = bsoncore.BuildDocument(nil, bsoncore.AppendValueElement(nil, "_id", bsoncore.Value{Type: bsoncore.Type(op.ID.Type), Data: op.ID.Value}))
		}
		ops = append(ops, op)
	}
	return ops
}

// findByIDs reads documents of the target by their _ids. It stops reading, with ErrRepairSize, if
// several of them are too much for a group. A server may end a reply early, whatever its size.
func findByIDs(ctx context.Context, txn *mongo.Txn, ns oplog.Namespace, ids []bson.RawValue) (all []bson.Raw, err error) {
	list := bsoncore.NewArrayBuilder()
	for _, id := range ids {
		list.AppendValue(bsoncore.Value{Type: bsoncore.Type(id.Type), Data: id.Value})
	}
	in := bsoncore.NewDocumentBuilder().AppendArray("$in", list.Build()).Build()
	body := bsoncore.NewDocumentBuilder().AppendString("find", ns.Collection()).
		AppendDocument("filter", bsoncore.NewDocumentBuilder().AppendDocument("_id", in).Build()).
		AppendInt32("batchSize", int32(len(ids)+1)). //nolint:gosec // a group is small
		Build()
	for cmd := (mongo.Command{DB: ns.DB(), Body: bson.Raw(body)}); ; {
		reply, err := txn.Call(ctx, cmd)
		if err != nil {
			return nil, err
		}
		docs, cursor, err := batchOf(reply)
		if err != nil {
			return nil, err
		}
		all = append(all, docs...)
		switch {
		case cursor == 0:
			return all, nil
		case len(ids) > 1 && sizeOfAll(all) > RepairBytes:
			return nil, ErrRepairSize // the end of the transaction ends the cursor
		}
		cmd = getMore(ns, cursor)
	}
}
