package serverupdate

import (
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// document is an object between stages, as the server keeps it: the bytes that
// it was read from and a cache of the fields that were read or written since.
// The cache hides every field of the same name in the bytes. Readers share a
// document and may fill its cache; writers go through mutable.
type document struct {
	backing []byte // valid BSON; nil for a document made afresh
	cache   []slot // in the order in which fields were first touched
	index   map[string]int
	// modified is whether anything was ever written, be it the same value.
	modified bool
}

// slot is one cached field. A missing value is a hole that keeps the place.
type slot struct {
	name string
	val  value
}

func newDocument(backing []byte) *document { return &document{backing: backing} }

func (d *document) append(name string, v value) {
	if d.index == nil {
		d.index = make(map[string]int)
	}
	d.index[name] = len(d.cache)
	d.cache = append(d.cache, slot{name, v})
}

// get reads a field: from the cache, else the first of that name in the bytes,
// which reading brings into the cache.
func (d *document) get(name string) value {
	if i, ok := d.index[name]; ok {
		return d.cache[i].val
	}
	if d.backing == nil {
		return value{}
	}
	elem, ok := rawbson.Lookup(d.backing, name)
	if !ok {
		return value{}
	}
	v := fromRaw(elem.Type, elem.Value)
	d.append(name, v)
	return v
}

// put writes a field. It does not look into the bytes: whether the field has a
// place there shows when the document is walked.
func (d *document) put(name string, v value) {
	d.modified = true
	if i, ok := d.index[name]; ok {
		d.cache[i].val = v
		return
	}
	d.append(name, v)
}

// place is one step of a walk: a cached field, or an element of the bytes that
// the cache does not hide.
type place struct {
	name   string
	cached bool
	val    value // if cached
	elem   rawbson.Elem
}

// places walks the document: the elements of the bytes in their order, each
// replaced by its cached value, then the cached fields that have no place in the
// bytes. Holes are left out.
func (d *document) places() []place {
	var out []place
	stored := make(map[string]bool)
	if d.backing != nil {
		for it := rawbson.NewIter(d.backing); it.Next(); {
			name := it.Name()
			i, cached := d.index[name]
			switch {
			case !cached:
				out = append(out, place{name: name, elem: it.Elem})
			default:
				stored[name] = true
				if v := d.cache[i].val; !v.missing() {
					out = append(out, place{name: name, cached: true, val: v})
				}
			}
		}
	}
	for _, s := range d.cache {
		if !stored[s.name] && !s.val.missing() {
			out = append(out, place{name: s.name, cached: true, val: s.val})
		}
	}
	return out
}

// fields reads every field in order, which brings all of them into the cache:
// of a name that the bytes have twice, both places show the first value.
func (d *document) fields() []slot {
	places := d.places()
	out := make([]slot, len(places))
	for i, p := range places {
		v := p.val
		if !p.cached {
			v = d.get(p.name)
		}
		out[i] = slot{p.name, v}
	}
	return out
}

// toBSON returns the document as it would be stored. One without writes is
// returned as it was read.
func (d *document) toBSON() (bson.Raw, error) {
	if !d.modified && d.backing != nil {
		return d.backing, nil
	}
	return d.appendBSON(nil, 1)
}

func (d *document) appendBSON(dst []byte, level int) ([]byte, error) {
	if level > maxConvertDepth {
		return nil, tooDeep()
	}
	if len(dst) > maxBufferSize {
		return nil, tooLong()
	}
	start, dst := bsoncore.AppendDocumentStart(dst)
	for _, p := range d.places() {
		if !p.cached {
			dst = appendRaw(dst, p.elem.Type, p.name, p.elem.Value)
			continue
		}
		var err error
		if dst, err = p.val.appendTo(dst, p.name, level); err != nil {
			return nil, err
		}
	}
	return endDocument(dst, start)
}

// mutable is a document being written. It shares its original document until
// the first write, so reads before that fill the shared cache.
type mutable struct {
	doc   *document
	owned bool
}

func fresh() *mutable { return &mutable{doc: &document{}, owned: true} }

func edit(d *document) *mutable { return &mutable{doc: d} }

func (m *mutable) set(name string, v value) {
	if !m.owned {
		c := &document{backing: m.doc.backing, modified: m.doc.modified}
		for _, s := range m.doc.cache {
			c.append(s.name, s.val)
		}
		m.doc, m.owned = c, true
	}
	m.doc.put(name, v)
}

func (m *mutable) value() value { return objectValue(m.doc) }
