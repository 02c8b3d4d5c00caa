package applier

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

// outsideTxn sends writes as retryable writes of the lane's session, outside of a
// transaction. They are majority-committed when they return.
type outsideTxn struct {
	w     *writer
	first *plan.Op // for errors
}

func (c outsideTxn) read(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	return c.w.cfg.Target.Call(ctx, cmd)
}

func (c outsideTxn) write(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	reply, err := c.w.retry(c.w.cfg.RetryFor, nil).Write(ctx, c.w.lane.Session(), cmd)
	if stuck, ok := errors.AsType[*mongo.StuckError](err); ok {
		return nil, c.w.stuck(stuck, c.first.At, len(cmd.Docs))
	}
	if err != nil {
		return nil, fmt.Errorf("write to %s: %w", c.first.Target, err)
	}
	return reply, nil
}

// direct writes a span of operations that transactions refuse, all of one lane, in the
// log's order for each collection. It is announced in parts for which a restart can find
// out how far they were applied.
func (w *writer) direct(ctx context.Context, s span) error {
	for from := 0; from < len(s.ops); {
		to := from + fitting(s.ops[from:])
		if err := w.directPart(ctx, s.part(from, to)); err != nil {
			return err
		}
		from = to
	}
	return nil
}

func (w *writer) directPart(ctx context.Context, s span) error {
	start := time.Now()
	if err := w.announce(ctx, s); err != nil {
		return err
	}
	var t tally
	mixed := map[oplog.Namespace]bool{}
	for {
		err := w.directOnce(ctx, s, &t)
		eased, err := w.allowMixed(ctx, err, mixed)
		if !eased {
			eased, err = w.easeResized(ctx, &s, err)
		}
		if !eased {
			eased, err = w.ease(ctx, err)
		}
		if !eased && err != nil {
			return err
		}
		if !eased {
			break
		}
		s.uncertain = true // a part of it is applied
		t = tally{}        // and is counted when it is applied again, or found
	}
	if err := w.keepMet(ctx, t.diverged...); err != nil {
		return err
	}
	if err := w.complete(ctx, s); err != nil {
		return err
	}
	t.diverged = nil // They are reported.
	w.record(s, &t, time.Since(start))
	return nil
}

// allowMixed makes the target accept buckets that it has refused because a field has values of
// several types: those of a source before 5.2, or of one that was upgraded from it. Once for each
// collection, which done has. It returns true if the operations are to be retried; otherwise the
// error is to be returned.
func (w *writer) allowMixed(ctx context.Context, err error, done map[oplog.Namespace]bool) (bool, error) {
	refused, ok := errors.AsType[*OpError](err)
	if !ok || !servererr.IsMixedBucket(err) || !refused.NS.IsBuckets() || done[refused.NS] {
		return false, err
	}
	done[refused.NS] = true
	series := refused.NS.Series()
	if err := mongo.AllowMixedBuckets(ctx, w.cfg.Target, series.DB(), series.Collection()); err != nil {
		return false, err
	}
	return true, nil
}

// directOnce applies the rest of a span that is not applied yet.
func (w *writer) directOnce(ctx context.Context, s span, t *tally) error {
	c := outsideTxn{w: w, first: &s.ops[0]}
	ops := settled(s.ops)
	if s.uncertain {
		left, err := w.undone(ctx, c, ops)
		if err != nil {
			return err
		}
		t.docs += len(ops) - len(left) // found there, or overtaken by a later one that is
		ops = left
	}
	err := w.directWrites(ctx, c, ops, s.uncertain, t)
	if err != nil {
		// The divergence has been repaired, and will not be found again.
		if err := w.keepMet(ctx, t.diverged...); err != nil {
			return err
		}
		t.diverged = nil
	}
	return err
}

