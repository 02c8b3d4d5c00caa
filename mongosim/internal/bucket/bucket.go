package bucket

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/arg"
)

// The server's limits of a bucket: measurements, and bytes as it estimates them.
const (
	MaxCount = 1000
	MaxBytes = 125 * 1024
)

// Series is a time-series collection.
type Series struct {
	TimeField string
	MetaField string // "" if there is none
	// Rounding is the number of seconds that the beginning of a bucket is rounded down
	// to, Span how many milliseconds it lasts.
	Rounding, Span int64
	Collator       *bsonorder.Collator
}

// Bucket is an open bucket of a time-series collection.
type Bucket struct {
	// ID is its _id.
	ID bson.ObjectID
	// Doc is the bucket as it was written last; nil if it was not.
	Doc bson.Raw

	ts *Series
	// start is the beginning of its span, in milliseconds.
	start int64
	// meta is its metadata in normal form; nil if it has none.
	meta *rawbson.Elem
	// count and size cover all measurements, written or pending; fields are the
	// names of all columns.
	count, size int
	fields      map[string]bool
	// These are the number of measurements and the columns in Doc.
	written int
	known   map[string]bool
	bounds  bounds
}

// New opens a bucket for a measurement taken at a time, in milliseconds. Its id
// starts with the start of its span and continues like an id of the process, in
// which the distance of the first measurement is added to four of the bytes.
func New(ts *Series, process bson.ObjectID, number uint32, at int64, meta *rawbson.Elem) *Bucket {
	seconds := at / 1000
	start := seconds - seconds%ts.Rounding
	b := &Bucket{ts: ts, start: start * 1000, meta: meta, fields: map[string]bool{}, known: map[string]bool{}, bounds: newBounds()}
	copy(b.ID[4:9], process[4:9])
	binary.BigEndian.PutUint32(b.ID[:4], uint32(start))
	binary.LittleEndian.PutUint32(b.ID[5:9], binary.LittleEndian.Uint32(b.ID[5:9])+uint32(seconds-start))
	counter := binary.BigEndian.Uint32(process[8:12])&0xffffff + number
	b.ID[9], b.ID[10], b.ID[11] = byte(counter>>16), byte(counter>>8), byte(counter)
	first := bsoncore.BuildDocument(nil, bsoncore.AppendDateTimeElement(nil, ts.TimeField, b.start))
	b.bounds.add(first, "", nil)
	return b
}

// growth is by how many bytes a measurement makes the bucket larger, as the server
// estimates it.
func (b *Bucket) growth(doc bson.Raw) int {
	size, digits := 0, numDigits(b.count)
	it := rawbson.NewIter(doc)
	for it.Next() {
		if b.ts.isMeta(it.Key) {
			continue
		}
		if !b.fields[string(it.Key)] {
			size += 12 + len(it.Key) // a field with an empty document
		}
		size += 1 + len(it.Value) + digits + 1
	}
	return size
}

func (ts *Series) isMeta(name []byte) bool { return ts.MetaField != "" && string(name) == ts.MetaField }

// Full reports whether a measurement taken at a time, in milliseconds, no longer fits.
func (b *Bucket) Full(doc bson.Raw, at int64) bool {
	return b.count >= MaxCount || b.size+b.growth(doc) > MaxBytes || at < b.start || at-b.start >= b.ts.Span
}

// Take counts a measurement, which is to be written.
func (b *Bucket) Take(doc bson.Raw) {
	b.size += b.growth(doc)
	b.count++
	it := rawbson.NewIter(doc)
	for it.Next() {
		if !b.ts.isMeta(it.Key) {
			b.fields[string(it.Key)] = true
		}
	}
}

// Wrote records that the bucket was written as doc, with the change.
func (b *Bucket) Wrote(doc bson.Raw, c *Change) {
	b.Doc = bytes.Clone(doc)
	b.written += c.measurements
	for _, c := range c.columns {
		b.known[c.name] = true
	}
	b.bounds.settle()
}

// Change is the effect of measurements on a bucket: see Bucket.Add.
type Change struct {
	// Doc is the whole bucket if it is new; Delta is the diff of a $v: 2 entry if not.
	Doc, Delta bson.Raw

	columns      []column
	measurements int
}

// Add returns the effect of the counted measurements on the bucket. It must be
// written before more are added.
func (b *Bucket) Add(docs []bson.Raw) *Change {
	c := &Change{columns: b.columns(docs), measurements: len(docs)}
	for _, doc := range docs {
		b.bounds.add(doc, b.ts.MetaField, b.ts.Collator)
	}
	if b.Doc == nil {
		c.Doc = b.document(c.columns)
	} else {
		c.Delta = b.delta(c.columns)
	}
	return c
}

// column is what measurements add to a column: elements named by their number.
type column struct {
	name   string
	values []byte
}

// columns splits measurements into columns. The server's order of columns is that
// of a hash table and means nothing; here it is that of the measurements, with the
// time last.
func (b *Bucket) columns(docs []bson.Raw) []column {
	var list []column
	place := map[string]int{}
	for n, doc := range docs {
		number := strconv.Itoa(b.written + n)
		it := rawbson.NewIter(doc)
		for it.Next() {
			if b.ts.isMeta(it.Key) {
				continue
			}
			i, ok := place[string(it.Key)]
			if !ok {
				i = len(list)
				list = append(list, column{name: string(it.Key)})
				place[list[i].name] = i
			}
			list[i].values = arg.Append(list[i].values, number, &it.Elem)
		}
	}
	if i, ok := place[b.ts.TimeField]; ok {
		time := list[i]
		list = append(slices.Delete(list, i, i+1), time)
	}
	return list
}

// document is a new bucket.
func (b *Bucket) document(columns []column) bson.Raw {
	i, doc := bsoncore.AppendDocumentStart(nil)
	doc = bsoncore.AppendObjectIDElement(doc, "_id", b.ID)
	j, doc := bsoncore.AppendDocumentElementStart(doc, "control")
	doc = bsoncore.AppendInt32Element(doc, "version", 1)
	doc = bsoncore.AppendDocumentElement(doc, "min", b.bounds.document(lowest))
	doc = bsoncore.AppendDocumentElement(doc, "max", b.bounds.document(highest))
	doc, _ = bsoncore.AppendDocumentEnd(doc, j)
	if b.meta != nil {
		doc = arg.Append(doc, "meta", b.meta)
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
func (b *Bucket) delta(columns []column) bson.Raw {
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

// Normalized sorts the fields of a value's documents, so that metadata is the same
// in whatever order it is given.
func Normalized(e *rawbson.Elem) rawbson.Elem {
	out := rawbson.Elem{Type: e.Type, Key: bytes.Clone(e.Key), Value: bytes.Clone(e.Value)}
	if e.Type != bson.TypeEmbeddedDocument && e.Type != bson.TypeArray {
		return out
	}
	var fields []rawbson.Elem
	it := rawbson.NewIter(e.Value)
	for it.Next() {
		fields = append(fields, Normalized(&it.Elem))
	}
	if e.Type == bson.TypeEmbeddedDocument {
		slices.SortStableFunc(fields, func(a, b rawbson.Elem) int { return strings.Compare(a.Name(), b.Name()) })
	}
	i, doc := bsoncore.AppendDocumentStart(nil)
	for n := range fields {
		doc = arg.Append(doc, fields[n].Name(), &fields[n])
	}
	out.Value, _ = bsoncore.AppendDocumentEnd(doc, i)
	return out
}

func numDigits(n int) int {
	if n == 0 {
		return 0 // as the server counts
	}
	return len(strconv.Itoa(n))
}
