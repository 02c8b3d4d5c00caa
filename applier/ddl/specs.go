package ddl

import (
	"context"
	"errors"
	"fmt"
	"slices"

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
	// Spec is the whole index as the source has it, or the collection's deferred options.
	Spec bson.Raw
}

// Specs are all deferred specs of a link.
type Specs []DeferredSpec

// deferredCollection is the collection of deferred specs, in the metadata database.
const deferredCollection = metadata.Deferred

// ReadDeferred reads the deferred specs of a link.
func ReadDeferred(ctx context.Context, target mongo.Caller, metaDB, link string) (Specs, error) {
	filter := bsoncore.NewDocumentBuilder().AppendString("_id.link", link).Build()
	return readDeferred(ctx, target, metaDB, filter)
}

func readDeferred(ctx context.Context, target mongo.Caller, metaDB string, filter bsoncore.Document) (Specs, error) {
	docs, err := findDeferred(ctx, target, metaDB, filter)
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
func findDeferred(ctx context.Context, target mongo.Caller, metaDB string, filter bsoncore.Document) ([]bson.Raw, error) {
	cmd := command("find", deferredCollection).AppendDocument("filter", filter).
		AppendDocument("sort", bsoncore.NewDocumentBuilder().AppendInt32("_id", 1).Build())
	docs, err := catalog.ReadAll(ctx, target, metaDB, bson.Raw(cmd.Build()))
	if err != nil {
		return nil, fmt.Errorf("read deferred specs of %s.%s: %w", metaDB, deferredCollection, err)
	}
	return docs, nil
}

func deferredFault(metaDB string, doc bson.Raw, err error) error {
	return fmt.Errorf("read deferred specs of %s.%s: %w: %s", metaDB, deferredCollection, err, doc)
}

var errDeferred = errors.New("a document that is no deferred spec")

func parseDeferred(doc bson.Raw) (DeferredSpec, error) {
	var h DeferredSpec
	id, _ := doc.Lookup("_id").DocumentOK()
	ns := textOf(id, "ns")
	h.NS, h.Index = oplog.Namespace(ns), textOf(id, "index")
	h.Absent, _ = doc.Lookup("absent").BooleanOK()
	_, spec, hasSpec := doc.Lookup("spec").BinaryOK()
	h.Spec = spec
	subtype, uuid, hasUUID := doc.Lookup("uuid").BinaryOK()
	if !h.NS.IsCollection() || !hasSpec || !hasUUID || subtype != bson.TypeBinaryUUID || len(uuid) != len(h.UUID) {
		return h, errDeferred
	}
	h.UUID = oplog.UUID(uuid)
	names, _ := doc.Lookup("deferred").ArrayOK()
	it := rawbson.NewIter(names)
	for it.Next() {
		name, _ := it.Text()
		h.Fields = append(h.Fields, name)
	}
	return h, rawbson.Validate(h.Spec)
}

// deferredFilter selects the deferred specs of a collection.
func (s *step) deferredFilter(ns oplog.Namespace) *bsoncore.DocumentBuilder {
	return bsoncore.NewDocumentBuilder().AppendString("_id.link", s.cfg.Link).AppendString("_id.ns", string(ns))
}

// deferred reads the deferred specs of a collection.
func (s *step) deferred(ctx context.Context, ns oplog.Namespace) (Specs, error) {
	return readDeferred(ctx, s.reader, s.cfg.MetaDB, s.deferredFilter(ns).Build())
}

func (h Specs) find(index string) (DeferredSpec, bool) {
	i := slices.IndexFunc(h, func(x DeferredSpec) bool { return x.Index == index })
	if i < 0 {
		return DeferredSpec{}, false
	}
	return h[i], true
}

func (s *step) deferredID(h *DeferredSpec) bsoncore.Document {
	return bsoncore.NewDocumentBuilder().
		AppendString("link", s.cfg.Link).AppendString("ns", string(h.NS)).AppendString("index", h.Index).Build()
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
	id := s.deferredID(h)
	names := bsoncore.NewArrayBuilder()
	for _, name := range h.Fields {
		names.AppendString(name)
	}
	doc := bsoncore.NewDocumentBuilder().
		AppendDocument("_id", id).
		AppendBinary("uuid", bson.TypeBinaryUUID, h.UUID[:]).
		AppendArray("deferred", names.Build())
	if h.Absent {
		doc.AppendBoolean("absent", true)
	}
	doc.AppendBinary("spec", 0, h.Spec)
	update := bsoncore.NewDocumentBuilder().
		AppendDocument("q", bsoncore.NewDocumentBuilder().AppendDocument("_id", id).Build()).
		AppendDocument("u", doc.Build()).
		AppendBoolean("upsert", true).
		Build()
	cmd := command("update", deferredCollection).AppendArray("updates", bsoncore.NewArrayBuilder().AppendDocument(update).Build())
	if err := s.write(ctx, cmd); err != nil {
		return fmt.Errorf("store the deferred spec of %s: %w", h.NS, err)
	}
	return nil
}

// release deletes the deferred specs that a filter selects.
func (s *step) release(ctx context.Context, filter *bsoncore.DocumentBuilder) error {
	statement := bsoncore.NewDocumentBuilder().AppendDocument("q", filter.Build()).AppendInt32("limit", 0).Build()
	cmd := command("delete", deferredCollection).AppendArray("deletes", bsoncore.NewArrayBuilder().AppendDocument(statement).Build())
	if err := s.write(ctx, cmd); err != nil {
		return fmt.Errorf("delete deferred specs: %w", err)
	}
	return nil
}

// releaseIndex deletes the deferred spec of one index, or, without a name, of the
// collection's options.
func (s *step) releaseIndex(ctx context.Context, ns oplog.Namespace, index string) error {
	return s.release(ctx, s.deferredFilter(ns).AppendString("_id.index", index))
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
	other := bsoncore.NewDocumentBuilder().AppendBinary("$ne", bson.TypeBinaryUUID, uuid[:]).Build()
	if err := s.release(ctx, s.deferredFilter(to).AppendDocument("uuid", other)); err != nil {
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
