package guard_test

import (
	"context"
	"strings"
	"sync/atomic"
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

// refusing is a target whose members refuse to tail their oplog.
type refusing struct {
	*driver.Set
	with  servererr.Code
	times atomic.Int64
}

// Member implements guard.Target.
func (r *refusing) Member(host string) mongo.Caller {
	return refusingMember{r.Set.Member(host), r}
}

type refusingMember struct {
	mongo.Caller
	of *refusing
}

// Call implements mongo.Caller.
func (m refusingMember) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if coll, _ := cmd.Body.Lookup("find").StringValueOK(); coll == "oplog.rs" {
		m.of.times.Add(1)
		return nil, servererr.New(m.of.with, "refused by a test")
	}
	return m.Caller.Call(ctx, cmd)
}

// TestBeginRefused: a target that is lost while the writes before a term are examined ends the
// Begin, which is called again. One that takes too long for them, as it would each time,
// or refuses them for ever does not keep the link from going on.
func TestBeginRefused(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1, TTLInterval: -1, Moods: mongosim.NoMoods("a test chooses what is refused")})
	target := client.Open(t, driver.Config{URI: set.URI()})
	links := must.Get(checkpoint.New(checkpoint.Config{Target: target, Link: "dr"}))(t)
	at := oplog.NewOpTime(100, 1, 1)
	must.Succeed(t, links.Create(t.Context(), checkpoint.State{
		Writers: 1, Applied: at, AppliedWall: 100_000, FetchFrom: at, Source: checkpoint.Source{SetName: "rs0"},
	}))
	link := must.Get(links.Acquire(t.Context(), 0))(t)
	begin := func(with servererr.Code) (why string, err error) {
		r := &refusing{Set: target, with: with}
		g := guard.New(guard.Config{Mode: guard.Stop, Target: r, DB: "replicator", Link: "dr", Scope: all{}})
		err = g.Begin(t.Context(), link)
		if r.times.Load() == 0 {
			t.Errorf("%s: the oplog was not read", with)
		}
		return g.Status().Why, err
	}
	// The first one stores from which entry on it is watched.
	must.Succeed(t, guard.New(guard.Config{Mode: guard.Stop, Target: target, DB: "replicator", Link: "dr", Scope: all{}}).Begin(t.Context(), link))
	must.Get(target.Call(t.Context(), mongo.Command{DB: "shop", Body: must.Get(bson.Marshal(bson.D{{Key: "create", Value: "later"}}))(t)}))(t)
	for code, ends := range map[servererr.Code]bool{
		servererr.NotPrimaryOrSecondary: true, servererr.InterruptedAtShutdown: true,
		servererr.MaxTimeMSExpired: false, servererr.Unauthorized: false,
	} {
		why, err := begin(code)
		if (err != nil) != ends || !ends && (!strings.HasPrefix(why, "the target's oplog: tail ") || !strings.Contains(why, "refused by a test")) {
			t.Errorf("%s: %v; the status says %q", code, err, why)
		}
	}
}
