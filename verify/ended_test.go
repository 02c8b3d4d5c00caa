package verify

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// reader is the target of a user that may not write.
type reader struct {
	mongo.Caller
	cuts chan struct{} // receives once the cuts are read
}

func (r reader) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	switch name := simcaller.Name(cmd); name {
	case "insert", "update", "findAndModify":
		return nil, servererr.New(servererr.Unauthorized, "not authorized on replicator to execute command %s", name)
	case "find":
		if cmd.Body.Lookup("find").StringValue() == "cuts" {
			select {
			case r.cuts <- struct{}{}:
			default:
			}
		}
	}
	return r.Caller.Call(ctx, cmd)
}

// TestNextOfEnded: who may not ask for a cut, and waits for the next one that the link makes, learns at once that it has ended.
func TestNextOfEnded(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	to := client.Open(t, driver.Config{URI: mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1}).URI(), AppName: mongosim.Stage})
	store := must.Get(checkpoint.New(checkpoint.Config{Target: to, Link: "a"}))(t)
	at := oplog.NewOpTime(100, 1, 1)
	must.Succeed(t, store.Create(ctx, checkpoint.State{Writers: 1, Applied: at, AppliedWall: 100_000, FetchFrom: at, Source: checkpoint.Source{SetName: "rs0"}}))
	link := must.Get(store.Acquire(ctx, 0))(t)
	user := reader{to, make(chan struct{}, 1)}
	cuts := LinkCuts{Links: must.Get(checkpoint.New(checkpoint.Config{Target: user, Link: "a"}))(t), By: "me", Wait: 20 * time.Second}
	ended := make(chan error)
	go func() {
		_, err := cuts.Next(ctx)
		ended <- err
	}()
	<-user.cuts
	must.Succeed(t, link.End(ctx, checkpoint.Over{At: time.Unix(5, 0).UTC(), By: "ann", Source: at}))
	if over, is := errors.AsType[*checkpoint.OverError](<-ended); !is || over.Over.By != "ann" {
		t.Errorf("it is not known that the link has ended: %v", over)
	}
}
