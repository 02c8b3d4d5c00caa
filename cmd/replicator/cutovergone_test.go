package main

import (
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// TestResumeWithoutSource: what follows the commit point is done although the old source is gone, unless that is to
// take writes again.
func TestResumeWithoutSource(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{SetName: "dst", Seed: 1, Dialect: "7.0", Moods: mongosim.GentleMoods("the target answers, the source does not")})
	target := client.Open(t, driver.Config{URI: set.URI()})
	records, at := &record.Store{Target: target, DB: "replicator"}, oplog.NewOpTime(100, 1, 1)
	for link, thaw := range map[string]bool{"dr": false, "thaws": true} {
		store := must.Get(checkpoint.New(checkpoint.Config{Target: target, Link: link}))(t)
		must.Succeed(t, store.Create(t.Context(), checkpoint.State{
			Writers: 1, Applied: at, AppliedWall: 1, FetchFrom: at, Filters: &checkpoint.Filters{}, Source: checkpoint.Source{SetName: "gone"},
		}))
		must.Succeed(t, must.Get(store.Acquire(t.Context(), 0))(t).End(t.Context(), checkpoint.Over{At: time.Now().UTC(), By: "me", Source: at}))
		r := &record.Record{Link: link, ID: bson.NewObjectID().Hex(), State: record.Running, Options: record.Options{Freeze: record.Block, ThawSource: thaw}, Steps: []record.Taken{}}
		r.Begin(record.Commit, "me", time.Now())
		must.Succeed(t, records.Put(t.Context(), nil, r))
		t.Run(link, func(t *testing.T) {
			t.Parallel() // the time is spent waiting for the source
			code, stdout, stderr := invoke(t, nil, "cutover", "--resume", "--selection-timeout=5s",
				"--source=mongodb://127.0.0.1:1/?replicaSet=gone", "--target="+set.URI(), "--link="+link)
			r := must.Get(records.Get(t.Context(), link))(t)
			if done := code == cli.ExitOK; done == thaw || done != (r.State == record.Done && r.Has(record.Expire)) || done != strings.Contains(stderr, "the old source cannot be reached, and is not needed") {
				t.Errorf("code %d, and it is %s: %s%s", code, r, stdout, stderr)
			}
		})
	}
}
