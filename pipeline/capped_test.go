package pipeline_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/scope"
)

var cappedSeeds = flag.Int("capped-seeds", 3, "how many courses TestCappedRandom takes of each kind, and from which seed on: -capped-from")

var cappedFrom = flag.Int("capped-from", 0, "see -capped-seeds")

// rings is a workload on capped collections of one database that reuses _ids.
type rings struct {
	w       *world
	db      string
	rng     *rand.Rand
	max     []int
	next    []int
	deletes bool
	resizes bool
}

func newRings(t *testing.T, w *world, seed int, version string) *rings {
	t.Helper()
	r := &rings{
		w: w, db: fmt.Sprintf("r%d", seed), rng: rand.New(rand.NewPCG(uint64(seed), 7)),
		deletes: version >= "6.0", resizes: version >= "6.0",
	}
	for i := range 1 + r.rng.IntN(3) {
		r.max = append(r.max, 1+r.rng.IntN(40))
		create := bson.D{{Key: "create", Value: ring(i)}, {Key: "capped", Value: true}, {Key: "size", Value: 4096}}
		if r.rng.IntN(3) > 0 {
			create = append(create[:2:2], bson.E{Key: "size", Value: 1 << 20}, bson.E{Key: "max", Value: r.max[i]})
		}
		r.run(t, create)
		r.next = append(r.next, 0)
	}
	return r
}

func ring(i int) string { return fmt.Sprintf("c%d", i) }

func (r *rings) run(t *testing.T, cmd bson.D) {
	t.Helper()
	if err := r.w.source.write(t.Context(), r.db, cmd); err != nil {
		t.Fatalf("%v: %v", cmd, err)
	}
}

// write writes n times. It does not insert existing documents.
func (r *rings) write(t *testing.T, n int) {
	t.Helper()
	for range n {
		i := r.rng.IntN(len(r.max))
		ids := r.max[i] + 1 + r.rng.IntN(4)
		id := bson.D{{Key: "_id", Value: r.rng.IntN(ids)}}
		switch what := r.rng.IntN(40); {
		case what < 3 && r.deletes:
			r.run(t, bson.D{{Key: "delete", Value: ring(i)}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: id}, {Key: "limit", Value: 1}}}}})
		case what < 7:
			set := bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: r.rng.IntN(1000)}}}}
			r.run(t, bson.D{{Key: "update", Value: ring(i)}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: id}, {Key: "u", Value: set}}}}})
		case what == 7 && r.resizes:
			r.max[i] = 1 + r.rng.IntN(40)
			r.run(t, bson.D{{Key: "collMod", Value: ring(i)}, {Key: "cappedMax", Value: r.max[i]}})
			r.insert(t, i, ids, 1) // its size is at the limit only then
		default:
			r.insert(t, i, ids, 1+r.rng.IntN(5))
		}
	}
}

// insert inserts n documents one after the other, while there are unused _ids.
func (r *rings) insert(t *testing.T, i, ids, n int) {
	t.Helper()
	for range n {
		r.next[i] = (r.next[i] + 1) % ids
		r.run(t, bson.D{{Key: "insert", Value: ring(i)}, {Key: "documents", Value: bson.A{bson.D{
			{Key: "_id", Value: r.next[i]}, {Key: "v", Value: r.rng.IntN(1000)}, {Key: "pad", Value: strings.Repeat("x", 200*r.rng.IntN(3))},
		}}}})
	}
}

// TestCappedRandom: capped collections with reused _ids are copied while they are
// written to, by a link that is killed and resumed any number of times, and then
// followed in the same way. Documents and their order equal those of the source.
func TestCappedRandom(t *testing.T) {
	t.Parallel()
	for _, kind := range []struct{ source, fcv, target string }{
		{"5.0", "4.4", "5.0"}, {"5.0", "", "5.0"}, {"6.0", "", "7.0"}, {"8.0", "", "8.0"},
	} {
		t.Run(kind.source+kind.fcv, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, mongosim.Options{Members: 1, Seed: 1, Dialect: kind.source, FCV: kind.fcv, TTLInterval: -1, JournalDelay: time.Millisecond},
				mongosim.Options{Members: 1, Seed: 2, Dialect: kind.target, TTLInterval: -1, JournalDelay: time.Millisecond})
			seeds := *cappedSeeds
			if race.Enabled {
				seeds = (seeds + 3) / 4
			}
			for seed := *cappedFrom; seed < *cappedFrom+seeds; seed++ {
				w.cappedCourse(t, seed, kind.source)
				if t.Failed() {
					t.Fatalf("seed %d: -capped-from=%d -capped-seeds=1", seed, seed)
				}
			}
		})
	}
}

func (w *world) cappedCourse(t *testing.T, seed int, version string) {
	t.Helper()
	r := newRings(t, w, seed, version)
	r.write(t, 10+r.rng.IntN(80))
	spool := t.TempDir()
	start := func() *link {
		cfg := pipeline.Config{Link: r.db, Writers: 1 + r.rng.IntN(3), RetryMax: time.Second, Await: time.Second, FlushDocs: 1 + r.rng.IntN(8)}
		cfg.CoalesceWindow = cfg.FlushDocs
		cfg.Copy.Wanted, cfg.Copy.SpoolDir, cfg.Copy.Workers = true, spool, 1
		if r.rng.IntN(2) == 0 {
			cfg.Copy.OpsPerSecond = int64(100 + r.rng.IntN(2000))
		}
		must.Succeed(t, w.start(r.db, cfg, scope.Config{Include: []string{r.db}}))
		return w.links[r.db]
	}
	kill := func(l *link) {
		if err := w.end("stop", l); err != nil {
			w.fail(r.db, "stop", err)
		}
		if slices.Contains([]string{"exit 10: stopped"}, verdict(l.err)) {
			return
		}
		w.fail(r.db, "killed", l.err)
	}
	for range r.rng.IntN(5) {
		l := start()
		r.write(t, r.rng.IntN(30))
		time.Sleep(time.Duration(r.rng.IntN(40)) * time.Millisecond) // a process is killed at a random time
		kill(l)
		r.write(t, r.rng.IntN(60))
	}
	l := start()
	r.write(t, r.rng.IntN(60))
	for range 1 + r.rng.IntN(2) {
		if err := w.caughtUp(l); err != nil {
			w.fail(r.db, "catch up", err)
		}
		says, err := w.equal(l)
		if err != nil {
			w.fail(r.db, "compare", err)
		}
		if says != "equal" {
			t.Errorf("the sets differ: %s", says)
		}
		r.write(t, r.rng.IntN(40))
		if r.rng.IntN(2) == 0 {
			kill(l)
			l = start()
		}
	}
	kill(l)
	for _, c := range []*cluster{w.source, w.target} {
		must.Succeed(t, c.write(t.Context(), r.db, bson.D{{Key: "dropDatabase", Value: 1}}))
	}
}
