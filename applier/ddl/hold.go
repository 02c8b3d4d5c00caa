package ddl

import (
	"bytes"
	"context"
	"fmt"
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// expireNever is the expireAfterSeconds of an index that expires nothing: 68 years. An index cannot be made
// one without expireAfterSeconds by collMod.
const expireNever = math.MaxInt32

// HoldExpiry defers what expires documents in the collections of a database of the target, for a
// link that is about to begin there: their TTL indexes and the ages of clustered collections and time
// series. Their values are recorded for the link as deferred, then collMod is sent, with write concern majority. Nothing is
// built. It is idempotent, and can be called again after it was interrupted.
func HoldExpiry(ctx context.Context, target mongo.Caller, metaDB, link, db string, mirrored func(oplog.Namespace) bool) (held []string, err error) {
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
		h := holding{step: s, target: target, ns: ns, of: ns, uuid: uuids[ns]}
		if kind == "timeseries" {
			h.of, h.uuid = ns.Buckets(), uuids[ns.Buckets()]
		}
		options, _ := doc.Lookup("options").DocumentOK()
		if err := h.options(ctx, options); err != nil {
			return h.held, fmt.Errorf("hold what expires documents of %s: %w", ns, err)
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
	if n, ok := age.AsInt64OK(); !found || ok && n == expireNever {
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
	retry := mongo.Retry{Again: mongo.Passes}
	record := metadata.Majority(metadata.Update(h.cfg.MetaDB, metadata.Deferred, metadata.Statement{
		Upsert: true, Filter: h.deferredID(spec),
		Change: func(dst []byte) []byte { return appendDeferred(h.deferredID(spec)(dst), spec) },
	}))
	if err := retry.Do(ctx, func() error { return metadata.Run(ctx, h.target, record, -1) }); err != nil {
		return fmt.Errorf("record what is deferred: %w", err)
	}
	cmd := metadata.Majority(mongo.Command{DB: h.ns.DB(), Body: metadata.Document(func(dst []byte) []byte {
		return change(bsoncore.AppendStringElement(dst, "collMod", h.ns.Collection()))
	})})
	err := retry.Do(ctx, func() error {
		reply, err := h.target.Call(ctx, cmd)
		if err == nil && mongo.ConcernError(reply) != nil {
			err = &mongo.UnconfirmedError{Err: mongo.ConcernError(reply)}
		}
		return err
	})
	if err == nil {
		h.held = append(h.held, string(h.ns)+" "+spec.Index)
	}
	return err
}
