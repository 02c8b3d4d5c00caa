package ddl

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// The options of a collection that are deferred.
const (
	optionTemp   = "temp"
	optionExpire = "expireAfterSeconds"
)

// Options that some servers do not have.
const (
	// optionPreImages concerns change streams on the server alone. Servers from 6.2 on do not have it, and those before
	// 6.0 do not have its successor.
	optionPreImages, optionImages = "recordPreImages", "changeStreamPreAndPostImages"
	// optionRecordIDs is about how servers since 8.3 store documents. Where its feature is off, servers since 8.0 refuse it
	// (_performCollectionCreationChecks in create_collection.cpp).
	optionRecordIDs = "recordIdsReplicated"
	// optionEngine and optionIndexEngine are for the source's storage engine: a server refuses those of an engine that it
	// was built without (validateStorageEngineOptions in collection_options_validation.cpp).
	optionEngine, optionIndexEngine = "storageEngine", "indexOptionDefaults"
	// optionIDIndex, if false, is of a collection that a server before 4.0 has made without an index on _id. Later
	// ones keep such a collection, which may have got the index since, but make none (create_command.cpp).
	optionIDIndex = "autoIndexId"
)

// create creates a collection, or the time-series collection whose buckets the log
// creates.
func (s *step) create(ctx context.Context) (oplog.Namespace, error) {
	entry, err := s.op.Create()
	if err != nil {
		return "", err
	}
	ns, _ := s.target(entry.NS)
	if ns.IsPrivileges() {
		return ns, s.createPrivileges(ctx, ns)
	}
	options := split(entry.Options)
	if _, isView := options.get("viewOn"); isView { // as servers before 3.6 logged it
		def, err := s.whole(entry.NS, options.without("idIndex"))
		if err != nil {
			return ns, err
		}
		return ns, s.createView(ctx, ns, def)
	}
	name, given := ns, s.collectionOptions(options, entry.IDIndex)
	if _, series := options.get("timeseries"); series || ns.IsBuckets() {
		name = ns.Series()
		if given, err = s.seriesOptions(ns, options); err != nil {
			return name, err
		}
	}
	there, err := s.occupied(ctx, name, ns)
	if err != nil {
		return name, err
	}
	if !there {
		if err := s.createNow(ctx, name, given, name == ns); err != nil {
			return name, err
		}
	}
	if err := s.cfg.Catalog.Refresh(ctx, name, ns); err != nil {
		return name, err
	}
	coll, exists, err := s.cfg.Catalog.Get(ctx, ns)
	if err != nil {
		return name, err
	}
	if !exists {
		return name, s.diverged(name, "it is not there after it was created")
	}
	if name != ns {
		if err := s.dropSupport(ctx, coll, given, there && s.mode == Copied); err != nil {
			return name, err
		}
	}
	if err := s.releaseStale(ctx, coll); err != nil {
		return name, err
	}
	if err := s.notMissing(ctx, ns); err != nil {
		return name, err
	}
	if !there && s.mode == Copied {
		s.made[coll.UUID] = true
	}
	deferred := append(deferredOptions(options), leftOut(options, coll)...)
	return name, s.keep(ctx, &DeferredSpec{NS: ns, UUID: coll.UUID, Fields: deferred.names(), Spec: deferred.document()}, there)
}

// createPrivileges creates the collection of users or of roles with the source's first one, if the target has none of its own.
func (s *step) createPrivileges(ctx context.Context, ns oplog.Namespace) error {
	s.mode = max(s.mode, Maybe) // the server may have created it with the target's own first one since the catalog was read
	_, there, err := s.cfg.Catalog.Get(ctx, ns)
	if err != nil || there {
		return err
	}
	if _, err := s.send(ctx, change{db: ns.DB(), name: "create", first: ns.Collection()}); err != nil {
		return err
	}
	return s.cfg.Catalog.Refresh(ctx, ns)
}

