package traffic_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/traffic"
	"github.com/oplogrep/replicator/mongosim"
)

// TestRun: every kind of work is done, a failover included, nothing comes up that
// is not expected, and the cluster is at rest afterwards.
func TestRun(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Members: 3})
	cluster := client.Open(t, driver.Config{URI: set.URI(), AppName: mongosim.Stage})
	w, err := traffic.New(traffic.Config{Cluster: cluster, Seed: 1, ChainBytes: 17 << 20, KeeperPause: 10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	// idMoves reports whether the log has a delta with _id among the inserted fields.
	idMoves := func() bool {
		body, err := bson.Marshal(bson.D{
			{Key: "find", Value: "oplog.rs"},
			{Key: "filter", Value: bson.D{{Key: "o.diff.i._id", Value: bson.D{{Key: "$exists", Value: true}}}}},
			{Key: "limit", Value: 1},
		})
		if err != nil {
			t.Error(err)
		}
		reply, err := cluster.Call(t.Context(), mongo.Command{DB: "local", Body: body})
		return err == nil && reply.Lookup("cursor", "firstBatch", "0").Type != 0
	}
	missing := func() bool {
		s := w.Stats()
		return s.Writes == 0 || s.Transactions == 0 || s.Large == 0 || s.Aborted == 0 || s.Commands == 0 || s.Refused == 0 || s.Lost == 0 || !idMoves()
	}
	soft, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	// Each kind comes sooner or later; how soon depends on the machine, and whether
	// an answer is lost in a step-down on chance.
	var watch sync.WaitGroup
	watch.Go(func() {
		look := time.NewTicker(20 * time.Millisecond)
		defer look.Stop()
		for n := 1; soft.Err() == nil && missing(); n++ {
			<-look.C
			if n%75 == 0 {
				_ = set.StepDown(soft)
			}
		}
		stop()
	})
	err = w.Run(t.Context(), soft)
	stop()
	watch.Wait()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", w.Stats())
	if missing() {
		t.Errorf("something was not done: %+v", w.Stats())
	}
}
