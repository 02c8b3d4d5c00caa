package guard_test

import (
	"context"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// unlisted is a target that refuses to list collections.
type unlisted struct{ *driver.Set }

// Call implements mongo.Caller.
func (u unlisted) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if _, err := cmd.Body.LookupErr("listCollections"); err == nil {
		return nil, servererr.New(servererr.Unauthorized, "refused by a test")
	}
	return u.Set.Call(ctx, cmd)
}

// TestNotExaminedAfterForgotten: with --guard=stop, an entry that cannot be examined is told also if foreign writes before it, in the same
// reply, leave nothing to be dealt with, as a temporary collection that is gone: what follows that entry was not looked at.
func TestNotExaminedAfterForgotten(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1, TTLInterval: -1, Moods: mongosim.NoMoods("a test chooses what is refused")})
	target := client.Open(t, driver.Config{URI: set.URI()})
	run := func(command bson.D) {
		must.Get(target.Call(t.Context(), mongo.Command{DB: "shop", Body: must.Get(bson.Marshal(command))(t)}))(t)
	}
	run(bson.D{{Key: "insert", Value: "a"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 1}}}}})
	links := must.Get(checkpoint.New(checkpoint.Config{Target: target, Link: "dr"}))(t)
	at := oplog.NewOpTime(100, 1, 1)
	must.Succeed(t, links.Create(t.Context(), checkpoint.State{
		Writers: 1, Applied: at, AppliedWall: 100_000, FetchFrom: at, Source: checkpoint.Source{SetName: "rs0"},
	}))
	link := must.Get(links.Acquire(t.Context(), 0))(t)
	must.Succeed(t, guard.New(guard.Config{Mode: guard.Stop, Target: target, DB: "replicator", Link: "dr", Scope: all{}}).Begin(t.Context(), link))
	run(bson.D{{Key: "create", Value: "tmpaB3xZ.renameCollection"}})
	run(bson.D{{Key: "drop", Value: "tmpaB3xZ.renameCollection"}})
	run(bson.D{{Key: "delete", Value: "a"}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{}}, {Key: "limit", Value: 0}}}}})
	g := guard.New(guard.Config{Mode: guard.Stop, Target: unlisted{target}, DB: "replicator", Link: "dr", Scope: all{}})
	err := g.Begin(t.Context(), link)
	if why := g.Status().Why; err != nil || !strings.Contains(why, "refused by a test") {
		t.Errorf("%v; the status says %q", err, why)
	}
	g = guard.New(guard.Config{Mode: guard.Stop, Target: target, DB: "replicator", Link: "dr", Scope: all{}})
	if err := g.Begin(t.Context(), link); err == nil || !strings.HasPrefix(err.Error(), "something else writes to the target: delete of shop.a") {
		t.Errorf("later: %v", err)
	}
}
