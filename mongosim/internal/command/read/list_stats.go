package read

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/mongosim/internal/viewdef"
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

func sizesOfOplog(s dispatch.Sight) sizes {
	return sizes{
		count: int64(s.Log.Len()), bytes: s.Log.Bytes(), storage: onDisk(s.Log.Bytes()),
		capped: true, maxBytes: s.Log.MaxBytes(),
	}
}

func (z *sizes) totalIndexes() int64 { return z.indexBytes * int64(len(z.indexes)) }

// diskSize is how large a database is on disk, in bytes.
func diskSize(s dispatch.Sight, db string) int64 {
	var total int64
	for _, coll := range s.Collections(db) {
		z := sizesOf(coll)
		total += z.storage + z.totalIndexes()
	}
	if db == dispatch.OplogNamespace.DB() {
		z := sizesOfOplog(s)
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
	if err := dispatch.ArgReader(st).Long(&e, &scale); err != nil {
		return 0, err
	}
	if scale < 1 {
		return 0, servererr.New(servererr.Code(51024), "BSON field 'scale' value must be >= 1, actual value '%d'", scale)
	}
	return scale, nil
}

func runCollStats(_ context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	scale, err := scaleArg("collStats", r.Cmd)
	if err != nil {
		return err
	}
	return r.Look("", bson.Timestamp{})(func(s dispatch.Sight) error {
		t, err := namedTarget(r, s)
		if err != nil {
			return err
		}
		buf := bsoncore.AppendStringElement(out.Buf, "ns", string(t.NS))
		if buf, err = appendStats(s, buf, &t, scale); err == nil {
			out.Buf = buf
		}
		return err
	})
}

// appendStats appends what collStats says of a collection, but for the details
// of a storage engine, which there is none of.
func appendStats(s dispatch.Sight, buf []byte, t *Target, scale int64) ([]byte, error) {
	switch {
	case t.view != nil && t.view.Timeseries:
		return nil, servererr.New(servererr.NotImplemented, "collStats of a time-series collection is not implemented here")
	case t.view != nil:
		return nil, dispatch.NotOnView(t.NS)
	case !t.exists:
		for _, name := range []string{"size", "count", "storageSize", "totalSize", "nindexes", "totalIndexSize"} {
			buf = bsoncore.AppendInt32Element(buf, name, 0)
		}
		buf = bsoncore.AppendDocumentElement(buf, "indexDetails", bsoncore.Document(dispatch.EmptyDocument))
		buf = bsoncore.AppendDocumentElement(buf, "indexSizes", bsoncore.Document(dispatch.EmptyDocument))
		return dispatch.AppendNumber(buf, "scaleFactor", scale), nil
	}
	z := sizesOfOplog(s)
	if t.NS != dispatch.OplogNamespace {
		coll, ok := s.ByUUID(t.uuid)
		if !ok {
			return nil, servererr.New(servererr.NamespaceNotFound, "Collection [%s] not found.", t.NS)
		}
		z = sizesOf(coll)
	}
	buf = dispatch.AppendNumber(buf, "size", z.bytes/scale)
	buf = dispatch.AppendNumber(buf, "count", z.count)
	if z.count > 0 {
		buf = dispatch.AppendNumber(buf, "avgObjSize", z.bytes/z.count)
	}
	buf = dispatch.AppendNumber(buf, "storageSize", z.storage/scale)
	buf = dispatch.AppendNumber(buf, "freeStorageSize", 0)
	buf = bsoncore.AppendBooleanElement(buf, "capped", z.capped)
	if z.capped {
		most := z.maxDocs
		if most == 0 {
			most = -1
		}
		buf = dispatch.AppendNumber(buf, "max", most)
		buf = dispatch.AppendNumber(buf, "maxSize", z.maxBytes/scale)
		buf = dispatch.AppendNumber(buf, "sleepCount", 0)
		buf = dispatch.AppendNumber(buf, "sleepMS", 0)
	}
	buf = dispatch.AppendNumber(buf, "nindexes", int64(len(z.indexes)))
	buf = bsoncore.AppendDocumentElement(buf, "indexDetails", bsoncore.Document(dispatch.EmptyDocument))
	i, buf := bsoncore.AppendArrayElementStart(buf, "indexBuilds")
	n := 0
	for _, index := range z.indexes {
		if index.Building {
			buf = bsoncore.AppendStringElement(buf, dispatch.ArrayKey(n), index.Name)
			n++
		}
	}
	buf, _ = bsoncore.AppendArrayEnd(buf, i)
	buf = dispatch.AppendNumber(buf, "totalIndexSize", z.totalIndexes()/scale)
	buf = dispatch.AppendNumber(buf, "totalSize", (z.storage+z.totalIndexes())/scale)
	i, buf = bsoncore.AppendDocumentElementStart(buf, "indexSizes")
	for _, index := range z.indexes {
		buf = dispatch.AppendNumber(buf, index.Name, z.indexBytes/scale)
	}
	buf, _ = bsoncore.AppendDocumentEnd(buf, i)
	return dispatch.AppendNumber(buf, "scaleFactor", scale), nil
}

// collStatsStage is the document of the stage $collStats.
func collStatsStage(r *dispatch.Request, t *Target, spec bson.Raw, look dispatch.Looker) (bson.Raw, error) {
	i, doc := bsoncore.AppendDocumentStart(nil)
	doc = bsoncore.AppendStringElement(doc, "ns", string(t.NS))
	doc = bsoncore.AppendStringElement(doc, "host", r.Server.Config.Host)
	doc = bsoncore.AppendDateTimeElement(doc, "localTime", r.Server.Config.Now().UnixMilli())
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
		err = look(func(s dispatch.Sight) error {
			if !t.exists && t.view == nil {
				return servererr.New(servererr.NamespaceNotFound, "Unable to retrieve %s in $collStats stage :: caused by :: Collection [%s] not found.", name, t.NS)
			}
			if name == "count" {
				if t.view != nil {
					return dispatch.NotOnView(t.NS)
				}
				z := sizesOfOplog(s)
				if coll, ok := s.ByUUID(t.uuid); ok {
					z = sizesOf(coll)
				}
				doc = dispatch.AppendNumber(doc, "count", z.count)
				return nil
			}
			j, buf := bsoncore.AppendDocumentElementStart(doc, "storageStats")
			buf, err := appendStats(s, buf, t, scale)
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

// diskBytes is the size of the disk that the server would have: its data are in memory.
const diskBytes = 1 << 40

func runDBStats(_ context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	scale, err := scaleArg("dbStats", r.Cmd)
	if err != nil {
		return err
	}
	return r.Look("", bson.Timestamp{})(func(s dispatch.Sight) error {
		var all []sizes
		for _, coll := range s.Collections(r.DB) {
			all = append(all, sizesOf(coll))
		}
		if r.DB == dispatch.OplogNamespace.DB() {
			all = append(all, sizesOfOplog(s))
		}
		views, err := viewdef.All(s.View, r.DB)
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
		buf := bsoncore.AppendStringElement(out.Buf, "db", r.DB)
		buf = dispatch.AppendNumber(buf, "collections", int64(len(all)))
		buf = dispatch.AppendNumber(buf, "views", int64(len(views)))
		buf = dispatch.AppendNumber(buf, "objects", sum.count)
		buf = bsoncore.AppendDoubleElement(buf, "avgObjSize", average)
		buf = bsoncore.AppendDoubleElement(buf, "dataSize", scaled(sum.bytes))
		buf = bsoncore.AppendDoubleElement(buf, "storageSize", scaled(sum.storage))
		buf = dispatch.AppendNumber(buf, "indexes", indexes)
		buf = bsoncore.AppendDoubleElement(buf, "indexSize", scaled(indexBytes))
		buf = bsoncore.AppendDoubleElement(buf, "totalSize", scaled(sum.storage+indexBytes))
		buf = bsoncore.AppendDoubleElement(buf, "scaleFactor", float64(scale))
		buf = bsoncore.AppendDoubleElement(buf, "fsUsedSize", scaled(sum.storage+indexBytes))
		out.Buf = bsoncore.AppendDoubleElement(buf, "fsTotalSize", scaled(diskBytes))
		return nil
	})
}
