package ddl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// heldAges are the expireAfterSeconds of indexes whose documents must not expire, as an index cannot be made one without
// expireAfterSeconds by collMod. The first that the server accepts is used: 68 years, so that documents with the date 0 do not
// expire before 2038. Servers from 5.0.0 to 5.0.13, 6.0.0 and 6.0.1 refuse more than the seconds since 1970 (SERVER-68477): 50 years.
var heldAges = []int64{math.MaxInt32, 1_600_000_000}

// isHeldAge reports whether an expireAfterSeconds is that of an index that is held.
func isHeldAge(n int64) bool { return slices.Contains(heldAges, n) }

// isNaN reports whether an expireAfterSeconds is not a number. Servers up to 4.4 expire nothing by such an index. It must not be sent: collMod
// stores 0 in its place, and 5.0 reads it as 0, so that all documents would expire.
func isNaN(v bson.RawValue) bool {
	if d, is := v.Decimal128OK(); is {
		return d.IsNaN()
	}
	f, is := v.DoubleOK()
	return is && math.IsNaN(f)
}

// ErrExpiryRestored reports that another process has restored options that HoldExpiry had deferred.
var ErrExpiryRestored = errors.New("another start of the link was refused meanwhile, and has restored the options that this one had deferred: start it again")

// ErrLinkBegun reports that the link has begun, and has not ended.
var ErrLinkBegun = errors.New("the link has begun")

// HoldExpiry defers the expiration of documents in the collections of a database of the target, for a
// link that is about to begin there: TTL indexes, and the ages of clustered collections and time series.
// It records their values as deferred for the link, then sends collMod with write concern majority. It
// builds no index. It is idempotent, and can be called again after it was interrupted.
//
// The deferred options belong to the link once it has begun. So HoldExpiry calls free before and after it writes each
// record: an error of free ends the call, and the record just written is deleted. It also calls free after each collMod. An
// option that has no record any more after its collMod is restored, and the error is ErrExpiryRestored: a link has begun and ended
// meanwhile, or another start was refused and has released the option. While the link runs, which is ErrLinkBegun of free, it is not
// restored: the link has applied that the source's documents expire no longer.
func HoldExpiry(ctx context.Context, target mongo.Caller, metaDB, link, db string, mirrored func(oplog.Namespace) bool, free func(context.Context) error) (held []string, err error) {
	s := &step{Executor: &Executor{cfg: Config{MetaDB: metaDB, Link: link}}}
	listed, err := catalog.List(ctx, target, db, "")
	if err != nil {
		return nil, err
	}
	uuids := map[oplog.Namespace]oplog.UUID{}
	for _, doc := range listed {
		if _, data, ok := doc.Lookup("info", "uuid").BinaryOK(); ok && len(data) == len(oplog.UUID{}) { // views and time series have none
			uuids[oplog.NewNamespace(db, textOf(doc, "name"))] = oplog.UUID(data)
		}
	}
	for _, doc := range listed {
		ns, kind := oplog.NewNamespace(db, textOf(doc, "name")), textOf(doc, "type")
		if kind == "view" || ns.IsBuckets() || ns.IsSystemViews() || !mirrored(ns) {
			continue
		}
		h := holding{step: s, target: target, free: free, ns: ns, of: ns, uuid: uuids[ns]}
		if kind == "timeseries" {
			h.of, h.uuid = ns.Buckets(), uuids[ns.Buckets()]
		}
		options, _ := doc.Lookup("options").DocumentOK()
		if err := h.options(ctx, options); err != nil {
			return h.held, fmt.Errorf("hold what expires documents of %s: %w", ns, err)
		}
		capped, _ := rawbson.Lookup(options, "capped")
		h.capped = capped.Truth()
		specs, err := catalog.Indexes(ctx, target, ns)
		if err != nil {
			return h.held, fmt.Errorf("hold what expires documents of %s: %w", ns, err)
		}
		for _, spec := range specs {
			if err := h.index(ctx, spec); err != nil {
				return h.held, fmt.Errorf("hold what expires documents of %s: %w", ns, err)
			}
		}
		held = append(held, h.held...)
	}
	return held, nil
}

// holding is one collection whose expiry is held.
type holding struct {
	*step
	target mongo.Caller
	ns, of oplog.Namespace // of is that whose options are deferred
	uuid   oplog.UUID
	capped bool
	free   func(context.Context) error
	held   []string
}

