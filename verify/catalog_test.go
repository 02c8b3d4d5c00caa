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
