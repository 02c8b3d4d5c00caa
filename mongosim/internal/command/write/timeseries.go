package write

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/arg"
	"github.com/oplogrep/replicator/mongosim/internal/bucket"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/mongosim/internal/viewdef"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/update"
)

// bucketTable has the buckets that still accept measurements. A new primary has
// none: it opens new ones, as the server does. A bucket of the table is valid only
// while the store has it as last written, so rollbacks, another primary's writes
// and direct changes need no notification. It is used within Path.Write only.
type bucketTable struct {
	open map[bucketKey]*bucket.Bucket
	// made counts the buckets, for their ids.
	made uint32
}

// bucketKey is a collection of buckets and the metadata of one, in normal form.
type bucketKey struct {
	coll oplog.UUID
	meta string
}

// maxOpenBuckets is the number of open buckets at which all are closed.
const maxOpenBuckets = 10_000

// series is a time-series collection.
type series struct {
	bucket.Series
	coll *storage.Collection
}

// roundings are the seconds that the beginning of a bucket is rounded down to, by
// granularity.
var roundings = map[string]int64{"seconds": 60, "minutes": 3600, "hours": 86400}

// insertTimeseries stores the documents if the namespace is a time-series
// collection. done is true if it was one.
func (w *writer) insertTimeseries(ctx context.Context, in *insertion) (done bool, err error) {
	var def viewdef.Def
	err = w.r.Server.Config.Store.Read(func(reader *storage.Reader) (err error) {
		v := reader.View(bson.Timestamp{})
		if _, exists := v.Collection(w.ns); !exists {
			def, _, err = viewdef.Lookup(v, w.ns)
		}
		return err
	})
	if err != nil || !def.Timeseries {
		return false, err
	}
	if w.r.InTxn() {
		return true, servererr.New(servererr.OperationNotSupportedInTransaction,
			"Cannot insert into a time-series collection in a multi-document transaction: %s", w.ns)
	}
	if w.r.Server.AtLeast(8, 0) {
		return true, servererr.New(servererr.NotImplemented, "time-series collections with compressed buckets are not implemented here")
	}
	s := &seriesInsert{writer: w, in: in, done: make([]bool, len(in.docs))}
	for in.next < len(in.docs) && !w.stopped {
		limit := min(in.next+Chunk, len(in.docs))
		if err := w.section(ctx, func(ops opwrite.Ops) error { return s.some(ops, limit) }); err != nil {
			return true, err
		}
		if err := goesOn(ctx); err != nil && in.next < len(in.docs) {
			return true, err
		}
	}
	return true, nil
}

// seriesInsert is an insert of measurements on its way.
type seriesInsert struct {
	*writer
	in *insertion
	// done is true for stored measurements: a section is retried after a
	// conflict.
	done []bool
}

// group has the measurements written to a bucket at once.
type group struct {
	bucket *bucket.Bucket
	docs   []bson.Raw
	index  []int
	stmt   opwrite.Stmt
}

// some stores the measurements before limit.
func (s *seriesInsert) some(ops opwrite.Ops, limit int) error {
	ts, err := s.series(ops)
	if err != nil {
		return err
	}
	for s.in.next < limit && !s.stopped {
		groups, end, fault, err := s.gather(ops, ts, limit)
		if err != nil {
			return err
		}
		if err := s.flush(ops, ts, groups); err != nil {
			return err
		}
		s.in.next = end
		if fault != nil && !s.stopped {
			if err := s.failed(end, fault); err != nil {
				return err
			}
			s.in.next++
		}
	}
	return nil
}

// series reads the options of a time-series collection.
func (s *seriesInsert) series(ops opwrite.Ops) (*series, error) {
	coll, ok := ops.View().Collection(s.ns.Buckets())
	if !ok {
		return nil, servererr.New(servererr.NamespaceNotFound, "Time-series bucket collection is missing")
	}
	e, _ := rawbson.Lookup(coll.Options, "timeseries")
	options, ok := e.Document()
	if !ok {
		return nil, servererr.New(servererr.InvalidOptions, "Time-series buckets collection is missing time-series options")
	}
	ts := &series{coll: coll, Series: bucket.Series{Collator: coll.Collator}}
	ts.TimeField, _ = arg.Text(options, "timeField")
	ts.MetaField, _ = arg.Text(options, "metaField")
	granularity, _ := arg.Text(options, "granularity")
	e, _ = rawbson.Lookup(options, "bucketMaxSpanSeconds")
	span, _ := e.Int64()
	ts.Rounding, ts.Span = roundings[granularity], span*1000
	if ts.TimeField == "" || ts.Rounding == 0 || span <= 0 {
		return nil, servererr.New(servererr.NotImplemented, "time-series collections with %s are not implemented here", bsontext.Document(options))
	}
	return ts, nil
}

// gather puts the measurements from in.next on into groups, up to limit or to one
// that cannot be stored, whose fault it returns. A retryable statement makes a
// group of its own: it must be found again by its id.
func (s *seriesInsert) gather(ops opwrite.Ops, ts *series, limit int) (groups []*group, end int, fault, err error) {
	byBucket := map[*bucket.Bucket]*group{}
	for end = s.in.next; end < limit; end++ {
		if s.done[end] {
			continue
		}
		if fault = s.in.faults[end]; fault != nil {
			break
		}
		stmt := s.stmt(end)
		_, _, executed, err := s.executed(ops, stmt)
		if err != nil {
			return nil, 0, nil, err
		}
		if executed {
			s.n++
			s.retried = append(s.retried, stmt.ID)
			s.done[end] = true
			continue
		}
		doc := s.in.docs[end]
		b, err := s.bucketFor(ops, ts, doc)
		if err != nil {
			fault = err
			break
		}
		g := byBucket[b]
		if g == nil {
			g = &group{bucket: b, stmt: stmt}
			byBucket[b] = g
			groups = append(groups, g)
		}
		g.docs, g.index = append(g.docs, doc), append(g.index, end)
		if stmt.Session != nil {
			end++
			break
		}
	}
	if s.ordered { // as the server does: all new buckets, then the others, by id
		slices.SortStableFunc(groups, func(a, b *group) int {
			if isNew := a.bucket.Doc == nil; isNew != (b.bucket.Doc == nil) {
				if isNew {
					return -1
				}
				return 1
			}
			return bytes.Compare(a.bucket.ID[:], b.bucket.ID[:])
		})
	}
	return groups, end, fault, nil
}

