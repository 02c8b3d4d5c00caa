package ddl

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// uuidField is the argument by which a command states the UUID of the collection that
// it names. It came with 6.0, and needs the feature compatibility version 6.0: in
// collMod, createIndexes, drop, dropIndexes and renameCollection (whose dropTarget
// may be a UUID as well), in finds, aggregates and writes; not in create, nor in
// dropDatabase, convertToCapped or emptycapped. A view, which has no UUID, never
// matches. (coll_mod.cpp, drop_indexes.cpp and catalog_raii.cpp compare with
// checkCollectionUUIDMismatch under the collection's lock;
// jstests/core/collection_uuid_*.js.)
const uuidField = "collectionUUID"

// expected reads the required UUID of the collection, zero if none is given.
func expected(r *dispatch.Request, field string) (oplog.UUID, error) {
	e, ok := rawbson.Lookup(r.Cmd, field)
	if !ok {
		return oplog.UUID{}, nil
	}
	var want oplog.UUID
	subtype, data, isBinary := e.Binary()
	switch {
	case !r.Server.AtLeast(6, 0) && field == uuidField:
		return want, dispatch.UnknownField(r.Name, field)
	case !isBinary || subtype != bson.TypeBinaryUUID || len(data) != len(want):
		return want, dispatch.WrongType(r.Name, field, e.Type, "binData")
	case r.Server.FCV[0] < 6:
		return want, servererr.New(servererr.InvalidOptions, "The %s argument of %s needs the feature compatibility version 6.0", field, r.Name)
	}
	return oplog.UUID(data), nil
}

// meant refuses a command if the collection of the name has another UUID than
// required.
func meant(v storage.View, ns oplog.Namespace, want oplog.UUID) error {
	if coll, ok := v.Collection(ns); !want.IsZero() && (!ok || coll.UUID != want) {
		return dispatch.UUIDMismatch(v, ns, want)
	}
	return nil
}
