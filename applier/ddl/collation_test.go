package ddl_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/initialsync/inventory"
	"github.com/oplogrep/replicator/initialsync/progress"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
)

// indexKinds are indexes of all kinds, without a collation.
var indexKinds = map[string]string{
	"plain":    `{"key": {"a": 1}, "name": "i"}`,
	"compound": `{"key": {"a": 1, "b": -1}, "name": "i"}`,
	"text":     `{"key": {"a": "text", "b": 1}, "name": "i", "default_language": "german"}`,
	"2d":       `{"key": {"a": "2d"}, "name": "i", "bits": 20}`,
	"2dsphere": `{"key": {"a": "2dsphere"}, "name": "i"}`,
	"hashed":   `{"key": {"a": "hashed"}, "name": "i"}`,
	"wildcard": `{"key": {"$**": 1}, "name": "i", "wildcardProjection": {"b": 0}}`,
	"ttl":      `{"key": {"a": 1}, "name": "i", "expireAfterSeconds": 1000}`,
	"partial":  `{"key": {"a": 1}, "name": "i", "partialFilterExpression": {"b": {"$gt": 3}}}`,
	"unique":   `{"key": {"a": 1}, "name": "i", "unique": true}`,
	"hidden":   `{"key": {"a": 1}, "name": "i", "hidden": true}`,
	"sparse":   `{"key": {"a": 1}, "name": "i", "sparse": true}`,
	"v1":       `{"v": 1, "key": {"a": 1}, "name": "i"}`,

	"hashed _id": `{"key": {"_id": "hashed"}, "name": "i"}`,
	"2d _id":     `{"key": {"_id": "2d"}, "name": "i"}`,
}

// makings are collections of all kinds that may have indexes; %s is replaced by a
// collation, or nothing. Buckets stands for those of a time-series collection.
var makings = map[string]string{
	"plain":     `{"create": "c"%s}`,
	"capped":    `{"create": "c", "capped": true, "size": 4096%s}`,
	"clustered": `{"create": "c", "clusteredIndex": {"key": {"_id": 1}, "unique": true}%s}`,
	"buckets":   `{"create": "c", "timeseries": {"timeField": "t", "metaField": "m"}%s}`,
}

// The target's indexes have the collations of the source's, not those that a client's
// command would inherit: for all kinds of indexes and collections, by the log and by a
// copy.
func TestIndexCollations(t *testing.T) {
	t.Parallel()
	race.Skip(t, "it has a thousand cases, one after the other")
	const german, french = `, "collation": {"locale": "de", "strength": 2}`, `, "collation": {"locale": "fr"}`
	for dialect, policy := range map[string]ddl.UniqueIndexes{"5.0": ddl.Relaxed, "7.0": ddl.Serialized} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, dialect, policy, scope.Config{Map: []string{"src=dst"}, Include: []string{"src.*"}})
			built := 0
			for making, command := range makings {
				if making == "clustered" && dialect == "5.0" {
					continue
				}
				for _, collection := range []string{"", german} {
					for kind, spec := range indexKinds {
						for _, index := range []string{"", `, "collation": {"locale": "simple"}`, french} {
							for _, way := range []string{"log", "log of a build", "copy"} {
								c := collated{
									bench: b, way: way, create: fmt.Sprintf(command, collection), index: spec[:len(spec)-1] + index + "}",
									name: fmt.Sprintf("%s of %s%s%s by %s", kind, making, collection, index, way),
								}
								if making == "buckets" {
									c.buckets = "system.buckets."
								}
								built += c.run(t)
							}
						}
					}
				}
			}
			if built < 3*150 {
				t.Errorf("only %d indexes could be built at the source", built)
			}
		})
	}
}

// collated is one case: a collection and an index at the source, and how they reach the
// target.
type collated struct {
	*bench
	name, way, create, index, buckets string
}

