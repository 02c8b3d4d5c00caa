package compare

import (
	"bytes"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/memstore"
	"github.com/oplogrep/replicator/oplog"
)

// reader is one side's documents of a collection.
type reader struct {
	next func() (bson.Raw, error, bool)
	// doc is the present document, nil after the last.
	doc bson.Raw
}

// step advances to the next document.
func (r *reader) step() error {
	doc, err, ok := r.next()
	if !ok {
		doc = nil
	}
	r.doc = doc
	return err
}

// merge compares the documents of one collection.
type merge struct {
	c         *comparison
	ns        oplog.Namespace
	want, got reader
}

// both advances to the next document on both sides.
func (m *merge) both() error {
	if err := m.want.step(); err != nil {
		return err
	}
	return m.got.step()
}

// equal compares two documents.
func (m *merge) equal(want, got bson.Raw) bool {
	return bytes.Equal(want, got) ||
		m.c.opts.AnyFieldOrder && len(want) == len(got) && bytes.Equal(memstore.SortFields(want), memstore.SortFields(got))
}

func (m *merge) same(doc bson.Raw) {
	m.c.report.Documents++
	m.c.report.Bytes += int64(len(doc))
}

func (m *merge) missing(doc bson.Raw) {
	m.c.differ(m.ns, fmt.Sprintf("_id %s: missing, want %s", shownID(doc), shown(doc)))
}

func (m *merge) extra(doc bson.Raw) {
	m.c.differ(m.ns, fmt.Sprintf("_id %s: %s, want none", shownID(doc), shown(doc)))
}

func (m *merge) other(want, got bson.Raw) {
	m.c.differ(m.ns, fmt.Sprintf("_id %s: %s, want %s", shownID(want), shown(got), shown(want)))
}

// ordered compares documents that both sides have by _id.
func (m *merge) ordered() error {
	if err := m.both(); err != nil {
		return err
	}
	for m.want.doc != nil || m.got.doc != nil {
		var err error
		switch want, got := m.want.doc, m.got.doc; {
		case want != nil && got != nil && m.equal(want, got):
			m.same(want)
			err = m.both()
		case got == nil || want != nil && byID(want, got) < 0:
			m.missing(want)
			err = m.want.step()
		case want == nil || byID(want, got) > 0:
			m.extra(got)
			err = m.got.step()
		default:
			m.other(want, got)
			err = m.both()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// natural compares documents one by one, in the order that they were written in.
func (m *merge) natural() error {
	for i := 0; ; i++ {
		if err := m.both(); err != nil {
			return err
		}
		switch want, got := m.want.doc, m.got.doc; {
		case want == nil && got == nil:
			return nil
		case want == nil:
			m.c.differ(m.ns, fmt.Sprintf("document %d in natural order: %s, want none", i, shown(got)))
		case got == nil:
			m.c.differ(m.ns, fmt.Sprintf("document %d in natural order: none, want %s", i, shown(want)))
		case m.equal(want, got):
			m.same(want)
		default:
			m.c.differ(m.ns, fmt.Sprintf("document %d in natural order: %s, want %s", i, shown(got), shown(want)))
		}
	}
}

// unordered compares documents that the two sides may have in different orders:
// each waits for the one of the other side with the same _id, to the byte.
func (m *merge) unordered() error {
	wanted, gotten := pending{}, pending{}
	for {
		if err := m.both(); err != nil {
			return err
		}
		if m.want.doc == nil && m.got.doc == nil {
			break
		}
		if doc := m.want.doc; doc != nil {
			if like, ok := gotten.take(doc); ok {
				m.pair(doc, like)
			} else {
				wanted.put(doc)
			}
		}
		if doc := m.got.doc; doc != nil {
			if like, ok := wanted.take(doc); ok {
				m.pair(like, doc)
			} else {
				gotten.put(doc)
			}
		}
		if wanted.bytes+gotten.bytes > m.c.opts.PendingBytes {
			m.c.differ(m.ns, fmt.Sprintf("given up after %d documents without their like", len(wanted.docs)+len(gotten.docs)))
			break
		}
	}
	for _, doc := range wanted.sorted() {
		m.missing(doc)
	}
	for _, doc := range gotten.sorted() {
		m.extra(doc)
	}
	return nil
}

func (m *merge) pair(want, got bson.Raw) {
	if m.equal(want, got) {
		m.same(want)
		return
	}
	m.other(want, got)
}

// pending are documents of one side by the bytes of their _ids.
type pending struct {
	docs  map[string]bson.Raw
	bytes int
}

func (p *pending) put(doc bson.Raw) {
	if p.docs == nil {
		p.docs = map[string]bson.Raw{}
	}
	p.docs[idKey(doc)] = doc
	p.bytes += len(doc)
}

func (p *pending) take(like bson.Raw) (bson.Raw, bool) {
	key := idKey(like)
	doc, ok := p.docs[key]
	if ok {
		delete(p.docs, key)
		p.bytes -= len(doc)
	}
	return doc, ok
}

func (p *pending) sorted() []bson.Raw {
	all := make([]bson.Raw, 0, len(p.docs))
	for _, doc := range p.docs {
		all = append(all, doc)
	}
	slices.SortFunc(all, byID)
	return all
}

func idOf(doc bson.Raw) bson.RawValue {
	e, _ := rawbson.Lookup(doc, "_id")
	return e.Raw()
}

func idKey(doc bson.Raw) string {
	id := idOf(doc)
	return string(byte(id.Type)) + string(id.Value)
}

// byID is the order of _ids under the simple collation.
func byID(a, b bson.Raw) int { return bsonorder.Compare(idOf(a), idOf(b), nil) }

// longest is how much of a document is shown, in bytes of text.
const longest = 300

// shown is a document with the types of its values.
func shown(doc bson.Raw) string { return shorten(doc.String(), len(doc)) }

func shownID(doc bson.Raw) string {
	id := idOf(doc)
	return shorten(id.String(), len(id.Value))
}

func shorten(text string, size int) string {
	if len(text) <= longest {
		return text
	}
	return fmt.Sprintf("%s... (%d bytes of BSON)", text[:longest], size)
}
