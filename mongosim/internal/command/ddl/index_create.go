package ddl

import (
	"context"
	"errors"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/arg"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/indexspec"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/repl"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/mongosim/internal/viewdef"
	"github.com/oplogrep/replicator/oplog"
)

// MaxIndexes is how many indexes a collection may have.
const MaxIndexes = 64

func runCreateIndexes(ctx context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	ns, err := r.FirstName()
	if err != nil {
		return err
	}
	if r.InTxn() && strings.HasPrefix(ns.Collection(), "system.") {
		return servererr.New(servererr.OperationNotSupportedInTransaction,
			"Cannot write to system collection %s within a transaction.", ns)
	}
	given, err := indexArgument(r.Cmd)
	if err != nil {
		return err
	}
	want, err := expected(r, uuidField)
	if err != nil {
		return err
	}
	if r.InTxn() {
		return r.Write(ctx, out, func(ops opwrite.Ops) error {
			if err := meant(ops.View(), ns, want); err != nil {
				return err
			}
			return createIndexes(r, ops, ns, given, out)
		})
	}
	return r.Outlive(ctx, out, func(ctx context.Context, r *dispatch.Request, out *dispatch.Reply) error {
		given, err := indexArgument(r.Cmd)
		if err != nil {
			return err
		}
		return buildAll(ctx, r, out, ns, want, given)
	})
}

// buildAll creates indexes outside of a transaction. While as many builds are in progress
// as may be, it waits, and nothing shows it yet (index_builds_coordinator_mongod.cpp). Then
// it waits for builds in progress of the same names, and completes those that no command
// completes.
func buildAll(ctx context.Context, r *dispatch.Request, out *dispatch.Reply, ns oplog.Namespace, want oplog.UUID, given []bson.Raw) error {
	start := len(out.Buf)
	for {
		out.Buf = out.Buf[:start]
		taken := opwrite.Build{}
		starts := &slowOps{hangs: r.Server.Fails.IsOn(dispatch.HangIndexBuild)}
		err := r.WriteBatch(ctx, out, func(b *opwrite.Batch) error {
			starts.Batch = b
			if ctx.Err() != nil {
				return dispatch.Interrupted(ctx)
			}
			if err := meant(b.View(), ns, want); err != nil {
				return err
			}
			if coll, exists := b.View().Collection(ns); exists {
				if coll.Len() > 0 && opwrite.BuildsInProgress(b.View()) >= r.Server.MaxBuilds() && anyMissing(coll, given) {
					return storage.ErrWriteConflict // wait for another one's end
				}
				if build, found := inProgress(coll, given); found {
					if !r.Server.Builds.Take(build) {
						return storage.ErrWriteConflict // wait for it
					}
					taken = opwrite.Build{Coll: coll.UUID, ID: build}
					return nil
				}
			}
			return createIndexes(r, starts, ns, given, out)
		})
		switch {
		case err != nil:
			return err
		case !taken.ID.IsZero():
			if err := completeBuild(ctx, r, out, taken, false); err != nil {
				return err
			}
		case !starts.started.ID.IsZero():
			r.Server.Builds.Take(starts.started.ID)
			return completeBuild(ctx, r, out, starts.started, true)
		default:
			return nil
		}
	}
}

// slowOps starts index builds that another batch completes.
type slowOps struct {
	*opwrite.Batch
	hangs   bool
	started opwrite.Build
}

// CreateIndexes implements opwrite.Ops.
func (s *slowOps) CreateIndexes(coll *storage.Collection, specs []bson.Raw) error {
	if !s.hangs || coll.Len() == 0 {
		return s.Batch.CreateIndexes(coll, specs)
	}
	var err error
	s.started, err = s.StartBuild(coll, specs)
	return err
}

// inProgress returns the build of one of the given names.
func inProgress(coll *storage.Collection, given []bson.Raw) (oplog.UUID, bool) {
	for _, spec := range given {
		name, _ := arg.Text(spec, "name")
		for _, index := range coll.Indexes {
			if index.Building && index.Name == name {
				return index.BuildUUID, true
			}
		}
	}
	return oplog.UUID{}, false
}

// anyMissing reports whether a collection lacks one of the given names, or is building it.
func anyMissing(coll *storage.Collection, given []bson.Raw) bool {
	return slices.ContainsFunc(given, func(spec bson.Raw) bool {
		name, _ := arg.Text(spec, "name")
		return !slices.ContainsFunc(coll.Indexes, func(index storage.Index) bool { return index.Name == name && !index.Building })
	})
}