// run returns how many indexes were to be built.
func (c *collated) run(t *testing.T) int {
	t.Helper()
	c.must(t, "src", c.create)
	defer c.drop(t)
	if c.way == "log of a build" {
		c.must(t, "src", `{"insert": "c", "documents": [{"_id": 1, "t": {"$date": "2026-01-01T00:00:00Z"}}]}`)
	}
	_, err := c.Call(t.Context(), mongo.Command{DB: "src", Body: bsongen.FromJSON(t, fmt.Sprintf(`{"createIndexes": "%sc", "indexes": [%s]}`, c.buckets, c.index))})
	if err != nil {
		return 0 // no such index
	}
	source := oplog.NewNamespace("src", c.buckets+"c")
	want := c.indexes(t, source)
	if c.way == "copy" {
		c.copy(t, source)
	} else {
		c.follow(t, ddl.Once)
	}
	c.compare(t, want, "")

	// It is found again by its name, and changes of it are applied.
	if c.buckets == "" {
		c.must(t, "src", `{"collMod": "c", "index": {"name": "i", "hidden": true}}`)
		c.must(t, "src", `{"collMod": "c", "index": {"name": "i", "hidden": false}}`)
		want = c.indexes(t, source)
		c.follow(t, ddl.Once)
		c.compare(t, want, " after collMod")
	}
	c.must(t, "src", fmt.Sprintf(`{"dropIndexes": "%sc", "index": "i"}`, c.buckets))
	want = c.indexes(t, source)
	c.follow(t, ddl.Once)
	c.compare(t, want, " after dropIndexes")
	return 1
}

func (c *collated) compare(t *testing.T, want []string, when string) {
	t.Helper()
	deferred := must.Get(ddl.ReadDeferred(t.Context(), c, "replicator", "link"))(t)
	target := oplog.NewNamespace("dst", c.buckets+"c")
	specs := must.Get(catalog.Indexes(t.Context(), c, target))(t)
	_, specs = deferred.Overlay(target, nil, specs)
	if diff := cmp.Diff(want, indexTexts(specs)); diff != "" {
		t.Errorf("%s%s: -source +target:\n%s", c.name, when, diff)
	}
}

func (c *collated) indexes(t *testing.T, ns oplog.Namespace) []string {
	t.Helper()
	specs := must.Get(catalog.Indexes(t.Context(), c, ns))(t)
	return indexTexts(specs)
}

func indexTexts(specs []bson.Raw) []string {
	texts := make([]string, len(specs))
	for i := range specs {
		texts[i] = relaxed(specs[i])
	}
	return texts
}

// follow applies the source's new log entries.
func (c *collated) follow(t *testing.T, again ddl.Mode) {
	t.Helper()
	for _, raw := range c.logged(t) {
		e, err := oplog.ParseEntry(raw)
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind != oplog.KindCommand || e.NS.DB() != "src" {
			continue
		}
		if err := c.exec.Apply(t.Context(), &e.Op, again); err != nil {
			t.Fatalf("%s: %s: %v", c.name, e.O, err)
		}
	}
}

// logged returns the entries after those returned before.
func (c *collated) logged(t *testing.T) []bson.Raw {
	t.Helper()
	find := must.Marshal(t, bson.D{
		{Key: "find", Value: "oplog.rs"},
		{Key: "filter", Value: bson.D{{Key: "ts", Value: bson.D{{Key: "$gt", Value: c.read}}}}},
		{Key: "batchSize", Value: 10_000},
	})
	docs := must.Get(catalog.ReadAll(t.Context(), c, "local", find))(t)
	for _, d := range docs {
		c.read.T, c.read.I = d.Lookup("ts").Timestamp()
	}
	return docs
}

// copy builds the collection and indexes that a copy would build.
func (c *collated) copy(t *testing.T, source oplog.Namespace) {
	t.Helper()
	c.logged(t)
	list, err := catalog.List(t.Context(), c, "src", source.Collection())
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	_, id := list[0].Lookup("info", "uuid").Binary()
	coll := progress.Collection{NS: source, UUID: oplog.UUID(id), Options: list[0].Lookup("options").Document()}
	specs, err := catalog.Indexes(t.Context(), c, source)
	if err != nil {
		t.Fatal(err)
	}
	for _, spec := range specs {
		switch spec.Lookup("name").StringValue() {
		case "_id_":
			coll.IDIndex = spec
		case "i", "m_1_t_1":
			coll.Indexes = append(coll.Indexes, spec)
		}
	}
	at := oplog.OpTime{TS: c.read, Term: 1}
	create, err := inventory.CreateOp(&coll, at)
	if err != nil {
		t.Fatal(err)
	}
	build, err := inventory.IndexesOp(&coll, coll.Indexes, at)
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range []*oplog.Op{create, build} {
		if err := c.exec.Apply(t.Context(), op, ddl.Copied); err != nil {
			t.Fatalf("%s: %s: %v", c.name, op.O, err)
		}
	}
}

// drop ends the case: nothing remains on either side.
func (c *collated) drop(t *testing.T) {
	t.Helper()
	c.must(t, "src", `{"drop": "c"}`)
	c.follow(t, ddl.Maybe)
	if left, err := catalog.List(t.Context(), c, "dst", "c"); err != nil || len(left) > 0 {
		t.Fatalf("%s: left: %s, %v", c.name, left, err)
	}
}
