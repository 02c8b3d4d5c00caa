package ddl

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// DeferredSpec is the part of a collection, or of one of its indexes, that is deferred until
// cutover.
type DeferredSpec struct {
	// NS is the target's collection, UUID the target's UUID of it.
	NS   oplog.Namespace
	UUID oplog.UUID
	// Index is the index's name, empty for the collection itself.
	Index string
	// Fields are the names of the deferred fields.
	Fields []string
	// Absent is set if the target does not have the index at all.
	Absent bool
	// OfDocuments is set if it is absent because of the documents, by what they contain or by how many they are, as far as is known: that
	// another index is dropped does not help.
	OfDocuments bool
	// Dropped is set while the index is dropped to be built again: see Converter.
	Dropped bool
	// Held is set by a start of a way back that has deferred it before there was a link, as long as no link
	// has changed it: see HoldExpiry.
	Held bool
	// Spec is the whole index as the source has it, or the collection's deferred options.
	Spec bson.Raw
}

// Specs are all deferred specs of a link.
type Specs []DeferredSpec

// BySource returns the names of the deferred indexes, by the source's collection; nil for a nil
// Specs, of a link whose deferred options are not known.
func (h Specs) BySource(names Scope) map[oplog.Namespace][]string {
	if h == nil {
		return nil
	}
	of := map[oplog.Namespace][]string{}
	for i := range h {
		if ns, ok := names.Source(h[i].NS); ok && h[i].Index != "" {
			of[ns] = append(of[ns], h[i].Index)
		}
	}
	for _, indexes := range of {
		slices.Sort(indexes)
	}
	return of
}

// Unknown returns the deferred fields that this release does not restore: a later one has deferred them.
func (h *DeferredSpec) Unknown() []string {
	known := append([]string{optionExpire, optionTemp}, clientsOptions...)
	if h.Index != "" {
		known = []string{optionExpire, "unique", "prepareUnique"}
	}
	var unknown []string
	for _, name := range h.Fields {
		if !slices.Contains(known, name) {
			unknown = append(unknown, name)
		}
	}
	return unknown
}

// ReadDeferred reads the deferred specs of a link.
func ReadDeferred(ctx context.Context, target mongo.Caller, metaDB, link string) (Specs, error) {
	return readDeferred(ctx, target, metaDB, ofLink(link))
}

func readDeferred(ctx context.Context, target mongo.Caller, metaDB string, which filter) (Specs, error) {
	docs, err := findDeferred(ctx, target, metaDB, which)
	if err != nil {
		return nil, err
	}
	specs := make(Specs, 0, len(docs))
	for _, doc := range docs {
		if isView(doc) {
			continue // see LeftView
		}
		h, err := parseDeferred(doc)
		if err != nil {
			return nil, deferredFault(metaDB, doc, err)
		}
		specs = append(specs, h)
	}
	return specs, nil
}

// findDeferred reads documents of deferred specs, and of views that are left out.
func findDeferred(ctx context.Context, target mongo.Caller, metaDB string, which filter) ([]bson.Raw, error) {
	docs, err := readMetadata(ctx, target, metaDB, metadata.Deferred, which)
	if err != nil {
		return nil, fmt.Errorf("read deferred specs of %s.%s: %w", metaDB, metadata.Deferred, err)
	}
	return docs, nil
}

func deferredFault(metaDB string, doc bson.Raw, err error) error {
	return fmt.Errorf("read deferred specs of %s.%s: %w: %s", metaDB, metadata.Deferred, err, doc)
}

func parseDeferred(doc bson.Raw) (DeferredSpec, error) {
	r := metadata.NewReader(doc)
	id, _ := r.Doc("_id", false)
	h := DeferredSpec{
		NS: oplog.Namespace(id.Text("ns")), Index: id.Text("index"), UUID: r.UUID("uuid"),
		Absent: r.Has("absent") && r.Bool("absent"), Dropped: r.Has("dropped") && r.Bool("dropped"), Held: r.Has("held"), Spec: r.Raw("spec"),
		OfDocuments: r.Has("ofDocuments") && r.Bool("ofDocuments"),
	}
	r.Take(id)
	r.List("deferred", func(e *rawbson.Elem) bool {
		name, ok := e.Text()
		h.Fields = append(h.Fields, strings.Clone(name))
		return ok
	})
	if !h.NS.IsCollection() {
		r.Fault("_id.ns", "a namespace")
	}
	if h.Spec == nil {
		r.Fault("spec", "a document")
	}
	return h, r.Err()
}

// ofLink selects the deferred specs of a link, and its views that are left out.
func ofLink(link string) filter {
	return func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, "_id.link", link) }
}

