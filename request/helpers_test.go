package request

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newTarget starts a set of one member and connects to it.
func newTarget(t *testing.T) mongo.Caller {
	t.Helper()
	sim := mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1, Moods: mongosim.GentleMoods("nothing here begins another attempt")})
	return client.Open(t, driver.Config{URI: sim.URI()})
}

// links returns the store of the link of that name.
func links(t *testing.T, target mongo.Caller, name string) *checkpoint.Store {
	t.Helper()
	return must.Get(checkpoint.New(checkpoint.Config{Target: target, Link: name}))(t)
}

func at(seconds uint32) oplog.OpTime { return oplog.NewOpTime(seconds, 1, 1) }

// create creates the link a at optime 100 and acquires its lease.
func create(t *testing.T, target mongo.Caller) (*checkpoint.Store, *checkpoint.Link) {
	t.Helper()
	s := links(t, target, "a")
	must.Succeed(t, s.Create(t.Context(), checkpoint.State{
		Writers: 1, Applied: at(100), AppliedWall: 100_000, FetchFrom: at(100), Source: checkpoint.Source{SetName: "rs0"},
	}))
	return s, must.Get(s.Acquire(t.Context(), 0))(t)
}

// set changes fields of a document of requests.
func set(ctx context.Context, t *testing.T, target mongo.Caller, id string, fields func(dst []byte) []byte) {
	t.Helper()
	must.Get(target.Call(ctx, metadata.Majority(metadata.Update("replicator", metadata.Requests, metadata.Statement{
		Filter: metadata.ByID(id),
		Change: func(dst []byte) []byte { return metadata.AppendDoc(dst, "$set", fields) },
	}))))(t)
}
