package resync

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
)

// TestMergeAfterFailover: the target's new primary does not know yet that a majority has the newest position of a part, and reads with
// read concern majority return the one before, at which the link is. The link does not get a collection that is further.
func TestMergeAfterFailover(t *testing.T) {
	t.Parallel()
	to := startTarget(t)
	w := newWorld(t, to, "lag")
	w.ok(w.asks().Resync(t.Context(), "shop.a"))
	p := w.start()
	w.ok(p.attempt(at(100)))
	r := p.awaitRunner()
	was := map[string]bson.Raw{}
	committed := func(cmd mongo.Command) string {
		level, err := cmd.Body.LookupErr("readConcern", "level")
		if name := simcaller.Name(cmd); err != nil || name != "find" || level.StringValue() != "majority" {
			return ""
		}
		return cmd.Body.Lookup("find").StringValue() + cmd.Body.Lookup("filter").String()
	}
	recorded := &target{Caller: simcaller.Caller{Set: to.Set}}
	recorded.lags = func(cmd mongo.Command) bson.Raw {
		reply := must.Get(simcaller.Send(t.Context(), to.Set.Member(0), cmd))(t)
		if key := committed(cmd); key != "" {
			was[key] = reply
		}
		return reply
	}
	part := must.Get(checkpoint.New(checkpoint.Config{Target: recorded, Link: r.part.Link, Of: w.link}))(t)
	_, found, err := part.Load(t.Context())
	if w.ok(err); !found || len(was) == 0 {
		t.Fatalf("found %t, %d reads with majority", found, len(was))
	}
	w.ok(r.advance(p.ctx, at(120)))
	to.lags = func(cmd mongo.Command) bson.Raw { return was[committed(cmd)] }
	r.show(Status{Consistent: true, Steady: true, Applied: at(120)})
	for {
		until := must.Get(p.Merge(p.ctx, t.Context()))(t)
		if until.IsNull() {
			break
		}
		w.ok(p.attempt(until))
	}
	w.ok(p.attempt(at(130)))
	w.isDone(p)
}
