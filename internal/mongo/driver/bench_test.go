package driver_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/driver/drivertest"
	"github.com/oplogrep/replicator/mongosim"
)

// The server is in this process, so all figures include its allocations. Only the
// difference between the two is meaningful.

// BenchmarkCallSequence sends a flush of a lane.
func BenchmarkCallSequence(b *testing.B) {
	set := start(b, mongosim.Options{Members: 1})
	s := open(b, driver.Config{URI: set.URI()})
	docs := make([]bson.Raw, 2000)
	size := 0
	for i := range docs {
		docs[i] = drivertest.Doc(b, bson.D{
			{Key: "q", Value: bson.D{{Key: "_id", Value: i}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "a", Value: make([]byte, 150)}}}}},
		})
		size += len(docs[i])
	}
	cmd := mongo.Command{DB: "app", Body: drivertest.Doc(b, bson.D{{Key: "update", Value: "none"}}), Sequence: "updates", Docs: docs}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Call(b.Context(), cmd); err != nil {
			b.Fatal(err)
		}
	}
}
