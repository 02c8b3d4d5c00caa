package compare

import (
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/memstore"
	"github.com/oplogrep/replicator/oplog"
)

// catalog compares types, options and indexes.
func (c *comparison) catalog(p *pair) {
	want := memstore.CollectionState{NS: p.ns, Type: p.want.Type, Options: c.renamed(p), Indexes: p.want.Indexes}
	got := memstore.CollectionState{NS: p.ns, Type: p.got.Type, Options: p.got.Options, Indexes: p.got.Indexes}
	got.Options, got.Indexes = c.opts.Deferred.Overlay(p.ns, got.Options, got.Indexes)
	json := c.a.plain() || c.b.plain()
	canonical(&want, json)
	canonical(&got, json)
	prefix := string(p.ns) + ": "
	for _, text := range memstore.Diff(single(want), single(got)) {
		c.differ(p.ns, strings.TrimPrefix(text, prefix))
	}
}

func single(c memstore.CollectionState) memstore.State {
	return memstore.State{Collections: []memstore.CollectionState{c}}
}

// renamed returns the options of the first side's collection as the second side
// has to show them: a view reads what its collection is called there.
func (c *comparison) renamed(p *pair) bson.Raw {
	e, ok := rawbson.Lookup(p.want.Options, "viewOn")
	if !ok {
		return p.want.Options
	}
	on, _ := e.Text()
	to, ok := c.opts.Map(oplog.NewNamespace(p.want.NS.DB(), on))
	if !ok {
		return p.want.Options
	}
	return rewritten(p.want.Options, func(dst []byte, f *rawbson.Elem) []byte {
		if f.Is("viewOn") {
			return bsoncore.AppendStringElement(dst, "viewOn", to.Collection())
		}
		return appendElem(dst, f)
	})
}

// canonical removes meaningless fields, and converts the rest through extended
// JSON if json is true.
func canonical(c *memstore.CollectionState, json bool) {
	specs := make([]bson.Raw, len(c.Indexes))
	for i, spec := range c.Indexes {
		specs[i] = rewritten(spec, func(dst []byte, f *rawbson.Elem) []byte {
			if f.Is("ns") || f.Is("background") {
				return dst
			}
			return appendElem(dst, f)
		})
		if json {
			specs[i] = throughJSON(specs[i])
		}
	}
	c.Indexes = specs
	if json {
		c.Options = throughJSON(c.Options)
	}
}

func rewritten(doc bson.Raw, field func(dst []byte, f *rawbson.Elem) []byte) bson.Raw {
	i, dst := bsoncore.AppendDocumentStart(make([]byte, 0, len(doc)))
	it := rawbson.NewIter(doc)
	for it.Next() {
		dst = field(dst, &it.Elem)
	}
	dst, err := bsoncore.AppendDocumentEnd(dst, i)
	if it.Err() != nil || err != nil {
		return doc
	}
	return dst
}

func appendElem(dst []byte, f *rawbson.Elem) []byte {
	return append(bsoncore.AppendHeader(dst, bsoncore.Type(f.Type), f.Name()), f.Value...)
}

// throughJSON turns BSON into extended JSON and back: the catalog of a recording
// came that way, which cannot tell some things apart.
func throughJSON(doc bson.Raw) bson.Raw {
	text, err := bson.MarshalExtJSON(doc, true, false)
	if err != nil {
		return doc
	}
	var d bson.D
	if err := bson.UnmarshalExtJSON(text, true, &d); err != nil {
		return doc
	}
	back, err := bson.Marshal(d)
	if err != nil {
		return doc
	}
	return back
}
