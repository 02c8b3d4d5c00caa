package ddl

import (
	"context"
	"slices"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/mongosim/internal/viewdef"
)

func runDropIndexes(ctx context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	ns, err := r.FirstName()
	if err != nil {
		return err
	}
	e, ok := rawbson.Lookup(r.Cmd, "index")
	if !ok {
		return servererr.New(40414, "BSON field 'dropIndexes.index' is missing but a required field")
	}
	want, err := expected(r, uuidField)
	if err != nil {
		return err
	}
	return r.WriteBatch(ctx, out, func(b *opwrite.Batch) error {
		if err := meant(b.View(), ns, want); err != nil {
			return err
		}
		coll, ok := b.View().Collection(ns)
		if !ok {
			if def, isView, err := viewdef.Lookup(b.View(), ns); err != nil || isView {
				if def.Timeseries {
					return servererr.New(servererr.NotImplemented, "dropIndexes of a time-series collection is not implemented here: %s", ns)
				}
				return cmpErr(err, servererr.New(servererr.CommandNotSupportedOnView, "Cannot drop indexes on view %s", ns))
			}
			return servererr.New(servererr.NamespaceNotFound, "ns not found %s", ns)
		}
		names, all, err := indexesToDrop(coll, e)
		if err != nil {
			return err
		}
		aborted, err := abortBuilds(r, b, coll, names, all)
		if err != nil {
			return err
		}
		if aborted && !all {
			out.Buf = bsoncore.AppendInt32Element(out.Buf, "nIndexesWas", int32(len(coll.Indexes)))
			return nil
		}
		out.Buf = bsoncore.AppendInt32Element(out.Buf, "nIndexesWas", int32(len(coll.Indexes)))
		if all {
			out.Buf = bsoncore.AppendStringElement(out.Buf, "msg", "non-_id indexes dropped for collection")
		}
		for _, name := range names {
			if coll, _ = b.View().Collection(ns); aborted && checkIndexName(coll, name) != nil {
				continue // it was being built
			}
			if err := b.DropIndex(coll, name); err != nil {
				return err
			}
		}
		return nil
	})
}

// indexesToDrop resolves the argument index: a name, *, an array of names, or a
// key.
func indexesToDrop(coll *storage.Collection, e rawbson.Elem) (names []string, all bool, err error) {
	if name, ok := e.Text(); ok {
		if name == "*" {
			return allIndexes(coll), true, nil
		}
		return []string{name}, false, checkIndexName(coll, name)
	}
	if key, ok := e.Document(); ok {
		found := indexesByKey(coll, key)
		switch len(found) {
		case 0:
			return nil, false, servererr.New(servererr.IndexNotFound, "can't find index with key: %s", bsontext.Document(key))
		case 1:
			return []string{found[0].Name}, false, checkIndexName(coll, found[0].Name)
		}
		return nil, false, servererr.New(servererr.AmbiguousIndexKeyPattern,
			"%d indexes found for key: %s, identify by name instead. Conflicting indexes: %s, %s",
			len(found), bsontext.Document(key), bsontext.Document(found[0].Spec), bsontext.Document(found[1].Spec))
	}
	array, ok := e.Array()
	if !ok {
		return nil, false, servererr.New(servererr.TypeMismatch,
			"BSON field 'dropIndexes.index' is the wrong type '%s', expected types '[string, object, array]'", bsontext.TypeName(e.Type))
	}
	it := rawbson.NewIter(array)
	for it.Next() {
		if _, ok := it.Text(); !ok {
			return nil, false, servererr.New(servererr.TypeMismatch,
				"dropIndexes %s (%s) failed to drop multiple indexes %s: index name must be a string",
				coll.NS, coll.UUID, bsontext.Array(array))
		}
	}
	it = rawbson.NewIter(array)
	for it.Next() {
		name, _ := it.Text()
		if name == "*" && len(names) == 0 {
			return allIndexes(coll), true, nil
		}
		if slices.Contains(names, name) {
			return nil, false, servererr.New(servererr.IndexNotFound, "index not found with name [%s]", name)
		}
		if err := checkIndexName(coll, name); err != nil {
			return nil, false, err
		}
		names = append(names, name)
	}
	return names, false, nil
}

// allIndexes are the names of all indexes but that on _id.
func allIndexes(coll *storage.Collection) (names []string) {
	for _, index := range coll.Indexes {
		if index.Name != "_id_" {
			names = append(names, index.Name)
		}
	}
	return names
}

func checkIndexName(coll *storage.Collection, name string) error {
	if name == "_id_" {
		return servererr.New(servererr.InvalidOptions, "cannot drop _id index")
	}
	for _, index := range coll.Indexes {
		if index.Name == name {
			return nil
		}
	}
	return servererr.New(servererr.IndexNotFound, "index not found with name [%s]", name)
}

// abortBuilds aborts the builds in progress that the command names: all of them, or the one
// whose indexes are exactly the named ones. Otherwise servers up to 5.1 drop nothing while
// there is a build, and later ones drop no index that is being built (drop_indexes.cpp).
func abortBuilds(r *dispatch.Request, b *opwrite.Batch, coll *storage.Collection, names []string, all bool) (bool, error) {
	const reason = "dropIndexes command"
	builds := opwrite.Builds(coll)
	for _, build := range builds {
		var built []string
		for _, index := range coll.Indexes {
			if index.Building && index.BuildUUID == build {
				built = append(built, index.Name)
			}
		}
		slices.Sort(built)
		if !all && !slices.Equal(built, slices.Sorted(slices.Values(names))) {
			continue
		}
		if err := b.AbortBuild(coll, build, reason); err != nil || !all {
			return true, err
		}
	}
	if all || len(builds) == 0 {
		return len(builds) > 0, nil
	}
	if !r.Server.AtLeast(5, 2) {
		return false, building(coll)
	}
	for _, index := range coll.Indexes {
		if index.Building && slices.Contains(names, index.Name) {
			return false, servererr.New(servererr.IndexNotFound, "can't drop unfinished index with name: %s", index.Name)
		}
	}
	return false, nil
}

// building is the refusal of a command that no index build may be in progress for.
func building(coll *storage.Collection) error {
	return servererr.New(servererr.BackgroundOperationInProgressForNamespace,
		"cannot perform operation: an index build is currently running for collection '%s'", coll.NS)
}

// notBuilding refuses a command while an index of the collection is being built.
func notBuilding(coll *storage.Collection) error {
	if coll != nil && len(opwrite.Builds(coll)) > 0 {
		return building(coll)
	}
	return nil
}
