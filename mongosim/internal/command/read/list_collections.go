package read

import (
	"bytes"
	"context"
	"crypto/md5"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/serverquery"
	"github.com/oplogrep/replicator/mongosim/internal/arg"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/mongosim/internal/viewdef"
	"github.com/oplogrep/replicator/oplog"
)

// listArgs are the arguments that the lists share.
type listArgs struct {
	filter                         bson.Raw
	nameOnly, authorized, buildIDs bool
	batchSize                      int64 // -1 if not given
}

func parseList(r *dispatch.Request) (listArgs, error) {
	a := listArgs{batchSize: -1}
	read := dispatch.ArgReader(r.Spec.Name)
	err := dispatch.EachArg(r.Cmd, func(e *rawbson.Elem) (err error) {
		switch e.Name() {
		case "filter":
			err = read.Object(e, &a.filter)
		case "nameOnly":
			err = read.Bool(e, &a.nameOnly)
		case "authorizedCollections", "authorizedDatabases":
			err = read.Bool(e, &a.authorized)
		case "includeBuildUUIDs":
			err = read.Bool(e, &a.buildIDs)
		case "includeIndexBuildInfo":
			var info bool
			if err = read.Bool(e, &info); err == nil && info {
				err = servererr.New(servererr.NotImplemented, "listIndexes option includeIndexBuildInfo is not implemented here")
			}
		case "cursor":
			a.batchSize, err = read.BatchSizeOf(e)
		}
		return err
	})
	return a, err
}

var listCollectionsFields = []string{"cursor", "filter", "nameOnly", "authorizedCollections"}

func mayListCollections(r *dispatch.Request) error {
	only, _ := rawbson.Lookup(r.Cmd, "authorizedCollections")
	names, _ := rawbson.Lookup(r.Cmd, "nameOnly")
	if truthyArg(only) && truthyArg(names) {
		return nil // it lists what the user may see
	}
	return r.Allowed("listCollections", r.DB, "")
}

// sees reports whether the request may read a collection, or, with coll "", all of
// a database.
func sees(r *dispatch.Request, db, coll string) bool { return r.Allowed("find", db, coll) == nil }

func truthyArg(e rawbson.Elem) bool {
	var b bool
	return dispatch.ArgReader("").Bool(&e, &b) == nil && b
}