// completeBuild commits a build once nothing lets it hang. If the member steps down, it
// stays in progress. If the command is killed that has started it, it is aborted
// (create_indexes.cpp).
func completeBuild(ctx context.Context, r *dispatch.Request, out *dispatch.Reply, build opwrite.Build, own bool) error {
	defer r.Server.Builds.Leave(build.ID)
	if err := r.HangBuild(ctx, build); err != nil {
		if own && dispatch.IsKilled(ctx) {
			err = errors.Join(err, abortKilled(context.WithoutCancel(ctx), r, out, build))
		}
		return err
	}
	return r.WriteBatch(ctx, out, func(b *opwrite.Batch) error { return b.CommitBuild(build) })
}

// abortKilled aborts the build of a command that was killed. The command itself is at its end.
func abortKilled(ctx context.Context, r *dispatch.Request, out *dispatch.Reply, build opwrite.Build) error {
	return r.WriteBatch(ctx, out, func(b *opwrite.Batch) error {
		coll, exists := b.View().ByUUID(build.Coll)
		if !exists || !slices.Contains(opwrite.Builds(coll), build.ID) {
			return nil
		}
		return b.AbortBuild(coll, build.ID, "operation was interrupted")
	})
}

// indexArgument returns the documents of the argument indexes.
func indexArgument(cmd bson.Raw) ([]bson.Raw, error) {
	e, ok := rawbson.Lookup(cmd, "indexes")
	if !ok {
		return nil, servererr.New(40414, "BSON field 'createIndexes.indexes' is missing but a required field")
	}
	array, ok := e.Array()
	if !ok {
		return nil, servererr.New(servererr.TypeMismatch,
			"BSON field 'createIndexes.indexes' is the wrong type '%s', expected type 'array'", bsontext.TypeName(e.Type))
	}
	var specs []bson.Raw
	it := rawbson.NewIter(array)
	for it.Next() {
		doc, ok := it.Document()
		if !ok {
			return nil, servererr.New(servererr.TypeMismatch,
				"BSON field 'createIndexes.indexes.%s' is the wrong type '%s', expected type 'object'", it.Name(), bsontext.TypeName(it.Type))
		}
		specs = append(specs, doc)
	}
	if len(specs) == 0 {
		return nil, servererr.New(servererr.BadValue, "Must specify at least one index to create")
	}
	return specs, nil
}

func createIndexes(r *dispatch.Request, ops opwrite.Ops, ns oplog.Namespace, given []bson.Raw, out *dispatch.Reply) error {
	if r.Server.AtLeast(8, 0) && slices.ContainsFunc(given, isInner) {
		// Later patch releases refuse it to every user but the server's own (SERVER-118711).
		return servererr.New(servererr.CannotCreateIndex, "Users may not create indexes of type 2dsphere_bucket")
	}
	return createStored(r, ops, ns, given, out)
}

// createStored creates indexes with keys that the server may have made itself.
func createStored(r *dispatch.Request, ops opwrite.Ops, ns oplog.Namespace, given []bson.Raw, out *dispatch.Reply) error {
	coll, exists := ops.View().Collection(ns)
	if !exists {
		if def, isView, err := viewdef.Lookup(ops.View(), ns); err != nil || isView {
			if def.Timeseries {
				return createSeriesIndexes(r, ops, ns, given, out)
			}
			return cmpErr(err, servererr.New(servererr.CommandNotSupportedOnView, "Cannot create indexes on a view"))
		}
	}
	ignore, quorum, err := indexOptions(r)
	if err != nil {
		return err
	}
	specs, err := indexSpecs(r, coll, given, ignore)
	if err != nil {
		return err
	}
	if !exists {
		if _, err := indexspec.Missing(r.Server.Version, &storage.Collection{}, specs); err != nil {
			return err // before a collection is created in vain
		}
		if err := CreateCollection(ops, ns); err != nil {
			return err
		}
		coll, _ = ops.View().Collection(ns)
	}
	before := len(coll.Indexes)
	added, err := indexspec.Missing(r.Server.Version, coll, specs)
	if err != nil {
		return err
	}
	if err := checkTogether(r.Server, coll, added); err != nil {
		return err
	}
	out.Buf = bsoncore.AppendInt32Element(out.Buf, "numIndexesBefore", int32(before))
	out.Buf = bsoncore.AppendInt32Element(out.Buf, "numIndexesAfter", int32(before+len(added)))
	if len(added) == 0 && exists {
		out.Buf = bsoncore.AppendStringElement(out.Buf, "note", "all indexes already exist")
		return nil
	}
	if r.InTxn() && exists && coll.Len() > 0 {
		return servererr.New(servererr.OperationNotSupportedInTransaction,
			"Cannot create new indexes on non-empty collection %s in a multi-document transaction.", ns)
	}
	if len(added) > 0 {
		if err := ops.CreateIndexes(coll, added); err != nil {
			return err
		}
	}
	out.Buf = bsoncore.AppendBooleanElement(out.Buf, "createdCollectionAutomatically", !exists || r.InTxn())
	out.Buf = bsoncore.AppendValueElement(out.Buf, "commitQuorum", quorum)
	return nil
}