// deferredFilter selects the deferred specs of a collection.
func (s *step) deferredFilter(ns oplog.Namespace) filter {
	return func(dst []byte) []byte {
		return bsoncore.AppendStringElement(ofLink(s.cfg.Link)(dst), "_id.ns", string(ns))
	}
}

// deferred reads the deferred specs of a collection.
func (s *step) deferred(ctx context.Context, ns oplog.Namespace) (Specs, error) {
	return readDeferred(ctx, s.reader, s.cfg.MetaDB, s.deferredFilter(ns))
}

func (h Specs) find(index string) (DeferredSpec, bool) {
	i := slices.IndexFunc(h, func(x DeferredSpec) bool { return x.Index == index })
	if i < 0 {
		return DeferredSpec{}, false
	}
	return h[i], true
}

// deferredID appends the _id of a deferred spec.
func (s *step) deferredID(h *DeferredSpec) filter {
	return func(dst []byte) []byte {
		return metadata.AppendDoc(dst, "_id", func(dst []byte) []byte {
			dst = bsoncore.AppendStringElement(dst, "link", s.cfg.Link)
			dst = bsoncore.AppendStringElement(dst, "ns", string(h.NS))
			return bsoncore.AppendStringElement(dst, "index", h.Index)
		})
	}
}

// deferSpec stores a spec, in place of an earlier one of the same index, and logs it.
func (s *step) deferSpec(ctx context.Context, h *DeferredSpec) error {
	if err := s.store(ctx, h); err != nil {
		return err
	}
	s.logDeferred(h)
	return nil
}

func (s *step) store(ctx context.Context, h *DeferredSpec) error {
	err := s.put(ctx, metadata.Deferred, s.deferredID(h), func(dst []byte) []byte { return appendDeferred(dst, h) })
	if err != nil {
		return fmt.Errorf("store the deferred spec of %s: %w", h.NS, err)
	}
	return nil
}

// appendDeferred appends the fields of a deferred spec, but for the _id.
func appendDeferred(dst []byte, h *DeferredSpec) []byte {
	dst = bsoncore.AppendBinaryElement(dst, "uuid", bson.TypeBinaryUUID, h.UUID[:])
	names := bsoncore.NewArrayBuilder()
	for _, name := range h.Fields {
		names.AppendString(name)
	}
	dst = bsoncore.AppendArrayElement(dst, "deferred", names.Build())
	if h.Absent {
		dst = bsoncore.AppendBooleanElement(dst, "absent", true)
	}
	if h.Absent && h.OfDocuments {
		dst = bsoncore.AppendBooleanElement(dst, "ofDocuments", true)
	}
	if h.Dropped {
		dst = bsoncore.AppendBooleanElement(dst, "dropped", true)
	}
	return metadata.AppendRaw(dst, "spec", h.Spec)
}

// release deletes the deferred specs that a filter selects.
func (s *step) release(ctx context.Context, which filter) error {
	if err := s.remove(ctx, metadata.Deferred, which); err != nil {
		return fmt.Errorf("delete deferred specs: %w", err)
	}
	return nil
}

// releaseIndex deletes the deferred spec of one index, or, without a name, of the
// collection's options.
func (s *step) releaseIndex(ctx context.Context, ns oplog.Namespace, index string) error {
	return s.release(ctx, func(dst []byte) []byte {
		return bsoncore.AppendStringElement(s.deferredFilter(ns)(dst), "_id.index", index)
	})
}

// releaseStale deletes the deferred specs of earlier collections with the name of coll. There
// are some if a collection of the target was dropped by hand, after its link was deleted.
func (s *step) releaseStale(ctx context.Context, coll *catalog.Collection) error {
	specs, err := s.deferred(ctx, coll.NS)
	for i := 0; i < len(specs) && err == nil; i++ {
		if old := specs[i].UUID; old != coll.UUID {
			err = s.release(ctx, func(dst []byte) []byte {
				return bsoncore.AppendBinaryElement(s.deferredFilter(coll.NS)(dst), "uuid", bson.TypeBinaryUUID, old[:])
			})
		}
	}
	return err
}

// keep stores the deferred part of a spec, and deletes an earlier one if nothing is
// deferred (any more).
func (s *step) keep(ctx context.Context, h *DeferredSpec, was bool) error {
	switch {
	case len(h.Fields) > 0 || h.Absent:
		return s.deferSpec(ctx, h)
	case was:
		return s.releaseIndex(ctx, h.NS, h.Index)
	}
	return nil
}