// directWrites sends the operations. They are planned as in initial sync mode, which
// makes them idempotent, because a part of them may be applied again. Their results are
// checked afterwards.
func (w *writer) directWrites(ctx context.Context, c outsideTxn, ops []plan.Op, uncertain bool, t *tally) error {
	ops, err := w.resized(ctx, c, ops, t)
	if err != nil {
		return err
	}
	if len(ops) == 0 {
		return nil
	}
	tolerant := slices.Clone(ops)
	for i := range tolerant {
		if tolerant[i].Kind == oplog.KindInsert && tolerant[i].Collection.Capped {
			tolerant[i].Mode, tolerant[i].Grouped = plan.ModeExact, false
		} else {
			tolerant[i].Mode = plan.ModeCopied
		}
	}
	w.planner.SetOptions(w.cfg.Plan) // not those of a flush: a Modify has one operation here
	p, err := w.planner.Build(tolerant)
	if err != nil {
		return err
	}
	t.refused = nil // of an earlier plan, which is not valid any more
	for i := range p.Writes {
		if err := w.directWrite(ctx, c, &p.Writes[i], ops, uncertain, t); err != nil {
			return err
		}
	}
	for _, pw := range t.refused {
		if err := w.trimmed(ctx, c, pw, ops, t); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) directWrite(ctx context.Context, c outsideTxn, pw *plan.Write, ops []plan.Op, uncertain bool, t *tally) error {
	if pw.Kind == plan.Modify {
		op := &ops[pw.Ops[0][0]]
		t.docs++
		found, err := w.modify(ctx, c, op)
		if err == nil && !found {
			err = w.missing(op, uncertain, t)
		}
		return err
	}
	if pw.Kind == plan.Insert {
		return w.cappedInserts(ctx, c, pw, ops, t)
	}
	body, sequence := pw.Command()
	reply, err := c.write(ctx, mongo.Command{DB: pw.NS.DB(), Body: body, Sequence: sequence, Docs: pw.Docs})
	if err != nil {
		return directError(&ops[pw.Ops[0][0]], err)
	}
	refused, err := refusals(reply)
	if err != nil {
		return err
	}
	if len(refused) > 0 {
		e := &refused[0]
		if e.Index < 0 || e.Index >= len(pw.Ops) {
			return fmt.Errorf("write to %s: statement %d of %d: %w", pw.NS, e.Index, len(pw.Ops), &e.Error)
		}
		if op := &ops[pw.Ops[e.Index][0]]; pw.Kind == plan.Delete && op.Collection.Capped && servererr.KeepsCapped(&e.Error) {
			t.refused = append(t.refused, pw)
			return nil
		}
		op := &ops[pw.Ops[e.Index][0]]
		if servererr.IsDollarName(&e.Error) && op.Kind == oplog.KindUpdate {
			w.learnDollars(op.At)
			return w.respellAll(ctx, c, pw, e.Index, ops, uncertain, t)
		}
		if servererr.IsImmutableField(&e.Error) && respellable(op) {
			return w.respellAll(ctx, c, pw, e.Index, ops, uncertain, t)
		}
		return w.refused(ctx, op, &e.Error)
	}
	n, err := affected(reply)
	if err != nil {
		return err
	}
	t.docs += len(pw.Docs)
	short := len(pw.Docs) - int(n)
	if pw.Kind == plan.Delete {
		t.deletesEmpty += short
		return nil
	}
	return w.checkUpdates(ctx, c, pw, ops, reply, short, uncertain, t)
}

// directError returns an error that ends an attempt unchanged. Where the server refused a
// whole command, it names the command's first operation.
func directError(op *plan.Op, err error) error {
	if _, ok := asServerError(err); ok && judge(err) == single {
		return opError(op, err)
	}
	return err
}

// checkUpdates looks for results that are impossible at the source: inserts, which were
// sent as upserts, that matched a document, and updates that matched none.
func (w *writer) checkUpdates(
	ctx context.Context, c outsideTxn, pw *plan.Write, ops []plan.Op, reply bson.Raw, short int, uncertain bool, t *tally,
) error {
	made := upserted(reply)
	for i, of := range pw.Ops {
		op := &ops[of[0]]
		if op.Kind == oplog.KindInsert {
			if uncertain || op.Mode != plan.ModeExact || op.Grouped || made[int64(i)] {
				continue
			}
			if err := w.divergence(divergence(op, "the insert met another document of that _id, which it has replaced"), t); err != nil {
				return err
			}
			continue
		}
		if op.Kind != oplog.KindUpdate || short <= 0 {
			continue
		}
		_, found, err := look(ctx, c, op.Target, op.ID)
		if err != nil {
			return err
		}
		if found {
			continue
		}
		short--
		if err := w.missing(op, uncertain, t); err != nil {
			return err
		}
	}
	return nil
}

func upserted(reply bson.Raw) map[int64]bool {
	list, ok := reply.Lookup("upserted").ArrayOK()
	if !ok {
		return nil
	}
	values, _ := list.Values()
	made := make(map[int64]bool, len(values))
	for _, v := range values {
		if doc, ok := v.DocumentOK(); ok {
			if i, ok := doc.Lookup("index").AsInt64OK(); ok {
				made[i] = true
			}
		}
	}
	return made
}

// missing is called for an update that matched no document.
func (w *writer) missing(op *plan.Op, uncertain bool, t *tally) error {
	if uncertain || op.Mode != plan.ModeExact || op.Collection.Capped {
		t.ignored++
		return nil
	}
	return w.divergence(divergence(op, "the update found no document"), t)
}

// cappedInserts appends to a capped collection. Refused documents are left out only if
// divergences are to be reported.
func (w *writer) cappedInserts(ctx context.Context, c outsideTxn, pw *plan.Write, ops []plan.Op, t *tally) error {
	body, sequence := pw.Command()
	for from := 0; from < len(pw.Docs); {
		reply, err := c.write(ctx, mongo.Command{DB: pw.NS.DB(), Body: body, Sequence: sequence, Docs: pw.Docs[from:]})
		if err != nil {
			return directError(&ops[pw.Ops[from][0]], err)
		}
		refused, err := refusals(reply)
		if err != nil {
			return err
		}
		if len(refused) == 0 {
			n, err := affected(reply)
			if err == nil && int(n) != len(pw.Docs)-from {
				err = fmt.Errorf("insert %d documents into %s: %d were", len(pw.Docs)-from, pw.NS, n)
			}
			t.docs += len(pw.Docs) - from
			return err
		}
		e := &refused[0]
		at := from + e.Index
		if e.Index < 0 || at >= len(pw.Docs) {
			return fmt.Errorf("insert into %s: document %d of %d: %w", pw.NS, e.Index, len(pw.Docs)-from, &e.Error)
		}
		op := &ops[pw.Ops[at][0]]
		_, found, err := look(ctx, c, op.Target, op.ID)
		if err != nil {
			return err
		}
		if !servererr.IsDuplicateKey(&e.Error) || !found {
			return w.refused(ctx, op, &e.Error)
		}
		if op.Mode == plan.ModeCopied {
			// The copy has a newer one, which the log inserts again.
			if err := w.remove(ctx, c, op); err != nil {
				return err
			}
			t.docs += e.Index
			from = at
			continue
		}
		if err := w.divergence(divergence(op, "the insert into a capped collection met another document of that _id"), t); err != nil {
			return err
		}
		if !pw.Ordered {
			return fmt.Errorf("insert into %s: an unordered insert into a capped collection", pw.NS)
		}
		t.docs += e.Index
		from = at + 1
	}
	return nil
}
