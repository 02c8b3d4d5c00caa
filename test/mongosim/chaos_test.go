package mongosim_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// TestChaos kills, cuts, freezes and slows three members at random under load.
// Afterwards every write that was acknowledged with w: majority is there, no
// member has ever gone back in terms, and the logs agree up to the commit point.
// CHAOS_SEED and CHAOS_SECONDS replay and lengthen a run; the default is 60 s, and
// 8 s under the race detector.
func TestChaos(t *testing.T) {
	seconds, seed := 60, uint64(1)
	switch {
	case testing.Short():
		seconds = 5
	case race.Enabled:
		seconds = 8
	}
	for name, set := range map[string]func(n int){
		"CHAOS_SECONDS": func(n int) { seconds = n }, "CHAOS_SEED": func(n int) { seed = uint64(n) },
	} {
		if v := os.Getenv(name); v != "" {
			n, err := strconv.Atoi(v)
			if err != nil {
				t.Fatalf("%s=%s is no number", name, v)
			}
			set(n)
		}
	}
	t.Logf("seed %d, %d seconds", seed, seconds)
	set := mongosim.StartTest(t, mongosim.Options{
		Members: 3, Seed: int64(seed), JournalDelay: 5 * time.Millisecond,
		HeartbeatInterval: 50 * time.Millisecond, ElectionTimeout: 500 * time.Millisecond,
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(seconds)*time.Second)
	defer cancel()
	l := &load{set: set, terms: make([]int64, 3)}
	client := connect(t, set.URI(), options.Client().SetWriteConcern(writeconcern.Majority()).
		SetServerSelectionTimeout(2*time.Second).SetTimeout(3*time.Second))
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() { l.write(ctx, client, w) })
	}
	wg.Go(func() { l.watch(ctx, t) })
	l.hurt(ctx, t, rand.New(rand.NewPCG(seed, 0)))
	wg.Wait()

	l.heal(t)
	l.verify(t, client)
	t.Logf("%d writes acknowledged, %d refused; %d actions; term %d", len(l.acknowledged), l.refused, l.actions, slices.Max(l.terms))
}

// load is the work and its known outcomes.
type load struct {
	set     *mongosim.Set
	actions int

	// mu guards what follows.
	mu           sync.Mutex
	acknowledged []string
	refused      int
	terms        []int64
}

// write inserts documents, and updates a counter in a transaction now and then,
// until ctx is done.
func (l *load) write(ctx context.Context, client *mongo.Client, worker int) {
	coll := client.Database("chaos").Collection("c")
	for i := 0; ctx.Err() == nil; i++ {
		id := fmt.Sprintf("%d-%d", worker, i)
		_, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: id}, {Key: "pad", Value: make([]byte, 100)}})
		l.mu.Lock()
		if err == nil {
			l.acknowledged = append(l.acknowledged, id)
		} else {
			l.refused++
		}
		l.mu.Unlock()
	}
}

// watch sees to it that no member's term goes back while it runs or is restarted.
func (l *load) watch(ctx context.Context, t *testing.T) {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for i, m := range l.set.Members() {
			v, ok := m.Status()
			if !ok {
				continue
			}
			if v.Term < l.terms[i] {
				t.Errorf("member %d went back from term %d to %d", i, l.terms[i], v.Term)
			}
			l.terms[i] = v.Term
		}
	}
}

// hurt does something bad every now and then; at most one member is down or
// frozen at a time.
func (l *load) hurt(ctx context.Context, t *testing.T, rng *rand.Rand) {
	down := -1
	for ctx.Err() == nil {
		n := rng.IntN(3)
		texts := []string{
			fmt.Sprintf("cut %d %d", n, (n+1)%3), "heal", "stepdown",
			fmt.Sprintf("link %d %d latency %dms jitter=3ms", n, (n+1)%3, 1+rng.IntN(20)),
			fmt.Sprintf("link %d client reset after=%d", n, 100+rng.IntN(5000)),
			fmt.Sprintf("link %d %d drop", n, (n+1)%3),
			fmt.Sprintf("freeze %d", n), fmt.Sprintf("thaw %d", n),
			fmt.Sprintf("skew %d %ds", n, rng.IntN(5)-2),
			fmt.Sprintf("cut %d client", n), fmt.Sprintf("heal %d client", n),
		}
		if down < 0 {
			texts = append(texts, fmt.Sprintf("kill %d", n), fmt.Sprintf("stop %d", n), "kill primary")
		} else {
			texts = append(texts, fmt.Sprintf("start %d", down), fmt.Sprintf("start %d", down), fmt.Sprintf("start %d", down))
		}
		text := texts[rng.IntN(len(texts))]
		a, err := mongosim.ParseAction(text)
		if err != nil {
			t.Fatal(err)
		}
		if text == "kill primary" {
			if p := l.set.Primary(); p != nil {
				n = slices.Index(l.set.Members(), p)
				a.A = strconv.Itoa(n)
			}
		}
		short, cancel := context.WithTimeout(ctx, 3*time.Second)
		err = l.set.Do(short, a)
		cancel()
		l.actions++
		switch {
		case err != nil: // no primary to step down or to kill, which is fine
		case a.Verb == "kill" || a.Verb == "stop":
			down = n
		case a.Verb == "start":
			down = -1
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(50+rng.IntN(600)) * time.Millisecond):
		}
		if rng.IntN(3) == 0 {
			l.set.HealAll()
		}
	}
}

// heal makes everything well and waits until the members agree.
func (l *load) heal(t *testing.T) {
	l.set.HealAll()
	for i, m := range l.set.Members() {
		m.SkewClock(0)
		if _, running := m.Status(); running {
			continue
		}
		if err := m.Start(); err != nil {
			t.Fatalf("start member %d again: %v", i, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if _, err := l.set.AwaitPrimary(ctx); err != nil {
		t.Fatal(err)
	}
	must.Succeed(t, l.set.AwaitReady(ctx))
	must.Succeed(t, l.set.AwaitSynced(ctx))
}

func (l *load) verify(t *testing.T, client *mongo.Client) {
	cur := must.Get(client.Database("chaos").Collection("c").Find(t.Context(), bson.D{}, options.Find().SetProjection(bson.D{{Key: "_id", Value: 1}})))(t)
	there := map[string]bool{}
	for cur.Next(t.Context()) {
		there[cur.Current.Lookup("_id").StringValue()] = true
	}
	must.Succeed(t, cur.Err())
	lost := 0
	for _, id := range l.acknowledged {
		if !there[id] {
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("%d of %d acknowledged writes are lost", lost, len(l.acknowledged))
	}
	if len(l.acknowledged) == 0 {
		t.Error("nothing was acknowledged")
	}

	var logs [3][]oplog.Entry
	for i, m := range l.set.Members() {
		v, _ := m.Status()
		for _, raw := range m.Oplog(bson.Timestamp{}) {
			e := must.Get(oplog.ParseEntry(raw))(t)
			if !e.OpTime.After(v.CommitPoint) {
				logs[i] = append(logs[i], e)
			}
		}
	}
	for i := 1; i < 3; i++ {
		if at, ok := firstDifference(logs[0], logs[i]); !ok {
			t.Errorf("the logs of members 0 and %d differ at %s", i, at)
		}
	}
}

// firstDifference compares the part that two logs have in common.
func firstDifference(a, b []oplog.Entry) (oplog.OpTime, bool) {
	for i := range min(len(a), len(b)) {
		if string(a[i].Raw) != string(b[i].Raw) {
			return a[i].OpTime, false
		}
	}
	return oplog.OpTime{}, true
}