func (h *holding) options(ctx context.Context, options bson.Raw) error {
	age, found := split(options).get(optionExpire)
	if !found {
		return nil
	}
	spec := fields{{name: optionExpire, value: age}}
	return h.hold(ctx, &DeferredSpec{NS: h.of.Clone(), UUID: h.uuid, Fields: []string{optionExpire}, Spec: bytes.Clone(spec.document())}, func(dst []byte, _ int64) []byte {
		return bsoncore.AppendStringElement(dst, optionExpire, "off")
	})
}

func (h *holding) index(ctx context.Context, spec bson.Raw) error {
	age, found := split(spec).get(optionExpire)
	if n, ok := age.AsFloat64OK(); !found || ok && (n >= math.MaxInt32 || isHeldAge(int64(n))) {
		return nil
	}
	name := textOf(spec, "name")
	return h.hold(ctx, &DeferredSpec{NS: h.ns.Clone(), UUID: h.uuid, Index: name, Fields: []string{optionExpire}, Spec: bytes.Clone(spec)}, func(dst []byte, heldAge int64) []byte {
		if n, ok := age.AsInt64OK(); ok {
			heldAge = max(n, heldAge) // not less than before
		}
		return appendIndexAge(dst, name, heldAge)
	})
}

// hold records the options as deferred, then changes them.
func (h *holding) hold(ctx context.Context, spec *DeferredSpec, change func(dst []byte, heldAge int64) []byte) error {
	doc, err := h.record(ctx, spec)
	if err != nil {
		return fmt.Errorf("record deferred options: %w", err)
	}
	heldAge := heldAges[0]
	modify := func() (bson.Raw, bool, error) {
		return h.modify(ctx, func(dst []byte) []byte { return change(dst, heldAge) })
	}
	reply, once, err := modify()
	if says(err, servererr.IsOptionRefused) {
		heldAge = heldAges[1]
		reply, once, err = modify()
	}
	if h.capped && says(err, servererr.IsOptionRefused) {
		return h.replace(ctx, doc, nil) // servers from 5.1 to 7.0 expire nothing of a capped collection (SERVER-77586)
	}
	if h.of.IsBuckets() && spec.Index != "" && says(err, servererr.IsOptionRefused) {
		next := fmt.Errorf("collMod does not change the expireAfterSeconds of an index of a time series: "+
			"drop index %s and start the link again: %w", spec.Index, err)
		return errors.Join(next, h.replace(ctx, doc, nil))
	}
	if err != nil {
		return err
	}
	h.held = append(h.held, string(h.ns)+" "+spec.Index)
	return h.let(ctx, spec, func(dst []byte, linked bool) []byte {
		age, _ := split(spec.Spec).get(optionExpire)
		if remade := once && linked && spec.Index != "" && !reply.Lookup(optionExpire+"_old").IsNumber(); remade || isNaN(age) {
			return appendIndexAge(dst, spec.Index, heldAge) // it expired nothing before: a link, or an application, has made it again
		}
		return restoring(dst, spec, reply)
	})
}

// appendIndexAge appends the change of an index's age to a collMod.
func appendIndexAge(dst []byte, index string, age int64) []byte {
	return metadata.AppendDoc(dst, "index", func(dst []byte) []byte {
		return bsoncore.AppendInt64Element(bsoncore.AppendStringElement(dst, "name", index), optionExpire, age)
	})
}

// modify sends collMod for the collection. Once reports whether it was sent once.
func (h *holding) modify(ctx context.Context, change func(dst []byte) []byte) (reply bson.Raw, once bool, err error) {
	cmd := metadata.Majority(mongo.Command{DB: h.ns.DB(), Body: metadata.Document(func(dst []byte) []byte {
		return change(bsoncore.AppendStringElement(dst, "collMod", h.ns.Collection()))
	})})
	tries := 0
	err = holdRetry.Do(ctx, func() error {
		tries++
		got, err := h.target.Call(ctx, cmd)
		if err == nil && mongo.ConcernError(got) != nil {
			err = &mongo.UnconfirmedError{Err: mongo.ConcernError(got)}
		}
		reply = bytes.Clone(got)
		return err
	})
	return reply, tries == 1, err
}

