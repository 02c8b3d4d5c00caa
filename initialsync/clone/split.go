package clone

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/initialsync/progress"
	"github.com/oplogrep/replicator/internal/idrange"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

const (
	// maxRanges is the maximum number of ranges of a collection.
	maxRanges = 1000
	// samplesPerRange makes the sizes of ranges more even.
	samplesPerRange = 10
	// lookupDocs is how many samples are looked up at once.
	lookupDocs = 1000
	// keptBefore is how many samples a range keeps to resume after.
	keptBefore = 8
	// maxSampleBytes is the maximum size of a sample to split at.
	maxSampleBytes = 4 << 10
	// sampleFraction is the maximum sample, as 1/n of the documents, that a server
	// takes without reading all of them, with a margin for a wrong estimate.
	sampleFraction = 25
)

// Split returns the ranges of a collection: one for a small or a capped one, several
// for a large one. to is its namespace in the target; since is for a capped one. If the
// collection is gone it returns ErrGone.
func (c *Cloner) Split(ctx context.Context, coll *progress.Collection, to oplog.Namespace, since Since) ([]progress.Range, error) {
	specs := []spec{{order: natural}}
	switch {
	case isClustered(coll), coll.ByID:
		specs[0].order = byID
	case isCapped(coll):
		var err error
		if specs[0].to, err = c.oldest(ctx, coll, since); err != nil {
			return nil, fmt.Errorf("clone %s (%s) to %s: %w", coll.NS, coll.UUID, to, err)
		}
	}
	if !isCapped(coll) && coll.Bytes > 2*c.cfg.RangeBytes {
		var err error
		if specs, err = c.split(ctx, coll, specs); err != nil {
			return nil, fmt.Errorf("clone %s (%s) to %s: divide it: %w", coll.NS, coll.UUID, to, goneAs(err))
		}
	}
	if len(specs) > 1 {
		c.cfg.Observer.Log(slog.LevelDebug, "a collection is copied in ranges", slog.String(keyNS, string(coll.NS)),
			slog.Int(keyRanges, len(specs)), slog.String(keyOrder, string(specs[0].order)))
	}
	ranges := make([]progress.Range, len(specs))
	for i := range specs {
		ranges[i] = progress.Range{UUID: coll.UUID, Index: i, Spec: specs[i].encode()}
	}
	return ranges, nil
}

// split returns the ranges of a large collection, or the whole if it cannot be divided.
func (c *Cloner) split(ctx context.Context, coll *progress.Collection, whole []spec) ([]spec, error) {
	n := int(min(maxRanges, (coll.Bytes+c.cfg.RangeBytes-1)/c.cfg.RangeBytes))
	samples := int(min(int64(n*samplesPerRange), coll.Docs/sampleFraction))
	if n = min(n, samples); n < 2 {
		return whole, nil
	}
	name, numbered, err := c.look(ctx, coll)
	if err != nil {
		return nil, err
	}
	if name == "" {
		return whole, nil
	}
	ids, err := c.sample(ctx, oplog.NewNamespace(coll.NS.DB(), name), samples)
	if servererr.IsNoSample(err) {
		return whole, nil
	}
	if err != nil {
		return nil, fmt.Errorf("take samples: %w", err)
	}
	if !numbered || isClustered(coll) || coll.ByID {
		return idSpecs(coll, ids, n), nil
	}
	var records []int64
	for part := range slices.Chunk(ids, lookupDocs) {
		start, body := find(coll.UUID)
		list := bsoncore.NewArrayBuilder()
		for _, id := range part {
			list.AppendValue(coreValue(id))
		}
		f, body := bsoncore.AppendDocumentElementStart(body, "filter")
		i, body := bsoncore.AppendDocumentElementStart(body, idField)
		body = closeDocument(closeDocument(bsoncore.AppendArrayElement(body, "$in", list.Build()), i), f)
		found, err := c.records(ctx, coll.NS.DB(), start, c.appendConcern(body, c.cfg.After))
		if err != nil {
			return nil, fmt.Errorf("find samples: %w", err)
		}
		records = append(records, found...)
	}
	return naturalSpecs(records, n), nil
}

// look returns the present name of a collection, and reports whether its record ids are
// numbers. The name is empty if the collection is empty, or cannot be read that way.
func (c *Cloner) look(ctx context.Context, coll *progress.Collection) (name string, numbered bool, err error) {
	start, body := find(coll.UUID)
	body = bsoncore.AppendBooleanElement(body, "showRecordId", true)
	body = appendIDOnly(body)
	body = bsoncore.AppendInt32Element(body, "limit", 1)
	body = bsoncore.AppendBooleanElement(body, "singleBatch", true)
	reply, err := c.cfg.Source.Call(ctx, c.command(coll.NS.DB(), start, c.appendConcern(body, c.cfg.After)))
	if err != nil {
		return "", false, err
	}
	cursor, err := parseCursor(reply)
	if err != nil {
		return "", false, err
	}
	it := rawbson.NewIter(cursor.batch)
	if !it.Next() {
		return "", false, it.Err()
	}
	doc, _ := it.Document()
	id, _ := rawbson.Lookup(doc, recordField)
	return cursor.ns.Collection(), id.Type == bson.TypeInt64, nil
}

