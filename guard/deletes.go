package guard

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

const expireAfter = "expireAfterSeconds"

// Deletes reports whether the target itself deletes documents from a collection: see
// [WatchConfig.Deletes].
func Deletes(ctx context.Context, target mongo.Caller, ns oplog.Namespace, id oplog.UUID) (bool, error) {
	listed, err := listed(ctx, target, ns, id)
	switch {
	case servererr.IsInvalidView(err):
		return true, nil // The database cannot be listed: it is not known.
	case err != nil:
		return false, err
	case len(listed) == 0:
		return true, nil
	}
	name := ns.Collection()
	if !id.IsZero() { // It may have been renamed since.
		e, _ := rawbson.Lookup(listed[0], "name")
		name, _ = e.Text()
	}
	field, _ := rawbson.Lookup(listed[0], "options")
	if options, ok := field.Document(); ok {
		capped, _ := rawbson.Lookup(options, "capped")
		if is, _ := capped.Bool(); is {
			return true, nil
		}
		if _, expires := rawbson.Lookup(options, expireAfter); expires {
			return true, nil
		}
	}
	indexes, err := mongo.Retry{}.ReadAll(ctx, target, nil, ns.DB(), metadata.Document(func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, "listIndexes", name)
		return metadata.AppendDoc(dst, "cursor", func(dst []byte) []byte { return dst })
	}))
	if err != nil {
		if servererr.IsNoNamespace(err) {
			return true, nil
		}
		return false, err
	}
	for _, spec := range indexes {
		if _, expires := rawbson.Lookup(spec, expireAfter); expires {
			return true, nil
		}
	}
	return false, nil
}

// listed returns the collection with an id, or with the name if the id is zero; none if it is gone. A server finds a
// name at once, and an id only by going through all collections of the database: that is for one that has another name.
func listed(ctx context.Context, target mongo.Caller, ns oplog.Namespace, id oplog.UUID) ([]bson.Raw, error) {
	list := func(filter func(dst []byte) []byte) ([]bson.Raw, error) {
		return mongo.Retry{}.ReadAll(ctx, target, nil, ns.DB(), metadata.Document(func(dst []byte) []byte {
			dst = bsoncore.AppendInt32Element(dst, "listCollections", 1)
			dst = metadata.AppendDoc(dst, "filter", filter)
			return metadata.AppendDoc(dst, "cursor", func(dst []byte) []byte { return dst })
		}))
	}
	named, err := list(func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, "name", ns.Collection()) })
	if err != nil || id.IsZero() || len(named) > 0 && idOf(named[0]) == id {
		return named, err
	}
	return list(func(dst []byte) []byte {
		return bsoncore.AppendBinaryElement(dst, "info.uuid", bson.TypeBinaryUUID, id[:])
	})
}

// idOf returns the id of a collection that is listed, zero if it has none.
func idOf(doc bson.Raw) (id oplog.UUID) {
	e, _ := rawbson.Lookup(doc, "info")
	info, _ := e.Document()
	e, _ = rawbson.Lookup(info, "uuid")
	if _, data, ok := e.Binary(); ok && len(data) == len(id) {
		copy(id[:], data)
	}
	return id
}