// indexSpecs completes the given specifications; coll is nil if it does not
// exist. The index of a clustered collection exists already.
func indexSpecs(r *dispatch.Request, coll *storage.Collection, given []bson.Raw, ignore bool) ([]bson.Raw, error) {
	var collation bson.Raw
	clustered := false
	if coll != nil {
		if e, ok := rawbson.Lookup(coll.Options, "collation"); ok {
			collation, _ = e.Document()
		}
		clustered = arg.Has(coll.Options, "clusteredIndex")
	}
	specs := make([]bson.Raw, 0, len(given))
	for _, doc := range given {
		if e, ok := rawbson.Lookup(doc, "key"); ok && clustered {
			if key, _ := e.Document(); indexspec.IsID(key) {
				continue
			}
		}
		spec, err := indexspec.Normalize(r.Server.Version, doc, collation, ignore)
		if err != nil {
			return nil, err
		}
		specs = append(specs, spec)
	}
	return specs, nil
}

// indexOptions reads ignoreUnknownIndexOptions and commitQuorum. How many members
// have to be ready is checked, but a build here never waits for others.
func indexOptions(r *dispatch.Request) (ignore bool, quorum bsoncore.Value, err error) {
	quorum = bsoncore.Value{Type: bsoncore.TypeString, Data: bsoncore.AppendString(nil, "votingMembers")}
	if e, ok := rawbson.Lookup(r.Cmd, "ignoreUnknownIndexOptions"); ok {
		if ignore, ok = e.Bool(); !ok {
			return false, quorum, servererr.New(servererr.TypeMismatch,
				"The field 'ignoreUnknownIndexOptions' must be a boolean, but got %s", bsontext.TypeName(e.Type))
		}
	}
	e, ok := rawbson.Lookup(r.Cmd, "commitQuorum")
	if !ok {
		return ignore, quorum, nil
	}
	v := e.Raw()
	n := arg.Int64(v)
	text, isText := e.Text()
	majority, building := quorumOf(r.Self.Members)
	switch {
	case !isText && !v.IsNumber():
		return false, quorum, servererr.New(servererr.TypeMismatch, "The field 'commitQuorum' must be a string or a number, but got %s", bsontext.TypeName(e.Type))
	case !isText && n < 0:
		return false, quorum, servererr.New(servererr.FailedToParse, "commitQuorum has to be a non-negative number")
	case !isText && n > building || text == "majority" && majority > building:
		return false, quorum, servererr.New(servererr.UnsatisfiableCommitQuorum, "Commit quorum cannot be satisfied with the current replica set configuration")
	case isText && !oneOf(v, "votingMembers", "majority"):
		return false, quorum, servererr.New(servererr.NotImplemented, "commitQuorum %s is not implemented here", v)
	}
	return ignore, bsoncore.Value{Type: bsoncore.Type(e.Type), Data: e.Value}, nil
}

// quorumOf returns how many members a commit quorum of a majority asks for, and how many can be ready at all: neither arbiters nor
// members with buildIndexes: false, but those without a vote (checkIfCommitQuorumCanBeSatisfied).
func quorumOf(members []repl.Member) (majority, building int64) {
	var voters, data int64
	for i := range members {
		m := &members[i]
		voters += int64(m.Votes)
		if m.Arbiter {
			continue
		}
		data += int64(m.Votes)
		if m.BuildIndexes {
			building++
		}
	}
	return min(voters/2+1, data), building
}

// checkTogether refuses indexes that conflict with the collection's other ones.
func checkTogether(s *dispatch.Server, coll *storage.Collection, added []bson.Raw) error {
	if len(coll.Indexes)+len(added) > MaxIndexes {
		key, _ := rawbson.Lookup(added[len(added)-1], "key")
		return servererr.New(servererr.CannotCreateIndex, "add index fails, too many indexes for %s key:%s", coll.NS, bsontext.Value(key.Raw()))
	}
	text := ""
	for _, index := range coll.Indexes {
		if arg.Has(index.Spec, "textIndexVersion") {
			text = index.Name
		}
	}
	for _, spec := range added {
		name, _ := arg.Text(spec, "name")
		switch {
		case arg.Has(spec, "textIndexVersion") && text != "":
			return servererr.New(servererr.CannotCreateIndex,
				"only one text index per collection allowed, found existing text index \"%s\"", text)
		case arg.Has(spec, "textIndexVersion"):
			text = name
		case arg.Has(spec, "expireAfterSeconds") && coll.CappedBytes > 0 && s.AtLeast(5, 1) && !s.AtLeast(7, 1):
			return servererr.New(servererr.CannotCreateIndex, "Cannot create TTL index on a capped collection")
		}
	}
	return nil
}