// sample returns some _ids, in the order of the index on _id: by the collection's own
// collation.
func (c *Cloner) sample(ctx context.Context, ns oplog.Namespace, n int) ([]bson.RawValue, error) {
	start, body := bsoncore.AppendDocumentStart(make([]byte, 0, 512))
	body = bsoncore.AppendStringElement(body, "aggregate", ns.Collection())
	stage := func(name string, field string, value int32) bsoncore.Document {
		return bsoncore.NewDocumentBuilder().
			AppendDocument(name, bsoncore.NewDocumentBuilder().AppendInt32(field, value).Build()).Build()
	}
	pipeline := bsoncore.NewArrayBuilder().
		AppendDocument(stage("$sample", "size", int32(n))). //nolint:gosec // At most some thousands.
		AppendDocument(stage("$project", idField, 1)).
		AppendDocument(stage("$sort", idField, 1)).
		Build()
	body = bsoncore.AppendArrayElement(body, "pipeline", pipeline)
	body = bsoncore.AppendBooleanElement(body, "allowDiskUse", true)
	body = bsoncore.AppendDocumentElement(body, "cursor", bsoncore.NewDocumentBuilder().Build())
	var ids []bson.RawValue
	err := c.all(ctx, c.command(ns.DB(), start, c.appendConcern(body, c.cfg.After)), func(doc bson.Raw) error {
		if id, ok := rawbson.Lookup(doc, idField); ok && len(id.Value) <= maxSampleBytes {
			ids = append(ids, bson.RawValue{Type: id.Type, Value: slices.Clone(id.Value)})
		}
		return nil
	})
	return ids, err
}

// records returns the record ids of the documents that a find selects.
func (c *Cloner) records(ctx context.Context, db string, start int32, body []byte) ([]int64, error) {
	body = appendIDOnly(body)
	body = bsoncore.AppendBooleanElement(body, "showRecordId", true)
	var list []int64
	err := c.all(ctx, c.command(db, start, body), func(doc bson.Raw) error {
		e, _ := rawbson.Lookup(doc, recordField)
		n, ok := e.Int64()
		if !ok || e.Type != bson.TypeInt64 {
			return errNoRecord
		}
		list = append(list, n)
		return nil
	})
	return list, err
}

// all yields the documents of a cursor.
func (c *Cloner) all(ctx context.Context, cmd mongo.Command, yield func(doc bson.Raw) error) error {
	for {
		reply, err := c.cfg.Source.Call(ctx, cmd)
		if err != nil {
			return err
		}
		cursor, err := parseCursor(reply)
		if err != nil {
			return err
		}
		it := rawbson.NewIter(cursor.batch)
		for it.Next() {
			doc, ok := it.Document()
			if !ok {
				return fmt.Errorf("read a reply: a document is %s", it.Type)
			}
			if err := yield(doc); err != nil {
				return err
			}
		}
		if it.Err() != nil || cursor.id == 0 {
			return it.Err()
		}
		start, body := bsoncore.AppendDocumentStart(make([]byte, 0, 256))
		body = bsoncore.AppendInt64Element(body, "getMore", cursor.id)
		body = bsoncore.AppendStringElement(body, "collection", cursor.ns.Collection())
		cmd = c.command(cmd.DB, start, body)
	}
}

func idsOf(reply bson.Raw) ([]bson.RawValue, error) {
	cursor, err := parseCursor(reply)
	if err != nil {
		return nil, err
	}
	var ids []bson.RawValue
	it := rawbson.NewIter(cursor.batch)
	for it.Next() {
		doc, _ := it.Document()
		if id, ok := rawbson.Lookup(doc, idField); ok {
			ids = append(ids, id.Raw())
		}
	}
	return ids, it.Err()
}

// every returns n-1 elements of a list, evenly spaced.
func every[V any](list []V, n int) []V {
	if len(list) < n {
		return list
	}
	out := make([]V, 0, n-1)
	for i := 1; i < n; i++ {
		out = append(out, list[i*len(list)/n])
	}
	return out
}

// naturalSpecs returns n ranges, or fewer, that end at sampled records.
func naturalSpecs(records []int64, n int) []spec {
	slices.Sort(records)
	records = slices.Compact(records)
	var list []spec
	from := int64(0)
	add := func(to int64) {
		s := spec{order: natural, from: from, to: to}
		if i, ok := slices.BinarySearch(records, from); ok {
			s.before = records[max(0, i-keptBefore):i]
		}
		list = append(list, s)
		from = to
	}
	for _, to := range every(records, n) {
		add(to)
	}
	add(0)
	return list
}

// idSpecs returns ranges of _ids; ids are in the order of the index.
func idSpecs(coll *progress.Collection, ids []bson.RawValue, n int) []spec {
	if coll.NS.IsBuckets() {
		ids = slices.DeleteFunc(ids, func(v bson.RawValue) bool { return v.Type != bson.TypeObjectID })
	}
	ranges := idrange.Cut(every(ids, n))
	if coll.NS.IsBuckets() && len(ranges) > 1 {
		ranges[len(ranges)-1] = idrange.Buckets()[1:]
	}
	list := make([]spec, len(ranges))
	for i := range ranges {
		list[i] = spec{order: byID, pieces: ranges[i]}
	}
	return list
}
