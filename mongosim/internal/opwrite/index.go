package opwrite

import (
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

func buildDocument(coll *storage.Collection, build oplog.UUID, specs []bson.Raw) (bson.Raw, error) {
	start, dst := bsoncore.AppendDocumentStart(nil)
	dst = bsoncore.AppendBinaryElement(dst, "_id", bson.TypeBinaryUUID, build[:])
	dst = bsoncore.AppendBinaryElement(dst, "collectionUUID", bson.TypeBinaryUUID, coll.UUID[:])
	dst = bsoncore.AppendStringElement(dst, "commitQuorum", "votingMembers")
	array, dst := bsoncore.AppendArrayElementStart(dst, "indexNames")
	for i, spec := range specs {
		e, _ := rawbson.Lookup(spec, "name")
		name, ok := e.Text()
		if !ok {
			return nil, servererr.New(servererr.FailedToParse, "The 'name' field is a required property of an index specification")
		}
		dst = bsoncore.AppendStringElement(dst, index(i), name)
	}
	dst, _ = bsoncore.AppendArrayEnd(dst, array)
	dst, _ = bsoncore.AppendDocumentEnd(dst, start)
	return dst, nil
}

// vote logs that this member has built the index.
func (b *Batch) vote(build oplog.UUID) error {
	builds, ok := b.View().Collection(IndexBuildsNS)
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

func (b *Batch) forgetBuild(build oplog.UUID) error {
	builds, ok := b.View().Collection(IndexBuildsNS)
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
