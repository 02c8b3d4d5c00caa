package ddl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// expireNever is the expireAfterSeconds of an index whose documents must not expire: 50 years. An index cannot be made one
// without expireAfterSeconds by collMod, and servers up to 5.0.13 and 6.0.1 refuse more than the seconds since 1970
// (index_key_validate.cpp, SERVER-68477).
const expireNever = 1_600_000_000

// isNaN reports whether an expireAfterSeconds is not a number. Servers up to 4.4 expire nothing by such an index. It must not be sent: collMod
// stores 0 in its place, and 5.0 reads it as 0, so that all documents would expire.
func isNaN(v bson.RawValue) bool {
	f, is := v.DoubleOK()
	return is && math.IsNaN(f)
}

// ErrExpiryRestored reports that another process has restored options that HoldExpiry had deferred.
var ErrExpiryRestored = errors.New("another start of the link was refused meanwhile, and has restored the options that this one had deferred: start it again")

// HoldExpiry defers the expiration of documents in the collections of a database of the target, for a
// link that is about to begin there: TTL indexes, and the ages of clustered collections and time series.
// It records their values as deferred for the link, then sends collMod with write concern majority. It
// builds no index. It is idempotent, and can be called again after it was interrupted.
//
// The deferred options belong to the link once it has begun. So HoldExpiry calls free before and after it writes each
// record: an error of free ends the call, and the record just written is deleted. It also calls free after each collMod. An
// option that has no record any more after its collMod is restored, and the error is ErrExpiryRestored: a link has begun and ended
// meanwhile, or another start was refused and has released the option.
func HoldExpiry(ctx context.Context, target mongo.Caller, metaDB, link, db string, mirrored func(oplog.Namespace) bool, free func(context.Context) error) (held []string, err error) {
	s := &step{Executor: &Executor{cfg: Config{MetaDB: metaDB, Link: link}}}
	listed, err := catalog.List(ctx, target, db, "")
	if err != nil {
		return nil, err
	}
	uuids := map[oplog.Namespace]oplog.UUID{}
	for _, doc := range listed {
		_, data := doc.Lookup("info", "uuid").Binary()
		if name := textOf(doc, "name"); len(data) == len(oplog.UUID{}) {
			uuids[oplog.NewNamespace(db, name)] = oplog.UUID(data)
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
		if capped, _ := rawbson.Lookup(options, "capped"); capped.Truth() {
			continue // its indexes expire nothing, and newer servers refuse to change that of one
		}
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
	free   func(context.Context) error
	held   []string
}

func (h *holding) options(ctx context.Context, options bson.Raw) error {
	age, found := split(options).get(optionExpire)
	if !found {
		return nil
	}
	spec := fields{{name: optionExpire, value: age}}
	return h.hold(ctx, &DeferredSpec{NS: h.of.Clone(), UUID: h.uuid, Fields: []string{optionExpire}, Spec: bytes.Clone(spec.document())}, func(dst []byte) []byte {
		return bsoncore.AppendStringElement(dst, optionExpire, "off")
	})
}

func (h *holding) index(ctx context.Context, spec bson.Raw) error {
	age, found := split(spec).get(optionExpire)
	if n, ok := age.AsInt64OK(); !found || isNaN(age) || ok && n >= expireNever {
		return nil
	}
	name := textOf(spec, "name")
	return h.hold(ctx, &DeferredSpec{NS: h.ns.Clone(), UUID: h.uuid, Index: name, Fields: []string{optionExpire}, Spec: bytes.Clone(spec)}, func(dst []byte) []byte {
		return metadata.AppendDoc(dst, "index", func(dst []byte) []byte {
			dst = bsoncore.AppendStringElement(dst, "name", name)
			return bsoncore.AppendInt64Element(dst, optionExpire, expireNever)
		})
	})
}

// hold records the options as deferred, then changes them.
func (h *holding) hold(ctx context.Context, spec *DeferredSpec, change func(dst []byte) []byte) error {
	if err := h.record(ctx, spec); err != nil {
		return fmt.Errorf("record deferred options: %w", err)
	}
	reply, err := h.modify(ctx, change)
	if err != nil {
		return err
	}
	h.held = append(h.held, string(h.ns)+" "+spec.Index)
	begun := h.free(ctx)
	gone, err := h.let(ctx, spec, reply)
	if err == nil && begun == nil && gone {
		err = ErrExpiryRestored
	}
	return errors.Join(begun, err)
}

// modify sends collMod for the collection.
func (h *holding) modify(ctx context.Context, change func(dst []byte) []byte) (reply bson.Raw, err error) {
	cmd := metadata.Majority(mongo.Command{DB: h.ns.DB(), Body: metadata.Document(func(dst []byte) []byte {
		return change(bsoncore.AppendStringElement(dst, "collMod", h.ns.Collection()))
	})})
	err = holdRetry.Do(ctx, func() error {
		got, err := h.target.Call(ctx, cmd)
		if err == nil && mongo.ConcernError(got) != nil {
			err = &mongo.UnconfirmedError{Err: mongo.ConcernError(got)}
		}
		reply = bytes.Clone(got)
		return err
	})
	return reply, err
}

// let restores the option just held, and returns true, if its record is gone: the options were restored before the collMod
// was executed, and no process would restore them again.
func (h *holding) let(ctx context.Context, spec *DeferredSpec, reply bson.Raw) (gone bool, err error) {
	is, err := metadata.FindOne(ctx, h.target, h.cfg.MetaDB, metadata.Deferred, h.deferredID(spec))
	if err != nil || is != nil {
		return false, err
	}
	age, _ := split(spec.Spec).get(optionExpire)
	if was := reply.Lookup(optionExpire + "_old"); was.IsNumber() && was.AsInt64() != expireNever {
		age = was // not that of a command that was sent again
	}
	put := func(dst []byte) []byte {
		return bsoncore.AppendValueElement(dst, optionExpire, bsoncore.Value{Type: bsoncore.Type(age.Type), Data: age.Value})
	}
	_, err = h.modify(ctx, func(dst []byte) []byte {
		if spec.Index == "" {
			return put(dst)
		}
		return metadata.AppendDoc(dst, "index", func(dst []byte) []byte {
			return put(bsoncore.AppendStringElement(dst, "name", spec.Index))
		})
	})
	return true, err
}

var holdRetry = mongo.Retry{Again: mongo.Passes}

// record records a deferred option, unless the link has begun. In place of another record it puts the new one only if
// that is as it was before the link was asked for: an index may have been changed since it was held. Each has an id of
// its own: that of another process, which may belong to the link by now, is never deleted as this one's.
func (h *holding) record(ctx context.Context, spec *DeferredSpec) error {
	doc := metadata.Document(func(dst []byte) []byte {
		return bsoncore.AppendObjectIDElement(appendDeferred(h.deferredID(spec)(dst), spec), "held", bson.NewObjectID())
	})
	was, err := metadata.FindOne(ctx, h.target, h.cfg.MetaDB, metadata.Deferred, h.deferredID(spec))
	if err != nil {
		return err
	}
	was = bytes.Clone(was)
	if err := h.free(ctx); err != nil {
		return err
	}
	if err := h.replace(ctx, was, doc); err != nil {
		return err
	}
	if err := h.free(ctx); err != nil {
		return errors.Join(err, h.replace(ctx, doc, was))
	}
	return nil
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
