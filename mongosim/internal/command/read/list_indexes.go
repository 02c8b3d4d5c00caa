package read

import (
	"context"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/serverquery"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
)

var listIndexesFields = []string{"cursor", "includeBuildUUIDs", "includeIndexBuildInfo"}

func runListIndexes(ctx context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	a, err := parseList(r)
	if err != nil {
		return err
	}
	var t Target
	var docs []bson.Raw
	series := false // one with buckets
	err = r.Look("", bson.Timestamp{})(func(s dispatch.Sight) (err error) {
		if t, err = namedTarget(r, s); err != nil {
			return err
		}
		if t.view != nil && t.view.Timeseries {
			var buckets *storage.Collection
			if buckets, series = s.Collection(t.NS.Buckets()); series {
				docs = seriesListing(buckets.Options, buckets.Indexes)
			}
		}
		if coll, ok := s.ByUUID(t.uuid); ok && t.exists {
			docs = clusteredListing(r.Server, coll.Options)
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case series: // the clustered index of its buckets is not shown (list_indexes.cpp)
	case t.view != nil && t.view.Timeseries:
		return servererr.New(servererr.NotImplemented, "listIndexes of a time series without buckets is not implemented here")
	case t.view != nil:
		return dispatch.NotOnView(t.NS)
	case !t.exists:
		return servererr.New(servererr.NamespaceNotFound, "ns does not exist: %s", t.NS)
	}
	for _, index := range t.indexes {
		doc := opwrite.ListedIndex(index.Spec)
		if index.Building && a.buildIDs {
			doc = bsoncore.BuildDocument(nil, bsoncore.AppendBinaryElement(
				bsoncore.AppendDocumentElement(nil, "spec", doc), "buildUUID", bson.TypeBinaryUUID, index.BuildUUID[:]))
		}
		docs = append(docs, doc)
	}
	return ListCursor(ctx, r, t.NS, docs, a.batchSize, out)
}

// clusteredListing is the index of a clustered collection as listIndexes shows it, with the
// collection's collation and, in 8.0, its age (formatClusterKeyForListIndexes in
// clustered_collection_util.cpp). Collections of buckets, which say clusteredIndex: true, show none.
func clusteredListing(s *dispatch.Server, options bson.Raw) []bson.Raw {
	e, _ := rawbson.Lookup(options, "clusteredIndex")
	spec, ok := e.Document()
	if !ok {
		return nil
	}
	shown := slices.Clone(spec[4 : len(spec)-1])
	if e, ok := rawbson.Lookup(options, "collation"); ok && s.AtLeast(6, 0) {
		shown = bsoncore.AppendValueElement(shown, "collation", bsoncore.Value{Type: bsoncore.Type(e.Type), Data: e.Value})
	}
	if e, ok := rawbson.Lookup(options, "expireAfterSeconds"); ok && s.AtLeast(8, 0) {
		shown = bsoncore.AppendValueElement(shown, "expireAfterSeconds", bsoncore.Value{Type: bsoncore.Type(e.Type), Data: e.Value})
	}
	return []bson.Raw{bsoncore.BuildDocument(nil, bsoncore.AppendBooleanElement(shown, "clustered", true))}
}

var listDatabasesFields = []string{"filter", "nameOnly", "authorizedDatabases"}

func mayListDatabases(r *dispatch.Request) error {
	only, given := rawbson.Lookup(r.Cmd, "authorizedDatabases")
	if !given || truthyArg(only) {
		return nil // it lists what the user may see
	}
	return r.Allowed("listDatabases", "", "")
}

func runListDatabases(_ context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	a, err := parseList(r)
	if err != nil {
		return err
	}
	match, err := serverquery.Compile(a.filter, serverquery.Options{})
	if err != nil {
		return err
	}
	_, given := rawbson.Lookup(r.Cmd, "authorizedDatabases")
	a.authorized = a.authorized || !given && r.Allowed("listDatabases", "", "") != nil
	i, buf := bsoncore.AppendArrayElementStart(out.Buf, "databases")
	n, total := 0, int64(0)
	err = r.Look("", bson.Timestamp{})(func(s dispatch.Sight) error {
		for _, db := range databases(s) {
			if a.authorized && !sees(r, db, "") {
				continue
			}
			doc := bsoncore.AppendStringElement(nil, "name", db)
			var size int64
			if !a.nameOnly {
				size = diskSize(s, db)
				doc = bsoncore.AppendInt64Element(doc, "sizeOnDisk", size)
				doc = bsoncore.AppendBooleanElement(doc, "empty", false)
			}
			doc = bsoncore.BuildDocument(nil, doc)
			ok, err := match.Match(doc)
			if err != nil {
				return err
			}
			if ok {
				buf = bsoncore.AppendDocumentElement(buf, dispatch.ArrayKey(n), doc)
				n, total = n+1, total+size
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	buf, _ = bsoncore.AppendArrayEnd(buf, i)
	if !a.nameOnly {
		buf = bsoncore.AppendInt64Element(buf, "totalSize", total)
		buf = bsoncore.AppendInt64Element(buf, "totalSizeMb", total>>20)
	}
	out.Buf = buf
	return nil
}

// databases returns the names of all databases in byte order; local is always
// there, as the oplog is in it.
func databases(s dispatch.Sight) []string {
	names := s.Databases()
	if i, ok := slices.BinarySearchFunc(names, dispatch.OplogNamespace.DB(), strings.Compare); !ok {
		names = slices.Insert(slices.Clone(names), i, dispatch.OplogNamespace.DB())
	}
	return names
}