// bucketFor returns the bucket that a measurement goes into, which may be new, and
// counts the measurement in it.
func (s *seriesInsert) bucketFor(ops opwrite.Ops, ts *series, doc bson.Raw) (*bucket.Bucket, error) {
	e, ok := rawbson.Lookup(doc, ts.TimeField)
	at, isDate := e.DateTime()
	if !ok || !isDate {
		return nil, servererr.New(servererr.BadValue, "'%s' must be present and contain a valid BSON UTC datetime value", ts.TimeField)
	}
	if at < 0 || at/1000 > int64(^uint32(0)>>1) {
		return nil, servererr.New(servererr.NotImplemented, "measurements before 1970 or after 2038 are not implemented here")
	}
	key := bucketKey{coll: ts.coll.UUID}
	var meta *rawbson.Elem
	if e, ok := rawbson.Lookup(doc, ts.MetaField); ok && ts.MetaField != "" {
		normal := bucket.Normalized(&e)
		meta = &normal
		key.meta = string(append([]byte{byte(normal.Type)}, normal.Value...))
	}
	table := &s.t.series
	b := table.open[key]
	if b != nil && (b.Full(doc, at) || !ts.current(ops, b)) {
		b = nil
	}
	if b == nil {
		if len(table.open) >= maxOpenBuckets || table.open == nil {
			table.open = map[bucketKey]*bucket.Bucket{}
		}
		table.made++
		b = bucket.New(&ts.Series, s.r.Self.ProcessID, table.made, at, meta)
		table.open[key] = b
	}
	b.Take(doc)
	return b, nil
}

// current reports whether the store has the bucket as it was written last.
func (ts *series) current(ops opwrite.Ops, b *bucket.Bucket) bool {
	if b.Doc == nil {
		return true // this insert stores it
	}
	rec, ok := ts.stored(ops, b)
	return ok && bytes.Equal(rec.Doc, b.Doc)
}

// stored returns the bucket as the store has it now.
func (ts *series) stored(ops opwrite.Ops, b *bucket.Bucket) (storage.Record, bool) {
	coll, ok := ops.View().ByUUID(ts.coll.UUID)
	if !ok {
		return storage.Record{}, false
	}
	return coll.Get(bson.RawValue{Type: bson.TypeObjectID, Value: b.ID[:]})
}

// flush writes the groups, one operation each.
func (s *seriesInsert) flush(ops opwrite.Ops, ts *series, groups []*group) error {
	for i, g := range groups {
		err := s.store(ops, ts, g)
		if err == nil {
			for _, n := range g.index {
				s.done[n] = true
			}
			s.n += len(g.docs)
			continue
		}
		// The buckets have counted measurements that are not in them.
		for _, lost := range groups[i:] {
			s.t.series.drop(lost.bucket)
		}
		if errors.Is(err, storage.ErrWriteConflict) {
			return err
		}
		for _, n := range g.index {
			if err := s.failed(n, err); err != nil {
				return err
			}
			s.done[n] = true
			if s.stopped {
				return nil
			}
		}
		return s.regather(ops, ts, groups[i+1:])
	}
	return nil
}

// regather finds new buckets for the groups after one that failed in an unordered
// insert.
func (s *seriesInsert) regather(ops opwrite.Ops, ts *series, groups []*group) error {
	for _, g := range groups {
		for i, doc := range g.docs {
			b, err := s.bucketFor(ops, ts, doc)
			if err == nil {
				one := []*group{{bucket: b, docs: []bson.Raw{doc}, index: g.index[i : i+1], stmt: g.stmt}}
				if err := s.flush(ops, ts, one); err != nil {
					return err
				}
				continue
			}
			if err := s.failed(g.index[i], err); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *bucketTable) drop(b *bucket.Bucket) {
	for key, open := range t.open {
		if open == b {
			delete(t.open, key)
		}
	}
}

// store writes a group: a new bucket, or the difference to the stored one.
func (s *seriesInsert) store(ops opwrite.Ops, ts *series, g *group) error {
	b := g.bucket
	change := b.Add(g.docs)
	if change.Doc != nil {
		var stmts []opwrite.Stmt
		if g.stmt.Session != nil {
			stmts = []opwrite.Stmt{g.stmt}
		}
		if _, err := ops.Insert(ts.coll, []bson.Raw{change.Doc}, stmts); err != nil {
			return err
		}
		b.Wrote(change.Doc, change)
		return nil
	}
	rec, ok := ts.stored(ops, b)
	if !ok {
		return servererr.New(servererr.InternalError, "the bucket %s has gone", b.ID.Hex())
	}
	post, err := update.ApplyDelta(rec.Doc, change.Delta)
	if err != nil {
		return err
	}
	if err := ops.Update(ts.coll, rec, opwrite.Update{Post: post, Delta: change.Delta}, g.stmt); err != nil {
		return err
	}
	b.Wrote(post, change)
	return nil
}
