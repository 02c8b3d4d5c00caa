package command

import (
	"bytes"
	"context"
	"crypto/md5" //nolint:gosec // a name, not a secret
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/serverquery"
	"github.com/oplogrep/replicator/mongosim/internal/arg"
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

func parseList(r *request) (listArgs, error) {
	a := listArgs{batchSize: -1}
	read := argReader(r.spec.name)
	err := eachArg(r.cmd, func(e *rawbson.Elem) (err error) {
		switch e.Name() {
		case "filter":
			err = read.object(e, &a.filter)
		case "nameOnly":
			err = read.bool(e, &a.nameOnly)
		case "authorizedCollections", "authorizedDatabases":
			err = read.bool(e, &a.authorized)
		case "includeBuildUUIDs":
			err = read.bool(e, &a.buildIDs)
		case "includeIndexBuildInfo":
			var info bool
			if err = read.bool(e, &info); err == nil && info {
				err = servererr.New(servererr.NotImplemented, "listIndexes option includeIndexBuildInfo is not implemented here")
			}
		case "cursor":
			a.batchSize, err = read.batchSizeOf(e)
		}
		return err
	})
	return a, err
}

var listCollectionsFields = []string{"cursor", "filter", "nameOnly", "authorizedCollections"}

func mayListCollections(r *request) error {
	only, _ := rawbson.Lookup(r.cmd, "authorizedCollections")
	names, _ := rawbson.Lookup(r.cmd, "nameOnly")
	if truthyArg(only) && truthyArg(names) {
		return nil // it lists what the user may see
	}
	return r.allowed("listCollections", r.db, "")
}

// sees tells whether the request may read a collection, or, with coll "", all of
// a database.
func (r *request) sees(db, coll string) bool { return r.allowed("find", db, coll) == nil }

func truthyArg(e rawbson.Elem) bool {
	var b bool
	return argReader("").bool(&e, &b) == nil && b
}

func runListCollections(ctx context.Context, r *request, out *reply) error {
	a, err := parseList(r)
	if err != nil {
		return err
	}
	match, err := serverquery.Compile(a.filter, serverquery.Options{})
	if err != nil {
		return err
	}
	ns := oplog.NewNamespace(r.db, "$cmd.listCollections")
	var docs []bson.Raw
	add := func(doc bson.Raw, name string) error {
		ok, err := match.Match(doc)
		if err != nil || !ok {
			return err
		}
		if a.authorized && !r.sees(r.db, name) {
			return nil
		}
		if a.nameOnly {
			doc = nameAndType(doc)
		}
		docs = append(docs, doc)
		return nil
	}
	err = r.look("", bson.Timestamp{})(func(s sight) error {
		for _, c := range r.named(s, a.filter) {
			if err := add(c.listed(), c.ns.Collection()); err != nil {
				return err
			}
		}
		if skipsViews(a.filter) {
			return nil
		}
		views, err := viewdef.All(s.View, r.db)
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
	return r.listCursor(ctx, ns, docs, a.batchSize, out)
}

// skipsViews tells whether a filter is, to the byte, the one of the server's own
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
func (r *request) catalog(s sight) []listing {
	var list []listing
	for _, coll := range s.Collections(r.db) {
		list = append(list, listing{coll.NS, coll.UUID, coll.Options, coll.IDIndex})
	}
	if r.db == oplogNamespace.DB() {
		list = append(list, listing{ns: oplogNamespace, uuid: r.srv.oplogUUID(), options: oplogOptions(s)})
	}
	slices.SortFunc(list, func(a, b listing) int { return bytes.Compare(a.uuid[:], b.uuid[:]) })
	return list
}

// named is the catalog, or the one collection of it that a filter names: with many
// collections, a client that asks for each of them should not have to wait for a
// list of all every time.
func (r *request) named(s sight, filter bson.Raw) []listing {
	e, _ := rawbson.Lookup(filter, "name")
	name, ok := e.Text()
	if !ok || r.db == oplogNamespace.DB() {
		return r.catalog(s)
	}
	coll, ok := s.Collection(oplog.NewNamespace(r.db, name))
	if !ok {
		return nil
	}
	return []listing{{coll.NS, coll.UUID, coll.Options, coll.IDIndex}}
}

// oplogUUID names the oplog. It differs from member to member, as the oplog does.
func (s *Server) oplogUUID() oplog.UUID {
	u := oplog.UUID(md5.Sum([]byte("local.oplog.rs of " + s.cfg.Host))) //nolint:gosec // see above
	u[6], u[8] = u[6]&0x0f|0x40, u[8]&0x3f|0x80
	return u
}

func oplogOptions(s sight) bson.Raw {
	i, doc := bsoncore.AppendDocumentStart(nil)
	doc = bsoncore.AppendBooleanElement(doc, "capped", true)
	doc = appendNumber(doc, "size", s.log.MaxBytes())
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
func listedView(v *viewdef.Named, s sight) bson.Raw {
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
