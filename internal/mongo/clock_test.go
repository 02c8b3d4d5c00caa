package mongo

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestClock: the newest time counts, whichever of the two it is, and whatever follows.
func TestClock(t *testing.T) {
	t.Parallel()
	reply := func(operation, cluster uint32) bson.Raw {
		return must.Get(bson.Marshal(bson.D{
			{Key: "ok", Value: 1},
			{Key: "operationTime", Value: bson.Timestamp{T: operation, I: 1}},
			{Key: "$clusterTime", Value: bson.D{{Key: "clusterTime", Value: bson.Timestamp{T: cluster, I: 1}}}},
		}))(t)
	}
	var h Clock
	h.Reply(must.Get(bson.Marshal(bson.D{{Key: "ok", Value: 1}}))(t))
	if !h.Time().IsZero() {
		t.Errorf("without any time: %v", h.Time())
	}
	for _, tt := range [][3]uint32{{5, 7, 7}, {6, 6, 7}, {9, 8, 9}, {1, 2, 9}} {
		if h.Reply(reply(tt[0], tt[1])); h.Time().T != tt[2] {
			t.Errorf("after %v: %v", tt, h.Time())
		}
	}
}
