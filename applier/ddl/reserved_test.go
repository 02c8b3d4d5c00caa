package ddl_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/scope"
)

// TestReservedIndex: an index of buckets whose type users may not name is built, with either code of the refusal, and one
// that the log has not as a client has asked for it is an error, not one that is left out.
func TestReservedIndex(t *testing.T) {
	t.Parallel()
	for _, code := range []servererr.Code{servererr.CannotCreateIndex, servererr.IndexOptionsConflict} {
		for _, mode := range []ddl.Mode{ddl.Once, ddl.Maybe, ddl.Copied} {
			t.Run(fmt.Sprint(code, " ", mode), func(t *testing.T) {
				t.Parallel()
				b := newBench(t, "7.0", ddl.Relaxed, scope.Config{})
				b.before = func(cmd mongo.Command) error {
					if name, ok := cmd.Body.Lookup("createIndexes").StringValueOK(); ok && strings.HasPrefix(name, "system.buckets.") {
						return servererr.New(code, "a type of index for __system")
					}
					return nil
				}
				for _, line := range []string{
					`c db.$cmd {"create": "system.buckets.m", "validator": {}, "clusteredIndex": true, "timeseries": {"timeField": "t"}}`,
					`c db.$cmd {"createIndexes": "system.buckets.m", "v": 2, "key": {"data.loc": "2dsphere_bucket"}, "name": "loc", ` +
						`"originalSpec": {"v": 2, "key": {"loc": "2dsphere"}, "name": "loc"}, "2dsphereIndexVersion": 3}`,
				} {
					if err := b.exec.Apply(t.Context(), b.operation(t, line), mode); err != nil {
						t.Fatal(line, err)
					}
				}
				specs, err := catalog.Indexes(t.Context(), b, "db.system.buckets.m")
				if err != nil || len(specs) != 1 || specs[0].Lookup("key", "data.loc").StringValue() != "2dsphere_bucket" {
					t.Errorf("the target has %s, %v", specs, err)
				}
				op := b.operation(t, `c db.$cmd {"createIndexes": "system.buckets.m", "v": 2, "key": {"data.x": "2dsphere_bucket"}, "name": "x"}`)
				if err := b.exec.Apply(t.Context(), op, ddl.Once); err == nil {
					t.Error("one without what the client has asked for is applied")
				}
			})
		}
	}
}