// moveDeferred renames the deferred specs after a rename that was executed. The target's UUID
// distinguishes the renamed collection from the one that it replaced, so the call is
// idempotent.
func (s *step) moveDeferred(ctx context.Context, from, to oplog.Namespace, uuid oplog.UUID, stayTemp bool) error {
	err := s.release(ctx, func(dst []byte) []byte {
		return metadata.AppendDoc(s.deferredFilter(to)(dst), "uuid", func(dst []byte) []byte {
			return bsoncore.AppendBinaryElement(dst, "$ne", bson.TypeBinaryUUID, uuid[:])
		})
	})
	if err != nil {
		return err
	}
	specs, err := s.deferred(ctx, from)
	if err != nil {
		return err
	}
	for _, h := range specs {
		if h.UUID != uuid {
			continue
		}
		h.NS = to
		if h.Index == "" && !stayTemp {
			spec := split(h.Spec).without(optionTemp)
			h.Spec, h.Fields = spec.document(), spec.names()
		}
		if err := s.keep(ctx, &h, false); err != nil {
			return err
		}
	}
	return s.release(ctx, s.deferredFilter(from)) // nothing has that name now
}

// Overlay returns the options and indexes of a collection of the target as the source has
// them: with the deferred parts. The order of an index's fields and of the options is
// that of a server since 5.0.
func (h Specs) Overlay(ns oplog.Namespace, options bson.Raw, indexes []bson.Raw) (bson.Raw, []bson.Raw) {
	shown := slices.Clone(indexes)
	for _, spec := range h {
		switch {
		case spec.NS == ns && spec.Index == "":
			options = arrange(overlaid(split(options), spec.Spec, split(spec.Spec).names()), optionNames)
		case spec.NS == ns.Buckets() && spec.Index == "":
			// The time-series collection shows the age of its buckets, not their temp.
			options = arrange(overlaid(split(options), spec.Spec, []string{optionExpire}), optionNames)
		case spec.NS != ns:
		case spec.Absent:
			shown = append(shown, arrange(listedIndex(split(spec.Spec)), indexNames))
		default:
			i := slices.IndexFunc(shown, func(doc bson.Raw) bool { return textOf(doc, "name") == spec.Index })
			if i >= 0 {
				shown[i] = arrange(listedIndex(overlaid(split(shown[i]), spec.Spec, spec.Fields)), indexNames)
			}
		}
	}
	return options, shown
}

// overlaid sets fields to their values in spec.
func overlaid(f fields, spec bson.Raw, names []string) fields {
	for _, x := range split(spec).only(names...) {
		f = f.set(x.name, x.value)
	}
	return f
}

// listedIndex gives deferrable fields the types that listIndexes returns.
func listedIndex(f fields) fields {
	f = f.without("ns")
	for i := range f {
		switch e := (rawbson.Elem{Type: f[i].value.Type, Value: f[i].value.Value}); f[i].name {
		case optionExpire:
			if n, ok := e.Int64(); ok && n == int64(int32(n)) {
				f[i].value = bson.RawValue{Type: bson.TypeInt32, Value: bsoncore.AppendInt32(nil, int32(n))}
			}
		case "unique", "prepareUnique", "hidden", "sparse", "background":
			f[i].value = boolValue(e.Truth())
		}
	}
	return f
}

// optionNames and indexNames are the orders in which listCollections and listIndexes
// return fields.
var (
	optionNames = []string{
		"capped", "size", "max", "autoIndexId", "temp", "recordPreImages", "changeStreamPreAndPostImages", "storageEngine",
		"indexOptionDefaults", "validator", "validationLevel", "validationAction", "collation", "clusteredIndex",
		"expireAfterSeconds", "viewOn", "pipeline", "timeseries", "encryptedFields",
	}
	indexNames = []string{
		"v", "key", "name", "background", "unique", "hidden", "partialFilterExpression", "sparse", "expireAfterSeconds",
		"storageEngine", "weights", "default_language", "language_override", "textIndexVersion", "2dsphereIndexVersion",
		"bits", "min", "max", "bucketSize", "collation", "wildcardProjection", "columnstoreProjection",
		"columnstoreCompressor", "coarsestIndexedLevel", "finestIndexedLevel", "dropDups", "originalSpec", "clustered",
		"prepareUnique",
	}
)

// arrange sorts fields into an order; others come last.
func arrange(f fields, order []string) bson.Raw {
	place := func(x field) int {
		if i := slices.Index(order, x.name); i >= 0 {
			return i
		}
		return len(order)
	}
	f = slices.Clone(f)
	slices.SortStableFunc(f, func(a, b field) int { return place(a) - place(b) })
	return f.document()
}
