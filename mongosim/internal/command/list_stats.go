package command

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/mongosim/internal/viewdef"
	"github.com/oplogrep/replicator/oplog"
)

const (
	// diskPage is what files grow by, in bytes: sizes on disk are what there is,
	// rounded up to it.
	diskPage = 4096
	// indexEntry is how much an index is taken to need for a document, in bytes.
	indexEntry = 16
)

func onDisk(bytes int64) int64 { return max(1, (bytes+diskPage-1)/diskPage) * diskPage }

// sizes is how large a collection is.
type sizes struct {
	count, bytes, storage int64
	indexes               []storage.Index
	indexBytes            int64 // of each index
	capped                bool
	maxDocs, maxBytes     int64
}

func sizesOf(coll *storage.Collection) sizes {
	z := sizes{
		count: int64(coll.Len()), bytes: coll.Bytes(), indexes: coll.Indexes,
		capped: coll.CappedBytes > 0, maxBytes: coll.CappedBytes, maxDocs: coll.CappedDocs,
	}
	z.storage, z.indexBytes = onDisk(z.bytes), onDisk(z.count*indexEntry)
	return z
}

func (s sight) sizesOfOplog() sizes {
	return sizes{
		count: int64(s.log.Len()), bytes: s.log.Bytes(), storage: onDisk(s.log.Bytes()),
		capped: true, maxBytes: s.log.MaxBytes(),
	}
}

func (z *sizes) totalIndexes() int64 { return z.indexBytes * int64(len(z.indexes)) }

// diskSize is how large a database is on disk, in bytes.
func (s sight) diskSize(db string) int64 {
	var total int64
	for _, coll := range s.Collections(db) {
		z := sizesOf(coll)
		total += z.storage + z.totalIndexes()
	}
	if db == oplogNamespace.DB() {
		z := s.sizesOfOplog()
		total += z.storage
	}
	return total
}

// scaleArg reads the argument scale.
func scaleArg(st string, cmd bson.Raw) (int64, error) {
	scale := int64(1)
	e, ok := rawbson.Lookup(cmd, "scale")
	if !ok || e.Type == bson.TypeNull {
		return scale, nil
	}
	if err := argReader(st).long(&e, &scale); err != nil {
		return 0, err
	}
	if scale < 1 {
		return 0, servererr.New(servererr.Code(51024), "BSON field 'scale' value must be >= 1, actual value '%d'", scale)
	}
	return scale, nil
}

func runCollStats(_ context.Context, r *request, out *reply) error {
	scale, err := scaleArg("collStats", r.cmd)
	if err != nil {
		return err
	}
	return r.look("", bson.Timestamp{})(func(s sight) error {
		t, err := r.target(s)
		if err != nil {
			return err
		}
		buf := bsoncore.AppendStringElement(out.Buf, "ns", string(t.ns))
		if buf, err = s.appendStats(buf, &t, scale); err == nil {
			out.Buf = buf
		}
		return err
	})
}

// appendStats appends what collStats says of a collection, but for the details
// of a storage engine, which there is none of.
func (s sight) appendStats(buf []byte, t *target, scale int64) ([]byte, error) {
	switch {
	case t.view != nil && t.view.Timeseries:
		return nil, servererr.New(servererr.NotImplemented, "collStats of a time-series collection is not implemented here")
	case t.view != nil:
		return nil, notOnView(t.ns)
	case !t.exists:
		for _, name := range []string{"size", "count", "storageSize", "totalSize", "nindexes", "totalIndexSize"} {
			buf = bsoncore.AppendInt32Element(buf, name, 0)
		}
		buf = bsoncore.AppendDocumentElement(buf, "indexDetails", bsoncore.Document(emptyDocument))
		buf = bsoncore.AppendDocumentElement(buf, "indexSizes", bsoncore.Document(emptyDocument))
		return appendNumber(buf, "scaleFactor", scale), nil
	}
	z := s.sizesOfOplog()
	if t.ns != oplogNamespace {
		coll, ok := s.ByUUID(t.uuid)
		if !ok {
			return nil, servererr.New(servererr.NamespaceNotFound, "Collection [%s] not found.", t.ns)
		}
		z = sizesOf(coll)
	}
	buf = appendNumber(buf, "size", z.bytes/scale)
	buf = appendNumber(buf, "count", z.count)
	if z.count > 0 {
		buf = appendNumber(buf, "avgObjSize", z.bytes/z.count)
	}
	buf = appendNumber(buf, "storageSize", z.storage/scale)
	buf = appendNumber(buf, "freeStorageSize", 0)
	buf = bsoncore.AppendBooleanElement(buf, "capped", z.capped)
	if z.capped {
		most := z.maxDocs
		if most == 0 {
			most = -1
		}
		buf = appendNumber(buf, "max", most)
		buf = appendNumber(buf, "maxSize", z.maxBytes/scale)
		buf = appendNumber(buf, "sleepCount", 0)
		buf = appendNumber(buf, "sleepMS", 0)
	}
	buf = appendNumber(buf, "nindexes", int64(len(z.indexes)))
	buf = bsoncore.AppendDocumentElement(buf, "indexDetails", bsoncore.Document(emptyDocument))
	i, buf := bsoncore.AppendArrayElementStart(buf, "indexBuilds")
	n := 0
	for _, index := range z.indexes {
		if index.Building {
			buf = bsoncore.AppendStringElement(buf, arrayKey(n), index.Name)
			n++
		}
	}
	buf, _ = bsoncore.AppendArrayEnd(buf, i)
	buf = appendNumber(buf, "totalIndexSize", z.totalIndexes()/scale)
	buf = appendNumber(buf, "totalSize", (z.storage+z.totalIndexes())/scale)
	i, buf = bsoncore.AppendDocumentElementStart(buf, "indexSizes")
	for _, index := range z.indexes {
		buf = appendNumber(buf, index.Name, z.indexBytes/scale)
	}
	buf, _ = bsoncore.AppendDocumentEnd(buf, i)
	return appendNumber(buf, "scaleFactor", scale), nil
}