// let restores the option just held if its record is gone: the options were restored before the collMod was executed, and no
// process would restore them again. Linked is whether a link may have been there meanwhile.
func (h *holding) let(ctx context.Context, spec *DeferredSpec, restore func(dst []byte, linked bool) []byte) error {
	var is bson.Raw
	err := holdRetry.Do(ctx, func() (err error) {
		is, err = metadata.FindOne(ctx, h.target, h.cfg.MetaDB, metadata.Deferred, h.deferredID(spec))
		return err
	})
	// In this order: a link that deletes the record has begun before.
	begun := holdRetry.Do(ctx, func() error { return h.free(ctx) })
	if err != nil || is != nil || errors.Is(begun, ErrLinkBegun) || outlived(begun) {
		return errors.Join(begun, err)
	}
	linked := begun != nil && !errors.Is(begun, ErrExpiryRestored)
	_, _, err = h.modify(ctx, func(dst []byte) []byte { return restore(dst, linked) })
	if err == nil && begun == nil {
		err = ErrExpiryRestored
	}
	return errors.Join(begun, err)
}

// restoring appends the change of a collMod that restores an option: to the value that it had before the command with the
// reply, if that is known.
func restoring(dst []byte, spec *DeferredSpec, reply bson.Raw) []byte {
	age, _ := split(spec.Spec).get(optionExpire)
	was := reply.Lookup(optionExpire + "_old")
	if n, isInt := was.AsInt64OK(); was.IsNumber() && (!isInt || !isHeldAge(n)) { // a decimal is no int
		age = was // not that of a command that was sent again
	}
	put := func(dst []byte) []byte {
		return bsoncore.AppendValueElement(dst, optionExpire, bsoncore.Value{Type: bsoncore.Type(age.Type), Data: age.Value})
	}
	if spec.Index == "" {
		return put(dst)
	}
	return metadata.AppendDoc(dst, "index", func(dst []byte) []byte {
		return put(bsoncore.AppendStringElement(dst, "name", spec.Index))
	})
}

// holdRetry repeats commands through a failover: all of them are idempotent, and after a collMod whose outcome is not known it has to be
// known whether its record is there.
var holdRetry = mongo.Retry{Again: outlived}

func outlived(err error) bool { return servererr.Classify(err).Passes() }

// record records a deferred option, unless the link has begun. In place of another record it puts the new one only if
// that is as it was before the link was asked for: an index may have been changed since it was held. Each has an id of
// its own: that of another process, which may belong to the link by now, is never deleted as this one's.
func (h *holding) record(ctx context.Context, spec *DeferredSpec) (doc bson.Raw, err error) {
	doc = metadata.Document(func(dst []byte) []byte {
		return bsoncore.AppendObjectIDElement(appendDeferred(h.deferredID(spec)(dst), spec), "held", bson.NewObjectID())
	})
	was, err := metadata.FindOne(ctx, h.target, h.cfg.MetaDB, metadata.Deferred, h.deferredID(spec))
	if err != nil {
		return nil, err
	}
	was = bytes.Clone(was)
	if err := h.free(ctx); err != nil {
		return nil, err
	}
	if err := h.replace(ctx, was, doc); err != nil {
		return nil, err
	}
	if err := h.free(ctx); err != nil {
		return nil, errors.Join(err, h.replace(ctx, doc, was))
	}
	return doc, nil
}

// replace puts a record in place of exactly another one. Each is nil for none. It does nothing if another process was
// faster.
func (h *holding) replace(ctx context.Context, from, to bson.Raw) error {
	var write mongo.Command
	switch {
	case from == nil:
		write = metadata.Write(h.cfg.MetaDB, "insert", metadata.Deferred, "documents", to)
	case to == nil:
		write = metadata.Delete(h.cfg.MetaDB, metadata.Deferred, wholly(from))
	default:
		write = metadata.Update(h.cfg.MetaDB, metadata.Deferred, metadata.Statement{Filter: wholly(from), Change: wholly(to)})
	}
	err := holdRetry.Do(ctx, func() error { return metadata.Run(ctx, h.target, metadata.Majority(write), -1) })
	if servererr.IsDuplicateKey(err) {
		return nil
	}
	return err
}

// wholly appends the elements of a document, as the filter of one that has all of them, or as its replacement.
func wholly(doc bson.Raw) filter {
	return func(dst []byte) []byte { return append(dst, doc[4:len(doc)-1]...) }
}