// dropSupport drops the index that servers since 6.3 give a new time-series collection by themselves
// (create_collection.cpp). The log has it too where the source is such a server, as an index like any other, and
// otherwise the source has none. Of a collection that may be copied, only this index is dropped: whether it was
// copied, or an interrupted create has left it, cannot be told, and the log builds a copied one again.
func (s *step) dropSupport(ctx context.Context, buckets *catalog.Collection, series fields, copied bool) error {
	specs, err := catalog.Indexes(ctx, s.reader, buckets.NS)
	if err != nil {
		return err
	}
	key := supportKey(series)
	for _, spec := range specs {
		if found, _ := rawbson.Lookup(spec, "key"); copied && !bytes.Equal(found.Value, key) {
			continue
		}
		name := textOf(spec, "name")
		if err := s.dropIndex(ctx, buckets, name); err != nil {
			return fmt.Errorf("drop the index %s that it was made with: %w", name, err)
		}
	}
	return nil
}

// supportKey returns the key that this index has. It is nil for a time series without a field for metadata: such a one gets no index.
func supportKey(series fields) bson.Raw {
	v, _ := series.get("timeseries")
	of, _ := v.DocumentOK()
	timeField, metaField := textOf(of, "timeField"), textOf(of, "metaField")
	if metaField == "" {
		return nil
	}
	return bson.Raw(bsoncore.NewDocumentBuilder().AppendInt32("meta", 1).
		AppendInt32("control.min."+timeField, 1).AppendInt32("control.max."+timeField, 1).Build())
}

// createNow creates a collection, without the options that the target does not have.
func (s *step) createNow(ctx context.Context, ns oplog.Namespace, options fields, plain bool) error {
	_, bare := options.get(optionIDIndex)
	options = options.without(optionIDIndex)
	refused := s.createWith(ctx, ns, options, plain)
	err := refused
	var removed []string
	for _, names := range omissions(omittable(options, refused)) {
		removed = names
		if err = s.createWith(ctx, ns, options.without(names...), plain); !refusesOption(err) {
			break
		}
	}
	if err != nil {
		return err
	}
	s.logOmitted(ns, removed, refused)
	if bare {
		s.logRemoved(ns, optionIDIndex, errIDIndex)
	}
	return nil
}

// optional are the options that a collection need not have on the target.
var optional = []string{optionPreImages, optionImages, optionRecordIDs, optionEngine, optionIndexEngine}

// omissions returns the sets of options to leave out of a command, those with the fewest first: none is left out that the target accepts.
func omissions(names []string) (sets [][]string) {
	for set := uint(1); set < 1<<len(names); set++ {
		var omitted []string
		for i, name := range names {
			if set>>i&1 == 1 {
				omitted = append(omitted, name)
			}
		}
		sets = append(sets, omitted)
	}
	slices.SortStableFunc(sets, func(a, b []string) int { return cmp.Compare(len(a), len(b)) })
	return sets
}

func (s *step) logRemoved(ns oplog.Namespace, option string, why error) {
	s.log(slog.LevelWarn, "option that the target does not have is left out",
		slog.String(keyNS, string(ns)), slog.String(keyOption, option), slog.Any(keyError, why))
}

// errIDIndex is the reason why optionIDIndex is left out.
var errIDIndex = errors.New("servers make no collection without an index on _id any more: the target's has one")

// createWith creates a collection: in a transaction if that is possible, and if there are
// not thousands to create, as for a copy.
func (s *step) createWith(ctx context.Context, ns oplog.Namespace, options fields, plain bool) error {
	if plain && s.mode != Copied {
		body := bson.Raw(options.appendTo(command("create", ns.Collection())).Build())
		err := s.within(ctx, mongo.Command{DB: ns.DB(), Body: body})
		if !says(err, servererr.IsNotInTransaction) {
			return err
		}
	}
	_, err := s.send(ctx, change{db: ns.DB(), name: "create", first: ns.Collection(), rest: options})
	return err
}

