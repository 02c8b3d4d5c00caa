package opwrite

import (
	"errors"
	"fmt"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// CreateIndexes builds indexes; see Ops. A build that meets a document that its
// index refuses is logged with its abort.
func (b *Batch) CreateIndexes(coll *storage.Collection, specs []bson.Raw) error {
	if len(specs) == 0 {
		return nil
	}
	if coll.Len() > 0 && !unlogged(coll.NS) {
		return b.buildIndexes(coll, specs)
	}
	for _, spec := range specs {
		spec = clone(spec)
		e := entry{op: "c", ns: commands(coll.NS), ui: coll.UUID, o: createIndexesCommand(coll.NS, spec)}
		if err := b.write(&e, func(u *storage.Unit) error { return u.AddIndex(coll.UUID, spec, oplog.UUID{}) }); err != nil {
			return err
		}
	}
	return nil
}

func createIndexesCommand(ns oplog.Namespace, spec bson.Raw) bson.Raw {
	start, o := bsoncore.AppendDocumentStart(nil)
	o = bsoncore.AppendStringElement(o, "createIndexes", ns.Collection())
	o = append(o, spec[4:len(spec)-1]...)
	o, _ = bsoncore.AppendDocumentEnd(o, start)
	return o
}

// buildIndexes builds in two phases, with a document in config.system.indexBuilds
// for as long as it lasts.
func (b *Batch) buildIndexes(coll *storage.Collection, specs []bson.Raw) error {
	if err := b.needCollection(IndexBuildsNS); err != nil {
		return err
	}
	if err := b.tryBuild(coll, specs); err != nil {
		return err
	}
	builds, ok := b.View().Collection(IndexBuildsNS)
	if !ok {
		return servererr.New(servererr.NamespaceNotFound, "ns not found: %s", IndexBuildsNS)
	}
	build := b.p.cfg.NewUUID()
	doc, names, err := buildDocument(coll, build, specs)
	if err != nil {
		return err
	}
	if _, err := b.Insert(builds, []bson.Raw{doc}, nil); err != nil {
		return err
	}
	e := entry{op: "c", ns: commands(coll.NS), ui: coll.UUID, o: buildCommand("startIndexBuild", coll.NS, build, specs, nil)}
	err = b.write(&e, func(u *storage.Unit) error {
		for _, spec := range specs {
			if err := u.AddIndex(coll.UUID, clone(spec), build); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return errors.Join(err, b.forgetBuild(builds, build))
	}
	if err := b.vote(builds, build); err != nil {
		return err
	}
	e.o = buildCommand("commitIndexBuild", coll.NS, build, specs, nil)
	err = b.write(&e, func(u *storage.Unit) error { return u.CommitIndexes(coll.UUID, build) })
	refusal, refused := errors.AsType[*servererr.Error](err)
	if refused {
		e.o = buildCommand("abortIndexBuild", coll.NS, build, specs, refusal)
		abort := b.write(&e, func(u *storage.Unit) error {
			for _, name := range names {
				if err := u.DropIndex(coll.UUID, name); err != nil {
					return err
				}
			}
			return nil
		})
		if abort != nil {
			return errors.Join(err, abort)
		}
	}
	if forget := b.forgetBuild(builds, build); forget != nil {
		return errors.Join(err, forget)
	}
	if refused {
		return refusal.Within(fmt.Sprintf("Index build failed: %s: Collection %s ( %s )", build, coll.NS, coll.UUID))
	}
	return err
}

// tryBuild reports whether a build can begin, and has no effect: one that only
// waits for a transaction must not be in the log.
func (b *Batch) tryBuild(coll *storage.Collection, specs []bson.Raw) error {
	u := b.w.Begin(bson.Timestamp{})
	defer u.Abort()
	for _, spec := range specs {
		if err := u.AddIndex(coll.UUID, spec, oplog.UUID{1}); err != nil {
			return err
		}
	}
	return nil
}

func buildDocument(coll *storage.Collection, build oplog.UUID, specs []bson.Raw) (doc bson.Raw, names []string, err error) {
	start, dst := bsoncore.AppendDocumentStart(nil)
	dst = bsoncore.AppendBinaryElement(dst, "_id", bson.TypeBinaryUUID, build[:])
	dst = bsoncore.AppendBinaryElement(dst, "collectionUUID", bson.TypeBinaryUUID, coll.UUID[:])
	dst = bsoncore.AppendStringElement(dst, "commitQuorum", "votingMembers")
	array, dst := bsoncore.AppendArrayElementStart(dst, "indexNames")
	for i, spec := range specs {
		e, _ := rawbson.Lookup(spec, "name")
		name, ok := e.Text()
		if !ok {
			return nil, nil, servererr.New(servererr.FailedToParse, "The 'name' field is a required property of an index specification")
		}
		dst = bsoncore.AppendStringElement(dst, index(i), name)
		names = append(names, name)
	}
	dst, _ = bsoncore.AppendArrayEnd(dst, array)
	dst, _ = bsoncore.AppendDocumentEnd(dst, start)
	return dst, names, nil
}

// vote logs that this member has built the index.
func (b *Batch) vote(builds *storage.Collection, build oplog.UUID) error {
	builds, ok := b.View().ByUUID(builds.UUID)
	var old storage.Record
	if ok {
		old, ok = builds.Get(uuidValue(build))
	}
	if !ok {
		return servererr.New(servererr.NoSuchKey, "no index build %s", build)
	}
	start, members := bsoncore.AppendDocumentStart(nil)
	array, members := bsoncore.AppendArrayElementStart(members, "commitReadyMembers")
	members = bsoncore.AppendStringElement(members, "0", b.p.cfg.Host)
	members, _ = bsoncore.AppendArrayEnd(members, array)
	members, _ = bsoncore.AppendDocumentEnd(members, start)

	start, post := bsoncore.AppendDocumentStart(nil)
	post = append(post, old.Doc[4:len(old.Doc)-1]...)
	post = append(post, members[4:len(members)-1]...)
	post, _ = bsoncore.AppendDocumentEnd(post, start)

	up := Update{Post: post}
	if b.p.format.deltas {
		up.Delta = wrap("i", members)
	} else {
		up.Modifiers = wrap("$set", members)
	}
	return b.Update(builds, old, up, Stmt{})
}

func (b *Batch) forgetBuild(builds *storage.Collection, build oplog.UUID) error {
	builds, ok := b.View().ByUUID(builds.UUID)
	if !ok {
		return nil
	}
	old, ok := builds.Get(uuidValue(build))
	if !ok {
		return nil
	}
	return b.Delete(builds, old, Stmt{}, NoImage)
}

// buildCommand is the payload of startIndexBuild, commitIndexBuild and
// abortIndexBuild, the last with its cause.
func buildCommand(name string, ns oplog.Namespace, build oplog.UUID, specs []bson.Raw, cause *servererr.Error) bson.Raw {
	start, o := bsoncore.AppendDocumentStart(nil)
	o = bsoncore.AppendStringElement(o, name, ns.Collection())
	o = bsoncore.AppendBinaryElement(o, "indexBuildUUID", bson.TypeBinaryUUID, build[:])
	array, o := bsoncore.AppendArrayElementStart(o, "indexes")
	for i, spec := range specs {
		o = bsoncore.AppendDocumentElement(o, index(i), bsoncore.Document(spec))
	}
	o, _ = bsoncore.AppendArrayEnd(o, array)
	if cause != nil {
		why, doc := bsoncore.AppendDocumentElementStart(o, "cause")
		doc = bsoncore.AppendBooleanElement(doc, "ok", false)
		doc = bsoncore.AppendInt32Element(doc, "code", int32(cause.Code))
		doc = bsoncore.AppendStringElement(doc, "codeName", cause.Code.String())
		doc = bsoncore.AppendStringElement(doc, "errmsg", cause.Message)
		if len(cause.Info) > rawbson.MinSize {
			doc = append(doc, cause.Info[4:len(cause.Info)-1]...)
		}
		o, _ = bsoncore.AppendDocumentEnd(doc, why)
	}
	o, _ = bsoncore.AppendDocumentEnd(o, start)
	return o
}

// DropIndex drops one index.
func (b *Batch) DropIndex(coll *storage.Collection, name string) error {
	var spec bson.Raw
	for _, i := range coll.Indexes {
		if i.Name == name {
			spec = i.Spec
		}
	}
	if spec == nil {
		return servererr.New(servererr.IndexNotFound, "index not found with name [%s]", name)
	}
	start, o := bsoncore.AppendDocumentStart(nil)
	o = bsoncore.AppendStringElement(o, "dropIndexes", coll.NS.Collection())
	o = bsoncore.AppendStringElement(o, "index", name)
	o, _ = bsoncore.AppendDocumentEnd(o, start)
	e := entry{op: "c", ns: commands(coll.NS), ui: coll.UUID, o: o, o2: spec}
	return b.write(&e, func(u *storage.Unit) error { return u.DropIndex(coll.UUID, name) })
}

func uuidValue(id oplog.UUID) bson.RawValue {
	b := id.Binary()
	return bson.RawValue{Type: bson.TypeBinary, Value: bsoncore.AppendBinary(nil, b.Subtype, b.Data)}
}

func wrap(name string, doc bson.Raw) bson.Raw {
	start, dst := bsoncore.AppendDocumentStart(nil)
	dst = bsoncore.AppendDocumentElement(dst, name, bsoncore.Document(doc))
	dst, _ = bsoncore.AppendDocumentEnd(dst, start)
	return dst
}

// index is the field name of an array's element.
func index(i int) string { return strconv.Itoa(i) }
