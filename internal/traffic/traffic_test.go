package traffic_test

import (
	"context"
	"testing"
	"time"

	"github.com/oplogrep/replicator/internal/mdb"
	"github.com/oplogrep/replicator/internal/mongosim"
	"github.com/oplogrep/replicator/internal/traffic"
)

// TestRun: every kind of work is done, a failover included, nothing comes up that
// is not expected, and the cluster is at rest afterwards.
func TestRun(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Members: 3})
	o, err := mdb.Parse(mdb.Config{URI: set.URI()})
	if err != nil {
		t.Fatal(err)
	}
	cluster, err := mdb.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	w, err := traffic.New(traffic.Config{Cluster: cluster, Seed: 1, ChainBytes: 17 << 20, KeeperPause: 10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	soft, stop := context.WithTimeout(t.Context(), 3*time.Second)
	defer stop()
	defer context.AfterFunc(soft, func() {})()
	half := time.AfterFunc(1500*time.Millisecond, func() { _ = set.StepDown(t.Context()) })
	defer half.Stop()
	if err := w.Run(t.Context(), soft); err != nil {
		t.Fatal(err)
	}
	s := w.Stats()
	t.Logf("%+v", s)
	if s.Writes == 0 || s.Transactions == 0 || s.Large == 0 || s.Aborted == 0 || s.Commands == 0 || s.Refused == 0 || s.Lost == 0 {
		t.Errorf("something was not done: %+v", s)
	}
}
