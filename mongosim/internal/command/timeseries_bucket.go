package command

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// The server's limits of a bucket: measurements, and bytes as it estimates them.
const (
	maxBucketCount = 1000
	maxBucketBytes = 125 * 1024
)

// bucket is an open bucket of a time-series collection.
type bucket struct {
	id bson.ObjectID
	// start is the beginning of its span, in milliseconds.
	start int64
	// meta is its metadata in normal form; nil if it has none.
	meta *rawbson.Elem
	// count and size tell of all measurements, written or on their way; fields are
	// the names of all columns.
	count, size int
	fields      map[string]bool
	// doc is the bucket as it was written last, with so many measurements and these
	// columns; nil if it was not.
	doc     bson.Raw
	written int
	known   map[string]bool
	bounds  bounds
}

// newBucket opens a bucket for a measurement taken at a time, in milliseconds. Its
// id begins with the beginning of its span and goes on like an id of the process,
// in which the distance of the first measurement is added to four of the bytes.
func newBucket(ts *series, process bson.ObjectID, number uint32, at int64, meta *rawbson.Elem) *bucket {
	seconds := at / 1000
	start := seconds - seconds%ts.rounding
	b := &bucket{start: start * 1000, meta: meta, fields: map[string]bool{}, known: map[string]bool{}, bounds: newBounds()}
	copy(b.id[4:9], process[4:9])
	binary.BigEndian.PutUint32(b.id[:4], uint32(start))
	binary.LittleEndian.PutUint32(b.id[5:9], binary.LittleEndian.Uint32(b.id[5:9])+uint32(seconds-start))
	counter := binary.BigEndian.Uint32(process[8:12])&0xffffff + number
	b.id[9], b.id[10], b.id[11] = byte(counter>>16), byte(counter>>8), byte(counter)
	first := bsoncore.BuildDocument(nil, bsoncore.AppendDateTimeElement(nil, ts.timeField, b.start))
	b.bounds.add(first, "", nil)
	return b
}

// growth is by how many bytes a measurement makes the bucket larger, as the server
// estimates it.
func (b *bucket) growth(ts *series, doc bson.Raw) int {
	size, digits := 0, numDigits(b.count)
	it := rawbson.NewIter(doc)
	for it.Next() {
		if ts.isMeta(it.Key) {
			continue
		}
		if !b.fields[string(it.Key)] {
			size += 12 + len(it.Key) // a field with an empty document
		}
		size += 1 + len(it.Value) + digits + 1
	}
	return size
}

func (ts *series) isMeta(name []byte) bool { return ts.metaField != "" && string(name) == ts.metaField }

// full tells whether a measurement no longer fits.
func (b *bucket) full(ts *series, doc bson.Raw, at int64) bool {
	return b.count >= maxBucketCount || b.size+b.growth(ts, doc) > maxBucketBytes || at < b.start || at-b.start >= ts.spanMilli
}

// take counts a measurement.
func (b *bucket) take(ts *series, doc bson.Raw) {
	b.size += b.growth(ts, doc)
	b.count++
	it := rawbson.NewIter(doc)
	for it.Next() {
		if !ts.isMeta(it.Key) {
			b.fields[string(it.Key)] = true
		}
	}
}

// wrote takes note that the bucket stands as doc now.
func (b *bucket) wrote(doc bson.Raw, columns []column, measurements int) {
	b.doc = bytes.Clone(doc)
	b.written += measurements
	for _, c := range columns {
		b.known[c.name] = true
	}
	b.bounds.settle()
}

// column is what measurements add to a column: elements named by their number.
type column struct {
	name   string
	values []byte
}

// columns takes measurements apart. The server's order of columns is that of a
// hash table and means nothing; here it is that of the measurements, with the time
// last.
func (b *bucket) columns(ts *series, docs []bson.Raw) []column {
	var list []column
	place := map[string]int{}
	for n, doc := range docs {
		number := arrayKey(b.written + n)
		it := rawbson.NewIter(doc)
		for it.Next() {
			if ts.isMeta(it.Key) {
				continue
			}
			i, ok := place[string(it.Key)]
			if !ok {
				i = len(list)
				list = append(list, column{name: string(it.Key)})
				place[list[i].name] = i
			}
			list[i].values = appendValue(list[i].values, number, &it.Elem)
		}
	}
	if i, ok := place[ts.timeField]; ok {
		time := list[i]
		list = append(slices.Delete(list, i, i+1), time)
	}
	return list
}

