package clone

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

// writeDirect writes a flush outside of transactions, with majority, and then records
// it in a transaction of its own. If it is interrupted in between, the same documents
// are written again: upserts are idempotent, and documents that a capped collection
// already has are looked up beforehand (align).
func (w *writer) writeDirect(ctx context.Context, f flush) error {
	err := w.retryLarge(ctx, f.docs)
	if servererr.IsMixedBucket(err) && w.to.IsBuckets() {
		series := w.to.Series()
		if err = mongo.AllowMixedBuckets(ctx, w.cfg.Target, series.DB(), series.Collection()); err == nil {
			err = w.upsertAll(ctx, f.docs)
		}
	}
	if err != nil {
		return err
	}
	next := w.next(&f)
	if err := w.retry(ctx, 0, func() error { return w.commit(ctx, &next, nil) }); err != nil {
		return err
	}
	w.moved(&f, next)
	return nil
}

// retryLarge writes documents, again as long as one of them does not fit the storage cache of
// the target. If that takes long it returns a *TooLargeError.
func (w *writer) retryLarge(ctx context.Context, docs []*document) error {
	err := mongo.Retry{For: w.cfg.RetryFor, Again: servererr.IsTooLargeForCache}.Do(ctx, func() error {
		if w.capped {
			return w.appendAll(ctx, docs)
		}
		return w.upsertAll(ctx, docs)
	})
	stuck, ok := errors.AsType[*mongo.StuckError](err)
	if !ok || !servererr.IsTooLargeForCache(stuck.Err) {
		return err
	}
	if large, ok := errors.AsType[*TooLargeError](err); ok {
		large.Tried = stuck.Tried
		return large
	}
	if len(docs) > 1 {
		return err
	}
	return tooLarge(w.to, docs[0], stuck.Tried, stuck.Err)
}

func tooLarge(ns oplog.Namespace, d *document, tried time.Duration, err error) *TooLargeError {
	e := &TooLargeError{NS: ns, ID: d.id(), Tried: tried, Err: err}
	e.ID.Value = slices.Clone(e.ID.Value)
	return e
}

// upsertAll inserts documents in any order, and replaces existing ones.
func (w *writer) upsertAll(ctx context.Context, docs []*document) error {
	list := commands(w.to, docs, false, false)
	for i := range list {
		there, err := w.unordered(ctx, &list[i])
		if err != nil {
			return err
		}
		if len(there) == 0 {
			continue
		}
		w.logReplaced(len(there))
		if err := w.replaceAll(ctx, there); err != nil {
			return err
		}
	}
	return nil
}

