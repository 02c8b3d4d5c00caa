package verify

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/bsongen"
)

// TestNotedOptions: an option that a server itself notes among those of buckets is not a difference; another
// option of the storage engine is.
func TestNotedOptions(t *testing.T) {
	t.Parallel()
	options := func(engine string) bson.Raw {
		return bsongen.FromJSON(t, `{"clusteredIndex": true, `+engine+`"timeseries": {"timeField": "t"}}`)
	}
	for engine, want := range map[string]int{
		"": 0,
		`"storageEngine": {"wiredTiger": {"configString": "app_metadata=(timeseriesBucketsMayHaveMixedSchemaData=true)"}}, `:                                               0,
		`"storageEngine": {"wiredTiger": {"configString": "app_metadata=(timeseriesBucketingParametersHaveChanged=true,timeseriesBucketsMayHaveMixedSchemaData=true)"}}, `: 0,
		`"storageEngine": {"wiredTiger": {"configString": "block_compressor=zlib"}}, `:                                                                                     1,
	} {
		v := &Verifier{}
		p := &pair{ns: "db.system.buckets.m", want: &listed{options: options("")}}
		if found := v.options(p, options(engine)); len(found) != want {
			t.Errorf("the target has %s: %d differences, want %d", engine, len(found), want)
		}
		p.want.options = options(engine)
		if found := v.options(p, options("")); len(found) != want {
			t.Errorf("the source has %s: %d differences, want %d", engine, len(found), want)
		}
	}
}

// TestIndexFlags: a flag of an index that is false is the same as none, and one that is true is a difference.
func TestIndexFlags(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"unique", "sparse", "hidden", "prepareUnique"} {
		for value, want := range map[string]int{"false": 0, "true": 1} {
			with := bsongen.FromJSON(t, `{"v": 2, "key": {"a": 1}, "name": "a_1", "`+flag+`": `+value+`}`)
			without := bsongen.FromJSON(t, `{"v": 2, "key": {"a": 1}, "name": "a_1"}`)
			v := &Verifier{}
			for _, side := range [][2]bson.Raw{{with, without}, {without, with}} {
				p := &pair{ns: "d.c", want: &listed{indexes: []bson.Raw{side[0]}}}
				if found := v.indexes(p, []bson.Raw{side[1]}); len(found) != want {
					t.Errorf("%s: %s on one side: %d differences, want %d", flag, value, len(found), want)
				}
			}
		}
	}
}

// TestClusteredAge: the index of a clustered collection shows the collection's age and collation, in newer releases only. They
// are compared as options, and of the target the age is deferred.
func TestClusteredAge(t *testing.T) {
	t.Parallel()
	index := func(more string) bson.Raw {
		return bsongen.FromJSON(t, `{"v": 2, "key": {"_id": 1}, "name": "by id", "unique": true`+more+`}`)
	}
	aged, plain := `, "expireAfterSeconds": 60, "clustered": true`, `, "clustered": true`
	for _, x := range []struct {
		source, target string
		want           int
	}{
		{aged, plain, 0},
		{plain, aged, 0},
		{`, "collation": {"locale": "fr"}, "clustered": true`, plain, 0},
		{`, "expireAfterSeconds": 60`, ``, 1}, // an index like any other
		{plain, ``, 1},
	} {
		v := &Verifier{}
		p := &pair{ns: "d.c", want: &listed{indexes: []bson.Raw{index(x.source)}}}
		if found := v.indexes(p, []bson.Raw{index(x.target)}); len(found) != x.want {
			t.Errorf("source %s, target %s: %d differences, want %d", x.source, x.target, len(found), x.want)
		}
	}
}