// document is a new bucket.
func (b *bucket) document(columns []column) bson.Raw {
	i, doc := bsoncore.AppendDocumentStart(nil)
	doc = bsoncore.AppendObjectIDElement(doc, "_id", b.id)
	j, doc := bsoncore.AppendDocumentElementStart(doc, "control")
	doc = bsoncore.AppendInt32Element(doc, "version", 1)
	doc = bsoncore.AppendDocumentElement(doc, "min", b.bounds.document(lowest))
	doc = bsoncore.AppendDocumentElement(doc, "max", b.bounds.document(highest))
	doc, _ = bsoncore.AppendDocumentEnd(doc, j)
	if b.meta != nil {
		doc = appendValue(doc, "meta", b.meta)
	}
	j, doc = bsoncore.AppendDocumentElementStart(doc, "data")
	for _, c := range columns {
		doc = bsoncore.AppendDocumentElement(doc, c.name, bsoncore.BuildDocument(nil, c.values))
	}
	doc, _ = bsoncore.AppendDocumentEnd(doc, j)
	doc, _ = bsoncore.AppendDocumentEnd(doc, i)
	return doc
}

// delta is the difference that measurements make to the bucket as it stands, the
// diff of a $v: 2 entry.
func (b *bucket) delta(columns []column) bson.Raw {
	i, diff := bsoncore.AppendDocumentStart(nil)
	low, lower := b.bounds.changes(lowest)
	high, higher := b.bounds.changes(highest)
	if lower || higher {
		j, sub := bsoncore.AppendDocumentElementStart(diff, "scontrol")
		if lower {
			sub = bsoncore.AppendDocumentElement(sub, "smin", low)
		}
		if higher {
			sub = bsoncore.AppendDocumentElement(sub, "smax", high)
		}
		diff, _ = bsoncore.AppendDocumentEnd(sub, j)
	}
	j, diff := bsoncore.AppendDocumentElementStart(diff, "sdata")
	var added []byte
	for _, c := range columns {
		if !b.known[c.name] {
			added = bsoncore.AppendDocumentElement(added, c.name, bsoncore.BuildDocument(nil, c.values))
		}
	}
	if added != nil {
		diff = bsoncore.AppendDocumentElement(diff, "i", bsoncore.BuildDocument(nil, added))
	}
	for _, c := range columns {
		if b.known[c.name] {
			inner := bsoncore.AppendDocumentElement(nil, "i", bsoncore.BuildDocument(nil, c.values))
			diff = bsoncore.AppendDocumentElement(diff, "s"+c.name, bsoncore.BuildDocument(nil, inner))
		}
	}
	diff, _ = bsoncore.AppendDocumentEnd(diff, j)
	diff, _ = bsoncore.AppendDocumentEnd(diff, i)
	return diff
}

// normalized sorts the fields of a value's documents, so that metadata is the same
// in whatever order it is given.
func normalized(e *rawbson.Elem) rawbson.Elem {
	out := rawbson.Elem{Type: e.Type, Key: bytes.Clone(e.Key), Value: bytes.Clone(e.Value)}
	if e.Type != bson.TypeEmbeddedDocument && e.Type != bson.TypeArray {
		return out
	}
	var fields []rawbson.Elem
	it := rawbson.NewIter(e.Value)
	for it.Next() {
		fields = append(fields, normalized(&it.Elem))
	}
	if e.Type == bson.TypeEmbeddedDocument {
		slices.SortStableFunc(fields, func(a, b rawbson.Elem) int { return strings.Compare(a.Name(), b.Name()) })
	}
	i, doc := bsoncore.AppendDocumentStart(nil)
	for n := range fields {
		doc = appendValue(doc, fields[n].Name(), &fields[n])
	}
	out.Value, _ = bsoncore.AppendDocumentEnd(doc, i)
	return out
}