func runListCollections(ctx context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	a, err := parseList(r)
	if err != nil {
		return err
	}
	match, err := serverquery.Compile(a.filter, serverquery.Options{})
	if err != nil {
		return err
	}
	ns := oplog.NewNamespace(r.DB, "$cmd.listCollections")
	var docs []bson.Raw
	add := func(doc bson.Raw, name string) error {
		ok, err := match.Match(doc)
		if err != nil || !ok {
			return err
		}
		if a.authorized && !sees(r, r.DB, name) {
			return nil
		}
		if a.nameOnly {
			doc = nameAndType(doc)
		}
		docs = append(docs, doc)
		return nil
	}
	err = r.Look("", bson.Timestamp{})(func(s dispatch.Sight) error {
		for _, c := range named(r, s, a.filter) {
			if err := add(c.listed(), c.ns.Collection()); err != nil {
				return err
			}
		}
		if skipsViews(a.filter) {
			return nil
		}
		views, err := viewdef.All(s.View, r.DB)
		if err != nil {
			return err
		}
		for _, v := range views {
			if err := add(listedView(&v, s), v.NS.Collection()); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return ListCursor(ctx, r, ns, docs, a.batchSize, out)
}

// skipsViews reports whether a filter is, to the byte, the one of the server's own
// cloner: with any other, one by name or type included, the views are gone through
// before the filter is asked (list_collections.cpp, ListCollectionsFilter).
func skipsViews(filter bson.Raw) bool { return bytes.Equal(filter, onlyCollections) }

var onlyCollections = bsoncore.NewDocumentBuilder().AppendArray("$or", bsoncore.NewArrayBuilder().
	AppendDocument(bsoncore.NewDocumentBuilder().AppendString("type", "collection").Build()).
	AppendDocument(bsoncore.NewDocumentBuilder().
		AppendDocument("type", bsoncore.NewDocumentBuilder().AppendBoolean("$exists", false).Build()).Build()).
	Build()).Build()

// listing is a collection as listCollections shows it.
type listing struct {
	ns               oplog.Namespace
	uuid             oplog.UUID
	options, idIndex bson.Raw
}

// catalog returns the collections of the request's database in the server's
// order, by UUID; the oplog is among those of local.
func catalog(r *dispatch.Request, s dispatch.Sight) []listing {
	var list []listing
	for _, coll := range s.Collections(r.DB) {
		list = append(list, listing{coll.NS, coll.UUID, coll.Options, coll.IDIndex})
	}
	if r.DB == dispatch.OplogNamespace.DB() {
		list = append(list, listing{ns: dispatch.OplogNamespace, uuid: oplogUUID(r.Server), options: oplogOptions(s)})
	}
	slices.SortFunc(list, func(a, b listing) int { return bytes.Compare(a.uuid[:], b.uuid[:]) })
	return list
}

// named is the catalog, or the one collection of it that a filter names: with many
// collections, a client that asks for each of them should not have to wait for a
// list of all every time.
func named(r *dispatch.Request, s dispatch.Sight, filter bson.Raw) []listing {
	e, _ := rawbson.Lookup(filter, "name")
	name, ok := e.Text()
	if !ok || r.DB == dispatch.OplogNamespace.DB() {
		return catalog(r, s)
	}
	coll, ok := s.Collection(oplog.NewNamespace(r.DB, name))
	if !ok {
		return nil
	}
	return []listing{{coll.NS, coll.UUID, coll.Options, coll.IDIndex}}
}

// oplogUUID names the oplog. It differs from member to member, as the oplog does.
func oplogUUID(s *dispatch.Server) oplog.UUID {
	u := oplog.UUID(md5.Sum([]byte("local.oplog.rs of " + s.Config.Host))) //nolint:gosec // see above
	u[6], u[8] = u[6]&0x0f|0x40, u[8]&0x3f|0x80
	return u
}

func oplogOptions(s dispatch.Sight) bson.Raw {
	i, doc := bsoncore.AppendDocumentStart(nil)
	doc = bsoncore.AppendBooleanElement(doc, "capped", true)
	doc = dispatch.AppendNumber(doc, "size", s.Log.MaxBytes())
	doc = bsoncore.AppendBooleanElement(doc, "autoIndexId", false)
	doc, _ = bsoncore.AppendDocumentEnd(doc, i)
	return doc
}

func (l *listing) listed() bson.Raw {
	i, doc := bsoncore.AppendDocumentStart(nil)
	doc = bsoncore.AppendStringElement(doc, "name", l.ns.Collection())
	doc = bsoncore.AppendStringElement(doc, "type", "collection")
	doc = bsoncore.AppendDocumentElement(doc, "options", orEmpty(l.options))
	info, doc := bsoncore.AppendDocumentElementStart(doc, "info")
	doc = bsoncore.AppendBooleanElement(doc, "readOnly", false)
	doc = bsoncore.AppendBinaryElement(doc, "uuid", bson.TypeBinaryUUID, l.uuid[:])
	doc, _ = bsoncore.AppendDocumentEnd(doc, info)
	if l.idIndex != nil {
		doc = bsoncore.AppendDocumentElement(doc, "idIndex", opwrite.ListedIndex(l.idIndex))
	}
	doc, _ = bsoncore.AppendDocumentEnd(doc, i)
	return doc
}

// listedView is a view, or a time-series collection, as listCollections shows it.
func listedView(v *viewdef.Named, s dispatch.Sight) bson.Raw {
	kind := "view"
	o, options := bsoncore.AppendDocumentStart(nil)
	if v.Timeseries {
		kind = "timeseries"
		if coll, ok := s.Collection(v.NS.Buckets()); ok {
			options = appendSeriesOptions(options, coll)
		}
	} else {
		options = bsoncore.AppendStringElement(options, "viewOn", v.On)
		options = bsoncore.AppendArrayElement(options, "pipeline", v.Pipeline)
		if v.Collation != nil {
			options = bsoncore.AppendDocumentElement(options, "collation", v.Collation)
		}
	}
	options, _ = bsoncore.AppendDocumentEnd(options, o)

	i, doc := bsoncore.AppendDocumentStart(nil)
	doc = bsoncore.AppendStringElement(doc, "name", v.NS.Collection())
	doc = bsoncore.AppendStringElement(doc, "type", kind)
	doc = bsoncore.AppendDocumentElement(doc, "options", options)
	info, doc := bsoncore.AppendDocumentElementStart(doc, "info")
	doc = bsoncore.AppendBooleanElement(doc, "readOnly", !v.Timeseries)
	doc, _ = bsoncore.AppendDocumentEnd(doc, info)
	doc, _ = bsoncore.AppendDocumentEnd(doc, i)
	return doc
}

// appendSeriesOptions appends the options that a time-series collection was
// created with: those of its buckets without what makes them buckets.
func appendSeriesOptions(dst []byte, buckets *storage.Collection) []byte {
	it := rawbson.NewIter(buckets.Options)
	for it.Next() {
		switch it.Name() {
		case "validator", "validationLevel", "validationAction", "clusteredIndex":
		default:
			dst = arg.Append(dst, it.Name(), &it.Elem)
		}
	}
	return dst
}

func nameAndType(doc bson.Raw) bson.Raw {
	i, out := bsoncore.AppendDocumentStart(nil)
	it := rawbson.NewIter(doc)
	for range 2 {
		it.Next()
		out = arg.Append(out, it.Name(), &it.Elem)
	}
	out, _ = bsoncore.AppendDocumentEnd(out, i)
	return out
}
