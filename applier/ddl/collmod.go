package ddl

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// collMod changes options and an index, each on the target or, if it is deferred, in the
// metadata. All changes set final values, so it is idempotent.
func (s *step) collMod(ctx context.Context) (oplog.Namespace, error) {
	entry, err := s.op.CollMod()
	if err != nil {
		return "", err
	}
	ns, _ := s.target(entry.NS)
	coll, deferred, err := s.existing(ctx, ns)
	if err != nil || coll == nil {
		return ns, err
	}
	own, _ := deferred.find("")
	m := modification{step: s, coll: coll, deferred: deferred, options: split(own.Spec)}
	for _, f := range split(entry.Changes) {
		if err := m.take(ctx, f); err != nil {
			return ns, err
		}
	}
	if len(m.send) > 0 {
		err := m.change(ctx)
		if m.converts && refusesConversion(err) {
			*s.gate.converts = false
			return s.collMod(ctx)
		}
		if err != nil {
			return ns, m.refused(err)
		}
	}
	if m.changed {
		if err := s.keep(ctx, m.optionsSpec(), true); err != nil {
			return ns, err
		}
	}
	for i := range m.keepers {
		_, was := deferred.find(m.keepers[i].Index)
		if err := s.keep(ctx, &m.keepers[i], was); err != nil {
			return ns, err
		}
	}
	if m.loosened != nil {
		if err := m.loosen(ctx); err != nil {
			return ns, err
		}
	}
	names := []oplog.Namespace{ns}
	if ns.IsBuckets() {
		names = append(names, ns.Series())
	}
	return ns, s.cfg.Catalog.Refresh(ctx, names...)
}

// modification is a collMod, divided into its parts.
type modification struct {
	*step
	coll     *catalog.Collection
	deferred Specs
	// send goes to the target; options, of the collection, and keepers, of indexes, are deferred from now on.
	send, options fields
	keepers       []DeferredSpec
	// changed is set if options are others than before.
	changed bool
	// index is the name of the index that changes.
	index string
	// converts is set if send makes an index unique, or prepares it for that.
	converts bool
	// loosened, if not nil, is an index that becomes one that is not unique, which the target cannot do by collMod.
	loosened *DeferredSpec
}

// change sends the changes to the target. The granularity of a time series only ever gets
// coarser: that of a copy may be newer.
func (m *modification) change(ctx context.Context) error {
	coll := m.coll
	if m.coll.NS.IsBuckets() {
		series, exists, err := m.cfg.Catalog.Get(ctx, m.coll.NS.Series())
		if err != nil {
			return err
		}
		if !exists {
			return m.diverged(m.coll.NS, "its time series is gone")
		}
		coll = series
	}
	name := coll.NS
	d := change{db: name.DB(), name: "collMod", first: name.Collection(), rest: m.send, coll: coll}
	if given := m.send.only(clientsOptions...).names(); len(m.options.only(given...)) > 0 {
		m.options, m.changed = m.options.without(given...), true
	}
	_, err := m.step.send(ctx, d)
	ofIndex := m.converts && refusesConversion(err)
	if names := omittable(m.send, err); len(names) > 0 && !ofIndex { // of the optional ones, collMod has those about change streams
		err = m.changeWithout(ctx, d, names, err)
	}
	if _, coarser := m.send.get("timeseries"); !coarser || m.mode != Copied || !says(err, servererr.IsOptionRefused) {
		return err
	}
	m.tolerate(name, err.Error())
	if m.send = m.send.without("timeseries"); len(m.send) == 0 {
		return nil
	}
	d.rest = m.send
	_, err = m.step.send(ctx, d)
	return err
}

func (m *modification) take(ctx context.Context, f field) error {
	switch {
	case f.name == "index":
		return m.takeIndex(ctx, f.value)
	case f.name == optionExpire:
		m.takeExpire(f.value)
	case ofServer(f.name):
	case !generic(f.name):
		m.send = append(m.send, f)
	}
	return nil
}

// generic reports whether a field is one that any command may have: servers have logged
// collMod as it was sent.
func generic(name string) bool {
	switch name {
	case "lsid", "txnNumber", "writeConcern", "readConcern", "comment", "maxTimeMS", "apiVersion", "apiStrict",
		"apiDeprecationErrors", "databaseVersion", "shardVersion", "maxTimeMSOpOnly", "autocommit", "startTransaction",
		"stmtId", "coordinator", "clientOperationKey", "mayBypassWriteBlocking", "rawData", "help",
		"usePowerOf2Sizes", "noPadding": // the last two of the storage engine before 4.2
		return true
	}
	return strings.HasPrefix(name, "$")
}

// ofServer reports whether a field is about how a server stores buckets of time series, and not an
// option: whether they may have values of several types in a field, which is found out when the
// target refuses one (mongo.AllowMixedBuckets), or a flag that the upgrade to a newer version
// removes (coll_mod.idl). No target has to have the same, and older ones do not know them.
func ofServer(name string) bool {
	return name == "timeseriesBucketsMayHaveMixedSchemaData" || name == "_removeLegacyTimeseriesBucketingParametersHaveChanged"
}

// takeExpire changes the age at which the documents of a clustered or time-series
// collection expire; "off" ends that.
func (m *modification) takeExpire(v bson.RawValue) {
	m.changed = true
	if text, isText := v.StringValueOK(); isText && text == "off" {
		m.options = m.options.without(optionExpire)
	} else {
		m.options = m.options.set(optionExpire, v)
	}
}

