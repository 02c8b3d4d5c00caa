package inventory_test

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/memstore"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/scope"
)

// catalogue are commands that create collections of every kind. A leading version is
// the first that supports it.
var catalogue = []string{
	`{"create": "plain"}`,
	`{"create": "capped", "capped": true, "size": 8192, "max": 7}`,
	`{"create": "collated", "collation": {"locale": "de", "strength": 2}}`,
	`{"create": "validated", "validator": {"a": {"$type": "int"}}, "validationLevel": "moderate", "validationAction": "warn"}`,
	`{"create": "schema", "validator": {"$jsonSchema": {"required": ["a"], "properties": {"a": {"bsonType": "int"}}}}}`,
	`{"create": "system.js"}`,
	`5.0 {"create": "images", "recordPreImages": true}`,
	`5.0 {"create": "series", "timeseries": {"timeField": "t", "metaField": "m", "granularity": "minutes"}, "expireAfterSeconds": 3600}`,
	`5.0 {"create": "series.plain", "timeseries": {"timeField": "t"}}`,
	`5.0 {"createIndexes": "system.buckets.series", "indexes": [{"key": {"meta.a": 1}, "name": "m.a_1"}]}`,
	`6.0 {"create": "clustered", "clusteredIndex": {"key": {"_id": 1}, "name": "by id", "unique": true}}`,
	`6.0 {"create": "clusteredTTL", "clusteredIndex": {"key": {"_id": 1}, "unique": true}, "expireAfterSeconds": 60}`,
	`6.0 {"create": "postimages", "changeStreamPreAndPostImages": {"enabled": true}}`,
	`{"createIndexes": "plain", "indexes": [
		{"key": {"a": 1}, "name": "a"}, {"key": {"a": -1, "b.c": 1}, "name": "a b.c"}, {"key": {"h": "hashed"}, "name": "h"},
		{"key": {"u": 1}, "name": "u", "unique": true}, {"key": {"t": 1}, "name": "t", "expireAfterSeconds": 10},
		{"key": {"s": 1}, "name": "s", "sparse": true}, {"key": {"p": 1}, "name": "p", "partialFilterExpression": {"p": {"$gt": 5}}},
		{"key": {"hidden": 1}, "name": "hidden", "hidden": true}, {"key": {"$**": 1}, "name": "wild"},
		{"key": {"w.$**": 1}, "name": "wild below"},
		{"key": {"x": 1}, "name": "x", "collation": {"locale": "fr"}},
		{"key": {"us": 1, "x": 1}, "name": "us", "unique": true, "sparse": true}]}`,
	`{"createIndexes": "plain", "indexes": [{"key": {"$**": 1}, "name": "wild some", "wildcardProjection": {"a": 1, "b": 1}}]}`,
	`{"createIndexes": "collated", "indexes": [{"key": {"a": 1}, "name": "a"}, {"key": {"a": 1}, "name": "simple", "collation": {"locale": "simple"}},
		{"key": {"b": 1}, "name": "unique", "unique": true, "collation": {"locale": "simple"}}]}`,
	`5.0 {"createIndexes": "fresh", "indexes": [{"key": {"same": 1}, "name": "same"}, {"key": {"same": 1}, "name": "same unique", "unique": true, "sparse": true}]}`,
	`7.0 {"createIndexes": "fresh", "indexes": [{"key": {"pu": 1}, "name": "pu", "prepareUnique": true}]}`,
	`{"create": "view", "viewOn": "plain", "pipeline": [{"$match": {"a": 1}}]}`,
	`{"create": "an earlier view", "viewOn": "view", "pipeline": []}`,
	`{"create": "zz", "viewOn": "an earlier view", "pipeline": [{"$lookup": {"from": "view", "localField": "a", "foreignField": "b", "as": "c"}}]}`,
	`{"create": "view of nothing", "viewOn": "nothing", "pipeline": []}`,
	`{"create": "collated view", "viewOn": "collated", "pipeline": [], "collation": {"locale": "de", "strength": 2}}`,
	`5.0 {"create": "view of a series", "viewOn": "series", "pipeline": [{"$match": {"m": 1}}]}`,
}

// strange are unusual but legal names.
var strange = []string{
	"with.dots..and", "ends.with.", " space ", "tab\tand\nnewline", "Ünïcødé ⛄", "quote\"'`", "{}", "0", "systematic", "system_x", "{$x: 1}"[4:],
	"tmp.agg_out.not.really", "tmpABCDE.renameCollection", "enxcol_.x.esc", "_id", "null", "create", "a/b\\c*?<>|:", "\x01\x7f",
	"buckets.x", "drop", strings.Repeat("long", 58),
}

// TestCopyOfCatalogue creates every kind of collection that the embedded set supports,
// and a copy of them.
func TestCopyOfCatalogue(t *testing.T) {
	t.Parallel()
	for _, dialect := range mongosim.Dialects() {
		for _, unique := range []ddl.UniqueIndexes{ddl.Relaxed, ddl.Serialized} {
			t.Run(fmt.Sprintf("%s/%d", dialect, unique), func(t *testing.T) {
				t.Parallel()
				source := start(t, mongosim.Options{Dialect: dialect, Seed: 1})
				for _, cmd := range catalogue {
					if since, rest, ok := strings.Cut(cmd, " {"); ok && since != "" && since[0] != '{' {
						if since > dialect || strings.Contains(rest, "recordPreImages") && dialect > "6.0" { // not since 6.2
							continue
						}
						cmd = "{" + rest
					}
					if _, err := source.Call(t.Context(), mongo.Command{DB: "db", Body: bsongen.FromJSON(t, cmd)}); err != nil {
						t.Errorf("%s: %v", cmd, err)
					}
				}
				for _, name := range strange {
					if _, err := source.Call(t.Context(), mongo.Command{DB: "strange-Ü", Body: must.Marshal(t, bson.D{{Key: "create", Value: name}})}); err != nil {
						t.Errorf("%q: %v", name, err)
					}
				}
				begin := source.now(t)
				inv := source.take(t, scope.Config{}, begin)
				for _, c := range inv.Collections {
					_, clustered := c.Options.Lookup("clusteredIndex").DocumentOK()
					if clustered && len(c.Indexes) > 0 || (c.IDIndex == nil) != (clustered || c.NS.IsBuckets()) {
						t.Errorf("%s, clustered %t: _id %s and %s", c.NS, clustered, c.IDIndex, c.Indexes)
					}
				}
				target := start(t, mongosim.Options{Dialect: dialect, Seed: 2})
				exec := target.executor(t, scope.Config{}, unique)
				build(t, exec, inv, begin)
				for range 2 {
					for _, what := range memstore.Diff(source.state(t), target.state(t)) {
						t.Error(what)
					}
					build(t, target.executor(t, scope.Config{}, unique), inv, begin) // once more does no harm
				}
			})
		}
	}
}