// collStatsStage is the document of the stage $collStats.
func (r *request) collStatsStage(t *target, spec bson.Raw, look looker) (bson.Raw, error) {
	i, doc := bsoncore.AppendDocumentStart(nil)
	doc = bsoncore.AppendStringElement(doc, "ns", string(t.ns))
	doc = bsoncore.AppendStringElement(doc, "host", r.srv.cfg.Host)
	doc = bsoncore.AppendDateTimeElement(doc, "localTime", r.srv.cfg.Now().UnixMilli())
	it := rawbson.NewIter(spec)
	for it.Next() {
		arg, isDoc := it.Document()
		name := it.Name()
		if !isDoc {
			return nil, servererr.New(servererr.TypeMismatch, "BSON field '$collStats.%s' is the wrong type '%s', expected type 'object'",
				name, bsontext.TypeName(it.Type))
		}
		if name != "count" && name != "storageStats" {
			return nil, servererr.New(servererr.NotImplemented, "$collStats with %s is not implemented here", name)
		}
		scale, err := scaleArg("$collStats.storageStats", arg)
		if err != nil {
			return nil, err
		}
		err = look(func(s sight) error {
			if !t.exists && t.view == nil {
				return servererr.New(servererr.NamespaceNotFound, "Unable to retrieve %s in $collStats stage :: caused by :: Collection [%s] not found.", name, t.ns)
			}
			if name == "count" {
				if t.view != nil {
					return notOnView(t.ns)
				}
				z := s.sizesOfOplog()
				if coll, ok := s.ByUUID(t.uuid); ok {
					z = sizesOf(coll)
				}
				doc = appendNumber(doc, "count", z.count)
				return nil
			}
			j, buf := bsoncore.AppendDocumentElementStart(doc, "storageStats")
			buf, err := s.appendStats(buf, t, scale)
			if err != nil {
				return err
			}
			doc, _ = bsoncore.AppendDocumentEnd(buf, j)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	doc, _ = bsoncore.AppendDocumentEnd(doc, i)
	return doc, nil
}

func runDBStats(_ context.Context, r *request, out *reply) error {
	scale, err := scaleArg("dbStats", r.cmd)
	if err != nil {
		return err
	}
	return r.look("", bson.Timestamp{})(func(s sight) error {
		var all []sizes
		for _, coll := range s.Collections(r.db) {
			all = append(all, sizesOf(coll))
		}
		if r.db == oplogNamespace.DB() {
			all = append(all, s.sizesOfOplog())
		}
		views, err := viewdef.All(s.View, r.db)
		if err != nil {
			return err
		}
		var sum sizes
		var indexes, indexBytes int64
		for _, z := range all {
			sum.count, sum.bytes, sum.storage = sum.count+z.count, sum.bytes+z.bytes, sum.storage+z.storage
			indexes, indexBytes = indexes+int64(len(z.indexes)), indexBytes+z.totalIndexes()
		}
		average := 0.0
		if sum.count > 0 {
			average = float64(sum.bytes) / float64(sum.count)
		}
		scaled := func(n int64) float64 { return float64(n) / float64(scale) }
		buf := bsoncore.AppendStringElement(out.Buf, "db", r.db)
		buf = appendNumber(buf, "collections", int64(len(all)))
		buf = appendNumber(buf, "views", int64(len(views)))
		buf = appendNumber(buf, "objects", sum.count)
		buf = bsoncore.AppendDoubleElement(buf, "avgObjSize", average)
		buf = bsoncore.AppendDoubleElement(buf, "dataSize", scaled(sum.bytes))
		buf = bsoncore.AppendDoubleElement(buf, "storageSize", scaled(sum.storage))
		buf = appendNumber(buf, "indexes", indexes)
		buf = bsoncore.AppendDoubleElement(buf, "indexSize", scaled(indexBytes))
		buf = bsoncore.AppendDoubleElement(buf, "totalSize", scaled(sum.storage+indexBytes))
		out.Buf = bsoncore.AppendDoubleElement(buf, "scaleFactor", float64(scale))
		return nil
	})
}

func runDataSize(_ context.Context, r *request, out *reply) error {
	first := firstElem(r.cmd)
	name, ok := first.Text()
	if !ok || !oplog.Namespace(name).IsCollection() {
		return servererr.New(servererr.InvalidNamespace, "Invalid namespace specified '%s'", name)
	}
	for _, option := range []string{"keyPattern", "min", "max"} {
		if _, ok := rawbson.Lookup(r.cmd, option); ok {
			return servererr.New(servererr.NotImplemented, "dataSize option %s is not implemented here", option)
		}
	}
	return r.look("", bson.Timestamp{})(func(s sight) error {
		var z sizes
		if coll, ok := s.Collection(oplog.Namespace(name)); ok {
			z = sizesOf(coll)
		} else if oplog.Namespace(name) == oplogNamespace {
			z = s.sizesOfOplog()
		}
		buf := appendNumber(out.Buf, "size", z.bytes)
		buf = appendNumber(buf, "numObjects", z.count)
		buf = appendNumber(buf, "millis", 0)
		out.Buf = bsoncore.AppendBooleanElement(buf, "estimate", false)
		return nil
	})
}
