package dispatch

import (
	"context"
	"errors"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/serverquery"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// expireChunk is how many expired documents are removed without letting others
// write in between.
const expireChunk = 500

// expiry is a rule by which the documents of a collection expire.
type expiry struct {
	coll  oplog.UUID
	match *serverquery.Matcher
}

// RemoveExpired makes one pass of the TTL monitor: a primary removes documents
// that have expired by its TTL indexes, and by the expireAfterSeconds of
// clustered and time-series collections, with an entry for each document. A
// document that another writer is changing is left for the next pass.
func (s *Server) RemoveExpired(ctx context.Context) (removed int, err error) {
	if !s.flag("ttlMonitorEnabled") {
		return 0, nil
	}
	var rules []expiry
	err = s.Config.Store.Read(func(r *storage.Reader) error {
		for _, c := range r.View(bson.Timestamp{}).Collections("") {
			if c.NS.DB() != "local" {
				rules = append(rules, s.expiries(c, s.Config.Now())...)
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	for _, rule := range rules {
		var after storage.RecordID
		for more := true; more && s.Config.Node.View().Writable && ctx.Err() == nil; {
			var n int
			n, after, more, err = s.expire(rule, after)
			removed += n
			if err != nil {
				return removed, err
			}
		}
	}
	return removed, nil
}

// expire removes the next chunk of documents expired by a rule, and returns
// where to continue.
func (s *Server) expire(rule expiry, after storage.RecordID) (n int, last storage.RecordID, more bool, err error) {
	var found []storage.RecordID
	err = s.Config.Store.Read(func(r *storage.Reader) error {
		c, ok := r.View(bson.Timestamp{}).ByUUID(rule.coll)
		if !ok {
			return nil
		}
		for record := range c.Natural(after) {
			last = record.ID
			if match, err := rule.match.Match(record.Doc); err != nil || !match {
				continue
			}
			if found = append(found, record.ID); len(found) == expireChunk {
				more = true
				break
			}
		}
		return nil
	})
	if err != nil || len(found) == 0 {
		return 0, last, false, err
	}
	err = s.Config.Path.Write(func(b *opwrite.Batch) error {
		for _, id := range found {
			c, ok := b.View().ByUUID(rule.coll)
			if !ok {
				return nil
			}
			record, ok := c.Record(id)
			if !ok {
				continue
			}
			if match, err := rule.match.Match(record.Doc); err != nil || !match {
				continue
			}
			switch err := b.Delete(c, record, opwrite.Stmt{}, opwrite.NoImage); {
			case errors.Is(err, storage.ErrWriteConflict):
			case err != nil:
				return err
			default:
				n++
			}
		}
		return nil
	})
	return n, last, more, err
}

// expiries are the rules of a collection. Indexes of capped ones expire nothing before 7.1.
func (s *Server) expiries(c *storage.Collection, now time.Time) []expiry {
	var rules []expiry
	add := func(filter bson.Raw) {
		if m, err := serverquery.Compile(filter, serverquery.Options{}); err == nil {
			rules = append(rules, expiry{c.UUID, m})
		}
	}
	for _, index := range c.Indexes {
		if c.CappedBytes > 0 && !s.AtLeast(7, 1) {
			break
		}
		seconds, ok := lookupSeconds(index.Spec)
		key, _ := rawbson.Lookup(index.Spec, "key")
		fields, _ := key.Document()
		it := rawbson.NewIter(fields)
		if !ok || index.Building || !it.Next() {
			continue
		}
		name := it.Name()
		if it.Next() { // compound indexes are no TTL indexes
			continue
		}
		add(expired(name, bsoncore.Value{Type: bsoncore.TypeDateTime, Data: bsoncore.AppendDateTime(nil, millisBefore(now, seconds))}, index.Spec))
	}
	seconds, ok := lookupSeconds(c.Options)
	if !ok {
		return rules
	}
	cutoff := bsoncore.Value{Type: bsoncore.TypeDateTime, Data: bsoncore.AppendDateTime(nil, millisBefore(now, seconds))}
	if e, series := rawbson.Lookup(c.Options, "timeseries"); series {
		doc, _ := e.Document()
		span, _ := rawbson.Lookup(doc, "bucketMaxSpanSeconds")
		n, _ := span.Int64()
		at := millisBefore(now, seconds+n) / 1000
		if at < 0 {
			return rules
		}
		id := bson.NewObjectIDFromTimestamp(time.Unix(at, 0))
		copy(id[4:], make([]byte, 8))
		cutoff = bsoncore.Value{Type: bsoncore.TypeObjectID, Data: id[:]}
	}
	add(expired("_id", cutoff, nil))
	return rules
}

// expired is the filter for indexed documents that are not after the cutoff.
func expired(field string, cutoff bsoncore.Value, spec bson.Raw) bson.Raw {
	i, doc := bsoncore.AppendDocumentStart(nil)
	f, doc := bsoncore.AppendDocumentElementStart(doc, field)
	doc = bsoncore.AppendValueElement(doc, "$lte", cutoff)
	doc, _ = bsoncore.AppendDocumentEnd(doc, f)
	if e, ok := rawbson.Lookup(spec, "partialFilterExpression"); ok {
		partial, _ := e.Document()
		a, and := bsoncore.AppendArrayElementStart(doc, "$and")
		and = bsoncore.AppendDocumentElement(and, "0", partial)
		doc, _ = bsoncore.AppendArrayEnd(and, a)
	}
	doc, _ = bsoncore.AppendDocumentEnd(doc, i)
	return doc
}

func lookupSeconds(doc bson.Raw) (int64, bool) {
	e, ok := rawbson.Lookup(doc, "expireAfterSeconds")
	if !ok {
		return 0, false
	}
	return e.Int64()
}

// millisBefore is a time some seconds before now, in milliseconds of the epoch.
func millisBefore(now time.Time, seconds int64) int64 { return now.UnixMilli() - seconds*1000 }
