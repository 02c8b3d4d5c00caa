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

var exists = bson.D{{Key: "$exists", Value: true}}

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
	// logged are fields of entries that must come: a delta with _id among the inserted fields, one that cuts an array, a retryable write,
	// collections that come into being with a transaction, and those that are renamed and converted while they are written to.
	logged := map[string]bson.D{
		"_id moves":   {{Key: "o.diff.i._id", Value: exists}},
		"cut":         {{Key: "o.diff.slist.l", Value: exists}},
		"retryable":   {{Key: "op", Value: "u"}, {Key: "stmtId", Value: exists}, {Key: "lsid", Value: exists}},
		"create":      {{Key: "o.applyOps.o.create", Value: "fresh"}},
		"rename":      {{Key: "o.renameCollection", Value: bson.D{{Key: "$in", Value: bson.A{"demo.users", "demo.orders"}}}}},
		"conversion":  {{Key: "o.create", Value: bson.Regex{Pattern: "convertToCapped"}}},
		"other types": {{Key: "ns", Value: "demo.orders"}, {Key: "op", Value: "i"}, {Key: "o._id", Value: bson.D{{Key: "$type", Value: "decimal"}}}},
	}
	unlogged := func() bool {
		for what, filter := range logged {
			body, err := bson.Marshal(bson.D{{Key: "find", Value: "oplog.rs"}, {Key: "filter", Value: filter}, {Key: "limit", Value: 1}})
			if err != nil {
				t.Error(err)
			}
			if reply, err := cluster.Call(t.Context(), mongo.Command{DB: "local", Body: body}); err == nil && reply.Lookup("cursor", "firstBatch", "0").Type != 0 {
				delete(logged, what)
			}
		}
		return len(logged) > 0
	}
	missing := func() bool {
		s := w.Stats()
		return s.Writes == 0 || s.Transactions == 0 || s.Large == 0 || s.Aborted == 0 || s.Commands == 0 || s.Refused == 0 || s.Lost == 0 || unlogged()
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
		t.Errorf("something was not done: %+v; not logged: %v", w.Stats(), logged)
	}
}
