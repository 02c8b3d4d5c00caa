package opwrite

import (
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// Build is an index build in progress.
type Build struct {
	// Coll is the collection's UUID.
	Coll oplog.UUID
	// ID is the build's UUID.
	ID oplog.UUID
}

// buildIndexes builds in two phases, with nothing in between.
func (b *Batch) buildIndexes(coll *storage.Collection, specs []bson.Raw) error {
	build, err := b.StartBuild(coll, specs)
	if err != nil {
		return err
	}
	return b.CommitBuild(build)
}

// StartBuild starts a build: its indexes are listed and constrain nothing yet. For as long
// as it lasts there is a document in config.system.indexBuilds.
func (b *Batch) StartBuild(coll *storage.Collection, specs []bson.Raw) (Build, error) {
	build := Build{Coll: coll.UUID}
	if err := b.needCollection(IndexBuildsNS); err != nil {
		return build, err
	}
	if err := b.tryBuild(coll, specs); err != nil {
		return build, err
	}
	builds, ok := b.View().Collection(IndexBuildsNS)
	if !ok {
		return build, servererr.New(servererr.NamespaceNotFound, "ns not found: %s", IndexBuildsNS)
	}
	build.ID = b.p.cfg.NewUUID()
	doc, err := buildDocument(coll, build.ID, specs)
	if err != nil {
		return build, err
	}
	if _, err := b.Insert(builds, []bson.Raw{doc}, nil); err != nil {
		return build, err
	}
	e := entry{op: "c", ns: commands(coll.NS), ui: coll.UUID, o: buildCommand("startIndexBuild", coll.NS, build.ID, specs, nil)}
	err = b.write(&e, func(u *storage.Unit) error {
		for _, spec := range specs {
			if err := u.AddIndex(coll.UUID, clone(spec), build.ID); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return build, errors.Join(err, b.forgetBuild(build.ID))
	}
	return build, nil
}

// CommitBuild makes the indexes of a build ready. A build that meets a document that one of
// its indexes refuses is logged with its abort. One that is no longer in progress is
// IndexBuildAborted.
func (b *Batch) CommitBuild(build Build) error {
	coll, ok := b.View().ByUUID(build.Coll)
	specs := buildSpecs(coll, build.ID)
	if !ok || len(specs) == 0 {
		return servererr.New(servererr.IndexBuildAborted, "Index build failed: %s: Index build aborted", build.ID)
	}
	if err := b.vote(build.ID); err != nil {
		return err
	}
	e := entry{op: "c", ns: commands(coll.NS), ui: coll.UUID, o: buildCommand("commitIndexBuild", coll.NS, build.ID, specs, nil)}
	err := b.write(&e, func(u *storage.Unit) error { return u.CommitIndexes(coll.UUID, build.ID) })
	refusal, refused := errors.AsType[*servererr.Error](err)
	if refused {
		if abort := b.abortBuild(coll, build.ID, refusal); abort != nil {
			return errors.Join(err, abort)
		}
		return refusal.Within(fmt.Sprintf("Index build failed: %s: Collection %s ( %s )", build.ID, coll.NS, coll.UUID))
	}
	return errors.Join(err, b.forgetBuild(build.ID))
}

// AbortBuild aborts a build of a collection, as dropIndexes and drop do.
func (b *Batch) AbortBuild(coll *storage.Collection, build oplog.UUID, reason string) error {
	return b.abortBuild(coll, build, servererr.New(servererr.IndexBuildAborted, "Index build aborted: %s: %s", build, reason))
}

func (b *Batch) abortBuild(coll *storage.Collection, build oplog.UUID, cause *servererr.Error) error {
	specs := buildSpecs(coll, build)
	e := entry{op: "c", ns: commands(coll.NS), ui: coll.UUID, o: buildCommand("abortIndexBuild", coll.NS, build, specs, cause)}
	err := b.write(&e, func(u *storage.Unit) error {
		for _, index := range coll.Indexes {
			if index.Building && index.BuildUUID == build {
				if err := u.DropIndex(coll.UUID, index.Name); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return b.forgetBuild(build)
}

// Builds returns the builds of a collection that are in progress.
func Builds(coll *storage.Collection) []oplog.UUID {
	var all []oplog.UUID
	for _, index := range coll.Indexes {
		if index.Building && (len(all) == 0 || all[len(all)-1] != index.BuildUUID) {
			all = append(all, index.BuildUUID)
		}
	}
	return all
}

// BuildsInProgress returns how many builds are in progress.
func BuildsInProgress(v storage.View) int {
	if builds, ok := v.Collection(IndexBuildsNS); ok {
		return builds.Len()
	}
	return 0
}

// buildSpecs returns the specifications of the indexes of a build.
func buildSpecs(coll *storage.Collection, build oplog.UUID) (specs []bson.Raw) {
	if coll == nil {
		return nil
	}
	for _, index := range coll.Indexes {
		if index.Building && index.BuildUUID == build {
			specs = append(specs, index.Spec)
		}
	}
	return specs
}
