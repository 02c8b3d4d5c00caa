package pipeline_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/scope"
)

// tailed is a target whose oplog is read. For each find that opens a cursor on it, a test supplies
// the error to return, nil for the target's own reply.
type tailed struct {
	pipeline.Cluster
	mongo.Pipeliner
	opens chan chan error

	mu sync.Mutex // guards the rest
	// looks is how often the target was asked whether a collection is capped, entries is what
	// the replies had.
	looks   int
	entries []bson.Raw
}

func (c *tailed) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if it := rawbson.NewIter(cmd.Body); cmd.DB == "shop" && it.Next() && it.Is("listCollections") {
		c.mu.Lock()
		c.looks++
		c.mu.Unlock()
	}
	return c.Cluster.Call(ctx, cmd)
}

func (c *tailed) Member(host string) mongo.Caller { return member{c.Cluster.Member(host), c} }

// open waits for the error to return.
func (c *tailed) open(ctx context.Context) error {
	answer := make(chan error, 1)
	select {
	case c.opens <- answer:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// member is one of its members.
type member struct {
	mongo.Caller
	of *tailed
}

func (m member) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if _, opens := rawbson.Lookup(cmd.Body, "tailable"); opens && cmd.DB == "local" {
		if err := m.of.open(ctx); err != nil {
			return nil, err
		}
	}
	reply, err := m.Caller.Call(ctx, cmd)
	for _, batch := range []string{"firstBatch", "nextBatch"} {
		docs, _ := reply.Lookup("cursor", batch).ArrayOK()
		values, _ := docs.Values()
		m.of.mu.Lock()
		for _, v := range values {
			m.of.entries = append(m.of.entries, slices.Clone(v.Document()))
		}
		m.of.mu.Unlock()
	}
	return reply, err
}

// TestGuardSlow: a target that does not find the next entry within its time limit is not said to be
// watched; after some tries that part of its oplog is a gap, and what follows is examined: of the
// metadata what concerns the link, and whether the target deletes from a collection itself once in a reply.
func TestGuardSlow(t *testing.T) {
	t.Parallel()
	moods := mongosim.NoMoods("each command is counted")
	w := newWorld(t, mongosim.Options{Members: 1, Seed: 1, Moods: moods}, mongosim.Options{Members: 1, Seed: 2, Moods: moods, TTLInterval: -1})
	w.foreign.Store(true)
	to := &tailed{opens: make(chan chan error)}
	w.asTarget = func(c pipeline.Cluster) pipeline.Cluster {
		to.Cluster, to.Pipeliner = c, c.(mongo.Pipeliner)
		return to
	}
	must.Succeed(t, w.start("a", pipeline.Config{Writers: 2, Await: time.Second}, scope.Config{Include: []string{"shop"}}))
	g := &guarded{world: w, l: w.links["a"]}
	open := func() chan error {
		t.Helper()
		select {
		case answer := <-to.opens:
			return answer
		case <-g.l.done:
			t.Fatalf("it has ended: %v", g.l.err)
		case <-time.After(patience):
			t.Fatal("the oplog is not read")
		}
		return nil
	}
	tries, last := 0, open()
	for ; len(g.state().Gaps) == 0; tries++ {
		if tries > 20 {
			t.Fatal("it is tried for ever")
		}
		if s := g.l.p.Snapshot().Guard; s.Watching || s.Why == "" {
			t.Errorf("while it is opened: watching %t: %q", s.Watching, s.Why)
		}
		last <- servererr.New(servererr.MaxTimeMSExpired, "operation exceeded time limit")
		last = open()
	}
	if tries < 6 { // Each of three opens the cursor again once.
		t.Errorf("a gap after %d tries", tries)
	}
	must.Succeed(t, w.untilOf(g.l, "a link that follows", func() bool { return g.l.p.Snapshot().State == monitor.Steady }))
	to.mu.Lock()
	looks := to.looks
	to.mu.Unlock()
	const n = 50
	ids := make([]int, n)
	for i := range ids {
		ids[i] = i
	}
	other := bson.D{{Key: "_id", Value: "other"}}
	change := func(coll string, more ...bson.E) bson.D {
		return append(bson.D{{Key: "update", Value: coll}, {Key: "updates", Value: bson.A{bson.D{
			{Key: "q", Value: other}, {Key: "u", Value: bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}},
		}}}}, more...)
	}
	txn := bson.E{Key: "autocommit", Value: false}
	for _, f := range []foreignWrite{
		{"shop", bson.D{{Key: "insert", Value: "a"}, docs(ids...)}, nil},
		{"shop", bson.D{{Key: "delete", Value: "a"}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{}}, {Key: "limit", Value: 0}}}}}, nil},
		{"replicator", bson.D{{Key: "insert", Value: "links"}, {Key: "documents", Value: bson.A{other}}}, nil},
		{"replicator", change("links"), nil},
		{"replicator", change("links", session(9), bson.E{Key: "txnNumber", Value: int64(1)}, txn, bson.E{Key: "startTransaction", Value: true}), nil},
		{"admin", bson.D{{Key: "commitTransaction", Value: 1}, session(9), {Key: "txnNumber", Value: int64(1)}, txn}, nil},
		{"shop", bson.D{{Key: "insert", Value: "a"}, docs(n)}, nil},
	} {
		must.Succeed(t, w.target.write(t.Context(), f.db, f.cmd))
	}
	last <- nil
	go func() {
		for {
			select {
			case again := <-to.opens:
				again <- nil
			case <-t.Context().Done():
				return
			}
		}
	}()
	must.Succeed(t, w.untilOf(g.l, "the last foreign write", func() bool {
		st := g.state()
		return len(st.Writes) > 0 && describe(&st.Writes[0]) == "insert shop.a 50"
	}))
	if counts := g.state().Counts; counts["insert"] != n+1 || counts["delete"] != n {
		t.Errorf("foreign writes: %v", counts)
	}
	if s := g.l.p.Snapshot().Guard; !s.Watching {
		t.Errorf("it is not watched: %s", s.Why)
	}
	to.verify(t, looks+n/2)
}

// verify checks how often the target was asked whether a collection is capped, and the entries read.
func (c *tailed) verify(t *testing.T, mostLooks int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.looks > mostLooks {
		t.Errorf("the collection was looked at %d times, want %d at most", c.looks, mostLooks)
	}
	inserted := false
	for _, e := range c.entries {
		for _, path := range [][]string{{"o2", "_id"}, {"o", "applyOps", "0", "o2", "_id"}} {
			if id, _ := e.Lookup(path...).StringValueOK(); id == "other" {
				t.Errorf("it reads %s", e)
			}
		}
		id, _ := e.Lookup("o", "_id").StringValueOK()
		inserted = inserted || id == "other"
	}
	if !inserted {
		t.Error("the insert into links is not among what it reads")
	}
}