// takeIndex changes an index.
func (m *modification) takeIndex(ctx context.Context, v bson.RawValue) error {
	change, ok := v.DocumentOK()
	if !ok {
		return m.op.Fault("o.index", fmt.Errorf("%w: it is %s", oplog.ErrBadField, v))
	}
	name, err := nameOf(change)
	if err != nil {
		return m.op.Fault("o.index.name", fmt.Errorf("%w: %w", oplog.ErrBadField, err))
	}
	m.index = name
	present, err := catalog.Indexes(ctx, m.reader, m.coll.NS)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(present, func(doc bson.Raw) bool { return textOf(doc, "name") == name })
	h, wasDeferred := m.deferred.find(name)
	switch {
	case at < 0 && !h.Absent:
		return m.absent(m.coll.NS, "there is no index "+name)
	case !wasDeferred:
		h = DeferredSpec{NS: m.coll.NS, UUID: m.coll.UUID, Index: name, Spec: present[at]}
	}
	if err := m.deferConversion(ctx, &h, change); err != nil {
		return err
	}
	spec := split(h.Spec)
	send := fields{{"name", stringValue(name)}}
	for _, f := range split(change).without("name") {
		switch f.name {
		case optionExpire:
			spec = spec.set(f.name, f.value)
		case "hidden", "prepareUnique", "unique":
			on := fields{f}.truth(f.name)
			spec = spec.setFlag(f.name, on)
			if f.name == "unique" {
				spec = spec.without("prepareUnique")
			}
		case notUnique: // since 6.1
			spec = spec.without("unique")
		default:
			return m.op.Fault("o.index."+f.name, fmt.Errorf("%w: a change of an index with an unknown field", oplog.ErrUnsupported))
		}
		if deferred := m.deferredFields(&h); !slices.Contains(deferred, f.name) && (f.name != notUnique || !slices.Contains(deferred, "unique")) {
			send = append(send, f)
			m.converts = m.converts || slices.Contains(conversion, f.name)
		}
	}
	h.Spec, h.Fields = spec.document(), m.deferredOf(&h, spec)
	if rebuilds, err := m.rebuilds(ctx, send); err != nil || rebuilds {
		m.loosened = &h
		return err
	}
	if slices.Contains(h.Fields, optionExpire) || wasDeferred || len(h.Fields) > 0 {
		m.keepers = append(m.keepers, h)
	}
	if len(send) > 1 && at >= 0 {
		m.send = append(m.send, field{"index", documentValue(send.document())})
	}
	return nil
}

// conversion are the fields by which an index becomes unique, which servers have since 6.0, under that feature compatibility
// version.
var conversion = []string{"unique", "prepareUnique"}

// deferConversion defers the uniqueness of an index that the target cannot convert: it gets that at cutover, where it is dropped and
// built again if need be. A server before 5.0 ignores such a field next to another one, so it must not be sent to find that out.
func (m *modification) deferConversion(ctx context.Context, h *DeferredSpec, change bson.Raw) error {
	if h.isRelaxed() || m.cfg.UniqueIndexes != Serialized || m.mode == Copied {
		return nil // it is deferred anyway
	}
	asked := split(change).only(conversion...).names()
	if len(asked) == 0 {
		return nil
	}
	can, err := m.gate.takesConversion(ctx)
	if err != nil || can {
		return err
	}
	h.Fields = append(slices.Clone(h.Fields), asked...)
	return nil
}

// refusesConversion reports whether the target refuses to convert an index, under an older feature compatibility version
// (gCollModIndexUnique in coll_mod.cpp).
func refusesConversion(err error) bool {
	return says(err, servererr.IsOptionRefused) && strings.Contains(err.Error(), "does not support converting an index")
}

// notUnique makes a unique index one that is not, since 6.1 (coll_mod.idl).
const notUnique = "forceNonUnique"

// rebuilds reports whether a change makes an index one that is not unique on a target that cannot do so by collMod.
func (m *modification) rebuilds(ctx context.Context, index fields) (bool, error) {
	if _, loosens := index.get(notUnique); !loosens {
		return false, nil
	}
	can, err := m.gate.takesNotUnique(ctx)
	return !can, err
}

// loosen drops a unique index, and builds it as one that is not. It is recorded as absent before, so that an attempt that finds it gone builds it.
func (m *modification) loosen(ctx context.Context) error {
	h := m.loosened
	h.Absent = true
	if err := m.store(ctx, h); err != nil {
		return err
	}
	m.log(slog.LevelInfo, "unique index is built again as one that is not", slog.String(keyNS, string(m.coll.NS)), slog.String(keyIndex, h.Index))
	if err := m.dropIndex(ctx, m.coll, h.Index); err != nil && !says(err, servererr.IsNoIndex) {
		return err
	}
	return m.revive(ctx, m.coll.NS, func(other *DeferredSpec) bool { return other.Index == h.Index })
}

var errNoName = errors.New("without a name")

// nameOf returns the name of an index in a command.
func nameOf(index bson.Raw) (string, error) {
	e, _ := rawbson.Lookup(index, "name")
	name, ok := e.Text()
	if !ok || name == "" {
		return "", errNoName
	}
	return name, nil
}

// refused returns the error for the target's refusal.
func (m *modification) refused(err error) error {
	if says(err, servererr.IsNotUnique) {
		return &UniqueError{OpTime: m.op.OpTime, NS: m.coll.NS, Index: m.index, Err: err}
	}
	return err
}

// collModOf changes an index, without a time limit.
func collModOf(coll *catalog.Collection, index bson.Raw) change {
	return change{
		db: coll.NS.DB(), name: "collMod", first: coll.NS.Collection(), coll: coll, builds: true,
		rest: fields{{"index", documentValue(index)}},
	}
}
