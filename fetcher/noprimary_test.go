package fetcher

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestNoPrimary: a reply says whether its member knows a primary, by its number in the configuration, or -1.
func TestNoPrimary(t *testing.T) {
	t.Parallel()
	for index, want := range map[any]bool{nil: false, int32(0): false, int32(2): false, int32(-1): true} {
		var f fake
		data := bson.D{}
		for _, e := range f.oplogData("") {
			if e.Key == "primaryIndex" {
				if e.Value = index; index == nil {
					continue // a server that does not say it
				}
			}
			data = append(data, e)
		}
		reply := must.Get(bson.Marshal(bson.D{{Key: replData, Value: f.replData("")}, {Key: oplogData, Value: data}}))(t)
		if meta := must.Get(parseMetadata(reply))(t); meta.NoPrimary != want {
			t.Errorf("primaryIndex %v: %t", index, meta.NoPrimary)
		}
	}
}