// replaceAll replaces existing documents, in order. If the target has another spelling
// of an _id, that document is deleted first.
func (w *writer) replaceAll(ctx context.Context, docs []*document) error {
	list := commands(w.to, docs, true, false)
	for i := range list {
		again, err := w.unordered(ctx, &list[i])
		if spelled, ok := errors.AsType[*spelledError](err); ok {
			spelled.mark(docs)
			// Replacing a document twice is idempotent.
			return w.replaceAll(ctx, docs)
		}
		if err == nil && len(again) > 0 {
			err = fmt.Errorf("write to %s: an upsert: %w", w.to, errThere)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// unordered sends a command and returns the documents that exist already.
func (w *writer) unordered(ctx context.Context, c *command) (there []*document, err error) {
	reply, err := w.sendDirect(ctx, c)
	if err != nil {
		return nil, err
	}
	refused, err := refusals(reply)
	if err != nil {
		return nil, err
	}
	for i := range refused {
		d := c.about(refused[i].Index)
		err := refusal(w.to, &refused[i], d)
		if !errors.Is(err, errThere) || d == nil {
			return nil, err
		}
		there = append(there, d)
	}
	if len(there) == 0 {
		return nil, wrote(reply, c, w.to)
	}
	return there, nil
}

// appendAll inserts documents in order, and skips those that exist.
func (w *writer) appendAll(ctx context.Context, docs []*document) error {
	for len(docs) > 0 {
		c := commands(w.to, docs, false, true)[0]
		reply, err := w.sendDirect(ctx, &c)
		if err != nil {
			return err
		}
		refused, err := refusals(reply)
		if err != nil {
			return err
		}
		if len(refused) == 0 {
			if err := wrote(reply, &c, w.to); err != nil {
				return err
			}
			docs = docs[len(c.docs):]
			continue
		}
		d := c.about(refused[0].Index)
		err = refusal(w.to, &refused[0], d)
		if d == nil {
			return err
		}
		if !errors.Is(err, errThere) {
			return err
		}
		docs = docs[refused[0].Index+1:]
	}
	return nil
}

// sendDirect sends a command as a retryable write of the lane's session. It returns
// once a majority has committed it.
func (w *writer) sendDirect(ctx context.Context, c *command) (bson.Raw, error) {
	reply, err := mongo.Retry{For: w.cfg.RetryFor}.Write(ctx, w.lane.Session(), c.Command)
	if err != nil {
		return nil, fmt.Errorf("write to %s: %w", w.to, err)
	}
	return reply, nil
}

// alignDocs is how many of the newest documents of a capped collection are looked up at
// the source.
const alignDocs = 100

// align moves the reader of a capped collection after the documents that the target
// has: a flush may have been written, in full or in part, and not recorded. The
// target's newest documents, as far as the source has them, show how far it got. A
// document after the range's end that has the _id of an earlier document is another
// document.
//
// Documents of that flush that are read again all the same are skipped (appendAll), and
// are in their place: within the range, no _id was used for two documents.
func (r *reader) align(ctx context.Context, to oplog.Namespace) error {
	newest, err := r.newestOf(ctx, to)
	if err != nil || len(newest) == 0 {
		return err
	}
	start, body := find(r.coll.UUID)
	f, body := bsoncore.AppendDocumentElementStart(body, "filter")
	i, body := bsoncore.AppendDocumentElementStart(body, idField)
	list := bsoncore.NewArrayBuilder()
	for _, id := range newest {
		list.AppendValue(coreValue(id))
	}
	body = closeDocument(closeDocument(bsoncore.AppendArrayElement(body, "$in", list.Build()), i), f)
	records, err := r.records(ctx, r.coll.NS.DB(), start, r.appendConcern(body, r.cfg.After))
	if err != nil {
		return fmt.Errorf("find the newest documents of %s at the source: %w", to, err)
	}
	for _, n := range records {
		if r.spec.to == 0 || n <= r.spec.to {
			r.record = max(r.record, n)
		}
	}
	return nil
}

// newestOf returns the _ids of the target's newest documents.
func (r *reader) newestOf(ctx context.Context, to oplog.Namespace) ([]bson.RawValue, error) {
	start, body := bsoncore.AppendDocumentStart(make([]byte, 0, 256))
	body = bsoncore.AppendStringElement(body, "find", to.Collection())
	body = appendNatural(body, "sort", -1)
	body = appendIDOnly(body)
	body = bsoncore.AppendInt32Element(body, "limit", alignDocs)
	body = bsoncore.AppendBooleanElement(body, "singleBatch", true)
	body = closeDocument(body, start)
	reply, err := r.cfg.Target.Call(ctx, mongo.Command{DB: to.DB(), Body: body})
	if servererr.IsNoNamespace(err) {
		return nil, nil
	}
	if err == nil {
		var ids []bson.RawValue
		if ids, err = idsOf(reply); err == nil {
			return ids, nil
		}
	}
	return nil, fmt.Errorf("read the newest documents of %s: %w", to, err)
}

func appendIDOnly(body []byte) []byte {
	i, body := bsoncore.AppendDocumentElementStart(body, "projection")
	return closeDocument(bsoncore.AppendInt32Element(body, idField, 1), i)
}
