package clone

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/oplogrep/replicator/initialsync/progress"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// writer writes a range through a lane. It is for one goroutine.
type writer struct {
	*Cloner
	lane           Lane
	to             oplog.Namespace
	direct, capped bool
	// r and at are the progress of the range in the target.
	r  progress.Range
	at place
	// limit is the present maximum number of documents in a flush.
	limit int
}

// run writes all pages that it receives.
func (w *writer) run(ctx context.Context, pages <-chan *page) error {
	for p := range pages {
		err := w.write(ctx, p)
		w.memory.Release(p.reserved)
		if err != nil {
			return err
		}
	}
	return nil
}

// flush is a set of documents of a page that are written and recorded together.
type flush struct {
	docs  []*document
	bytes int
	// at is the range's place after the flush.
	at   place
	done bool
}

// write writes a page, in one or more flushes.
func (w *writer) write(ctx context.Context, p *page) error {
	for from := 0; ; {
		f := flush{at: w.at}
		to := from
		for to < len(p.docs) && len(f.docs) < w.limit {
			d := &p.docs[to]
			if f.bytes+len(d.raw) > w.cfg.FlushBytes && len(f.docs) > 0 {
				break
			}
			f.docs = append(f.docs, d)
			f.bytes += len(d.raw)
			to++
		}
		f.done = p.last && to == len(p.docs)
		w.advance(&f, p)
		if len(f.docs) > 0 || f.done {
			if err := w.flush(ctx, f); err != nil {
				return err
			}
		}
		if to == len(p.docs) {
			return nil
		}
		from = to
	}
}

// advance sets the place after a flush.
func (w *writer) advance(f *flush, p *page) {
	at := &f.at
	at.order = p.order
	if p.order != natural {
		if at.piece != p.piece {
			at.piece, at.last.Type, at.last.Value = p.piece, 0, nil
		}
		if n := len(f.docs); n > 0 {
			at.last = f.docs[n-1].id()
		}
	} else {
		if n := len(f.docs); n > 0 {
			if at.record != 0 && !w.capped {
				at.anchors = at.anchors.add(at.record)
			}
			at.record = f.docs[n-1].record
		}
		if f.done {
			at.record, at.anchors = p.record, nil
		}
	}
}

// next returns the range after a flush.
func (w *writer) next(f *flush) progress.Range {
	n := w.r
	n.At = f.at.encode()
	n.Docs += int64(len(f.docs))
	n.Bytes += int64(f.bytes)
	n.Steps++
	n.Done = f.done
	return n
}

// moved records a flush that is in the target.
func (w *writer) moved(f *flush, next progress.Range) {
	w.r = next
	w.at = f.at
	// So far it is a view into a page that will be released.
	w.at.last.Value = append([]byte(nil), w.at.last.Value...)
	if w.cfg.Moved != nil {
		w.cfg.Moved(&next, int64(len(f.docs)), int64(f.bytes))
	}
}

func (w *writer) flush(ctx context.Context, f flush) error {
	if w.cfg.Pacer != nil {
		if err := w.cfg.Pacer.Wait(ctx, len(f.docs), f.bytes); err != nil {
			return err
		}
	}
	// A flush that is larger than the budget is sent alone.
	sent := min(int64(f.bytes), w.sendingBytes)
	if err := w.sending.Acquire(ctx, sent); err != nil {
		return context.Cause(ctx)
	}
	defer w.sending.Release(sent)
	if w.cfg.Enter != nil {
		leave, err := w.cfg.Enter(ctx)
		if err != nil {
			return err
		}
		defer leave()
	}
	start := time.Now()
	var err error
	if w.direct {
		err = w.writeDirect(ctx, f)
	} else {
		err = w.transact(ctx, f, false)
	}
	if err == nil {
		w.took(Target, start, len(f.docs), f.bytes)
	}
	return err
}

// transact writes a flush in one transaction, or in several if it is too large for one.
func (w *writer) transact(ctx context.Context, f flush, upsert bool) error {
	next := w.next(&f)
	list := commands(w.to, f.docs, upsert, false)
	err := w.retry(ctx, len(f.docs), func() error { return w.commit(ctx, &next, list) })
	if err == nil {
		w.moved(&f, next)
		w.limit = min(w.cfg.FlushDocs, w.limit+w.limit/8+1)
		return nil
	}
	switch judge(err) {
	case upserts:
		if upsert {
			return fmt.Errorf("write to %s: an upsert: %w", w.to, err)
		}
		w.logReplaced(len(f.docs))
		return w.transact(ctx, f, true)
	case deleteFirst:
		spelled, _ := errors.AsType[*spelledError](err)
		spelled.mark(f.docs)
		return w.transact(ctx, f, true)
	case smaller:
		switch len(f.docs) {
		case 0:
			return err
		case 1:
			return w.writeDirect(ctx, f)
		}
		w.limit = len(f.docs) / 2
		a, b := w.halves(f)
		if err := w.transact(ctx, a, upsert); err != nil {
			return err
		}
		return w.transact(ctx, b, upsert)
	default:
		return err
	}
}

// halves divides a flush in two.
func (w *writer) halves(f flush) (a, b flush) {
	mid := len(f.docs) / 2
	a = flush{docs: f.docs[:mid], at: f.at}
	for _, d := range a.docs {
		a.bytes += len(d.raw)
	}
	last := a.docs[mid-1]
	if a.at.order == natural {
		a.at.record = last.record
		a.at.anchors = w.at.anchors
	} else {
		a.at.last = last.id()
	}
	b = flush{docs: f.docs[mid:], bytes: f.bytes - a.bytes, at: f.at, done: f.done}
	return a, b
}

// commit runs commands in a transaction that moves the range.
func (w *writer) commit(ctx context.Context, next *progress.Range, list []command) error {
	// Majority is waited for once, when the whole collection is recorded as filled.
	return w.lane.Session().InTxn(ctx, false, func(txn *mongo.Txn) error {
		err := w.lane.MoveRange(ctx, txn, &w.r, next)
		for i := 0; err == nil && i < len(list); i++ {
			err = w.send(ctx, txn, &list[i])
		}
		return err
	})
}

func (w *writer) send(ctx context.Context, txn *mongo.Txn, c *command) error {
	reply, err := txn.Call(ctx, c.Command)
	if err != nil {
		return err
	}
	refused, err := refusals(reply)
	if err != nil {
		return err
	}
	if len(refused) > 0 {
		return refusal(w.to, &refused[0], c.about(refused[0].Index))
	}
	return wrote(reply, c, w.to)
}

// about returns the document of a statement, nil if there is none.
func (c *command) about(i int) *document {
	if i < 0 || i >= len(c.docs) {
		return nil
	}
	return c.docs[i]
}

// retry retries something with so many documents while it fails for transient reasons.
// If that takes long it returns a *crowdedError: a smaller flush may succeed.
func (w *writer) retry(ctx context.Context, docs int, try func() error) error {
	limit := w.cfg.RetryFor
	if docs > 1 {
		limit /= crowdedPart
	}
	err := mongo.Retry{For: limit, Again: func(err error) bool {
		v := judge(err)
		// There may be more room later for a flush that cannot be made smaller.
		return v == again || v == smaller && docs == 0
	}}.Do(ctx, try)
	if stuck, ok := errors.AsType[*mongo.StuckError](err); ok {
		if docs > 1 {
			return &crowdedError{stuck.Err}
		}
		return fmt.Errorf("write to %s: %w", w.to, stuck)
	}
	return err
}