// occupied reports whether the collection exists already. That it exists, or that
// something else has its name, may be an error.
func (s *step) occupied(ctx context.Context, name, ns oplog.Namespace) (bool, error) {
	coll, exists, err := s.cfg.Catalog.Get(ctx, name)
	if err != nil || !exists {
		return false, err
	}
	wanted := catalog.TypeCollection
	if name != ns {
		wanted = catalog.TypeTimeseries
	}
	switch {
	case s.mode == Once:
		return false, s.diverged(name, "there is a %s already", coll.Type)
	case coll.Type == wanted:
		if s.mode == Copied {
			s.tolerate(name, "it exists")
		}
		return true, nil
	case s.mode == Maybe:
		return false, s.diverged(name, "there is a %s already", coll.Type)
	case coll.Type == catalog.TypeView:
		// The view is newer, and the log creates it again.
		s.tolerate(name, "there is a view")
		return false, s.dropNow(ctx, name)
	}
	source, _ := s.cfg.Scope.Source(name)
	return false, s.resync(source, "the copy has a %s in its place", coll.Type)
}

// deferredOptions returns the options of a collection that are deferred.
func deferredOptions(options fields) fields {
	deferred := options.only(optionTemp, optionExpire)
	if !options.truth(optionTemp) {
		deferred = deferred.without(optionTemp)
	}
	return deferred
}

// collectionOptions returns the options of the command that creates a collection.
func (s *step) collectionOptions(options fields, idIndex bson.Raw) fields {
	send := options.without(optionTemp, optionExpire, "flags") // flags: the storage engine's before 4.2
	if !send.truth("capped") {
		send = send.without("capped", "size", "max")
	} else if isZero(send, "size") {
		send = send.set("size", cappedLeast)
	}
	if send.truth(optionIDIndex) {
		send = send.without(optionIDIndex) // the default, which conflicts with idIndex
	}
	if _, clustered := send.get("clusteredIndex"); !clustered {
		spec := s.idIndex(send, idIndex)
		send = send.set("idIndex", documentValue(spec.document()))
	}
	return send
}

// cappedLeast is the size, in bytes, that servers take a capped collection with a size of 0 for: those before 4.4 made such ones, and
// later ones do not (create.idl, getRecordStoreOptions in collection_record_store_options.cpp).
var cappedLeast = bson.RawValue{Type: bson.TypeInt32, Value: bsoncore.AppendInt32(nil, 4096)}

// isZero reports whether an option is the number 0.
func isZero(options fields, name string) bool {
	v, _ := options.get(name)
	n, isNumber := (&rawbson.Elem{Type: v.Type, Value: v.Value}).Int64()
	return isNumber && n == 0
}

// idIndex returns the spec of the index on _id. Where the log has none, a member builds
// the oldest possible version. Servers before 3.4 stored other fields than those that later ones
// accept (validateIdIndexSpec in index_key_validate.cpp); none of them means anything there.
func (s *step) idIndex(options fields, given bson.Raw) fields {
	if given != nil {
		return split(given).only("v", "key", "name", "collation")
	}
	version := int32(1)
	collation, collated := options.get("collation")
	if collated {
		version = 2
	}
	spec := fields{
		{"v", bson.RawValue{Type: bson.TypeInt32, Value: bsoncore.AppendInt32(nil, version)}},
		{"key", documentValue(bson.Raw(bsoncore.NewDocumentBuilder().AppendInt32("_id", 1).Build()))},
		{"name", stringValue("_id_")},
	}
	if collated {
		spec = append(spec, field{"collation", collation})
	}
	return spec
}

// seriesOptions returns the options of the command that creates a time-series collection:
// those of its buckets, without the ones that the server derives. Servers later than 8.2 may make
// one whose buckets have its own name.
func (s *step) seriesOptions(ns oplog.Namespace, options fields) (fields, error) {
	_, ok := options.get("timeseries")
	switch {
	case !ok:
		return nil, s.op.Fault("o.timeseries", fmt.Errorf("%w: buckets without it", oplog.ErrMissingField))
	case !ns.IsBuckets():
		return nil, s.op.Fault("o.timeseries", fmt.Errorf("%w: a time-series collection without buckets of its own", oplog.ErrUnsupported))
	}
	return options.without(optionTemp, optionExpire).without(derivedOptions...), nil
}

// derivedOptions are the options of buckets that the server derives from those of the time series.
var derivedOptions = []string{"validator", "validationLevel", "validationAction", "clusteredIndex"}
