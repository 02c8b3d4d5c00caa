package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync/clone"
	"github.com/oplogrep/replicator/internal/call"
	"github.com/oplogrep/replicator/internal/compare"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mdb"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/scope"
)

// envCopyKills is at how many points TestCopyKilled ends a link.
const envCopyKills = "COPY_KILLS"

// Settings of the copies that are killed. They are small, so that there are many
// points that differ.
const (
	killWorkers = 2
	killFlush   = 4
)

// TestCopyKilled ends a link at the first, the second … command of its copy and of
// the replay behind it, before it is sent or after it was carried out and without
// its answer; then another one goes on, on the same machine or on another. In the
// end the target is equal, and no document was copied twice but for those of the
// flushes that were on their way.
//
// COPY_KILLS is how many points are tried, COPY_SEED the seed.
func TestCopyKilled(t *testing.T) {
	points := number(t, envCopyKills, 100)
	seed := number(t, envCopySeed, 1)
	k := openKilled(t, "5.0", seed)
	tried, where := int64(0), map[string]int{}
	for pass := uint64(0); tried < points; pass++ {
		rng := rand.New(rand.NewPCG(uint64(seed), pass))
		for n, over := 1, false; tried < points && !over; n++ {
			over = k.once(t, rng, n, pass%2 == 1, where)
			if t.Failed() {
				t.Fatalf("%s=%d, pass %d, command %d", envCopySeed, seed, pass, n)
			}
			if !over {
				tried++
			}
		}
	}
	t.Logf("killed at %d points: %v", tried, where)
}

// killed is the source of the copies that are killed.
type killed struct {
	source cluster
	conn   *mdb.Set
	seed   int64
	// docs is how many documents a copy has, moved how often others were written.
	docs, moved int
}

func openKilled(t *testing.T, dialect string, seed int64) *killed {
	k := &killed{source: openEmbedded(t, dialect, clusterOptions{name: "source", members: 1, seed: seed}), seed: seed}
	k.conn = connect(t, k.source.uriFor(admin))
	run := func(cmd bson.D) { command(t, k.conn, "kill", cmd) }
	insert := func(coll string, docs bson.A) {
		k.docs += len(docs)
		run(bson.D{{Key: "insert", Value: coll}, {Key: "documents", Value: docs}})
	}
	run(bson.D{{Key: "create", Value: "capped"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 16}})
	run(bson.D{{Key: "create", Value: "empty"}})
	run(bson.D{{Key: "create", Value: "series"}, {Key: "timeseries", Value: bson.D{{Key: "timeField", Value: "t"}, {Key: "metaField", Value: "m"}}}})
	run(bson.D{{Key: "create", Value: "view"}, {Key: "viewOn", Value: "many"}, {Key: "pipeline", Value: bson.A{}}})
	var many, mixed, capped, series bson.A
	for i := range 24 {
		many = append(many, bson.D{{Key: "_id", Value: i}, {Key: "pad", Value: strings.Repeat("x", 100)}})
	}
	for i := range 6 {
		mixed = append(mixed, bson.D{{Key: "_id", Value: i}}, bson.D{{Key: "_id", Value: fmt.Sprint(i)}})
		capped = append(capped, bson.D{{Key: "_id", Value: -i}})
	}
	for i := range 3 {
		series = append(series, bson.D{{Key: "t", Value: bson.DateTime(1_700_000_000_000)}, {Key: "m", Value: i}})
	}
	insert("many", many)
	insert("mixed", mixed)
	insert("capped", capped)
	insert("series", series) // each of them has a bucket of its own
	run(bson.D{{Key: "createIndexes", Value: "many"}, {Key: "indexes", Value: bson.A{
		bson.D{{Key: "key", Value: bson.D{{Key: "u", Value: 1}}}, {Key: "name", Value: "u"}, {Key: "unique", Value: true}, {Key: "sparse", Value: true}},
		bson.D{{Key: "key", Value: bson.D{{Key: "at", Value: 1}}}, {Key: "name", Value: "at"}, {Key: "expireAfterSeconds", Value: 3600}},
	}}})
	return k
}

// write changes the source, but for how many documents it had before.
func (k *killed) write(ctx context.Context) (bson.Timestamp, error) {
	k.moved++
	from, to := "kill.mixed", "kill.moved"
	if k.moved%2 == 0 {
		from, to = to, from
	}
	var last bson.Timestamp
	for _, cmd := range []bson.D{
		{{Key: "update", Value: "many"}, {Key: "updates", Value: bson.A{
			bson.D{{Key: "q", Value: bson.D{}}, {Key: "u", Value: bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}}, {Key: "multi", Value: true}},
		}}},
		{{Key: "delete", Value: "many"}, {Key: "deletes", Value: bson.A{
			bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 7}}}, {Key: "limit", Value: 1}},
		}}},
		{{Key: "insert", Value: "many"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 7}, {Key: "again", Value: k.moved}}}}},
		{{Key: "renameCollection", Value: from}, {Key: "to", Value: to}},
		{{Key: "drop", Value: "made"}},
		{{Key: "insert", Value: "made"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: k.moved}}}}},
	} {
		db := "kill"
		if cmd[0].Key == "renameCollection" {
			db = "admin"
		}
		body, err := bson.Marshal(cmd)
		if err != nil {
			return last, err
		}
		reply, err := k.conn.Call(ctx, call.Command{DB: db, Body: body})
		if err != nil {
			if cmd[0].Key == "drop" {
				continue // the first time it is not there
			}
			return last, fmt.Errorf("%s: %w", cmd[0].Key, err)
		}
		last.T, last.I, _ = reply.Lookup("operationTime").TimestampOK()
	}
	return last, nil
}

// once copies into a new target, with a kill at the n-th command, and lets another
// link go on. It is true if the link had nothing more to do by then.
func (k *killed) once(t *testing.T, rng *rand.Rand, n int, answered bool, where map[string]int) (over bool) {
	t.Helper()
	target := openEmbedded(t, "5.0", clusterOptions{name: "target", members: 1, seed: k.seed + 1})
	defer target.(embedded).Close()
	everything, err := scope.New(scope.Config{})
	if err != nil {
		t.Fatal(err)
	}
	consistent := make(chan struct{})
	var once sync.Once
	tally := &tally{}
	m := &mirror{
		t: t, source: k.source.uriFor(admin), target: target.uriFor(admin),
		told: func(e event.Event) {
			switch e := e.(type) {
			case pipeline.Consistent:
				once.Do(func() { close(consistent) })
			case clone.Replaced:
				tally.replaced(e)
			}
		},
		cfg: pipeline.Config{
			Link: "killed", Scope: everything, Writers: 3, FlushDocs: killFlush, Await: 100 * time.Millisecond, RetryMin: 5 * time.Millisecond,
			Copy: pipeline.CopyConfig{
				Wanted: true, SpoolDir: t.TempDir(), Workers: killWorkers, RangeBytes: 600, IndexesFirst: rng.IntN(4) == 0,
			},
		},
	}
	m.wrap = func(source, target pipeline.Cluster) (pipeline.Cluster, pipeline.Cluster) {
		p := tally.process()
		p.killAt, p.answered, p.writeAt, p.write = n, answered, 1+rng.IntN(n+20), k.write
		return counted{source, p, false}, counted{target, p, true}
	}
	m.begin()
	first := tally.last()
	m.cfg.Registry = first.registry
	select {
	case <-first.dead:
	case <-consistent:
		over = true
	case <-time.After(time.Minute):
		m.fatal("neither killed at command %d nor consistent", n)
	}
	m.end(errEnd)
	if !over {
		where[first.killedAt]++
	}

	last, err := k.write(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if rng.IntN(2) == 0 {
		m.cfg.Copy.SpoolDir = t.TempDir()
	}
	n = 0
	m.begin()
	m.await(time.Minute, "it is consistent", func(s pipeline.Snapshot) bool {
		return s.Copy != nil && s.Copy.Phase == checkpoint.Copied
	})
	if c := m.p.Snapshot().Copy; c.Number != 1 {
		m.fail("copy %d was needed: %s", c.Number, c.Why)
	}
	m.drain(time.Minute, last)
	k.same(t, target, m.cfg.Link)
	tally.check(t, k.docs)
	if t.Failed() {
		m.show()
		t.Logf("killed at %s", first.killedAt)
	}
	return over
}

// same compares.
func (k *killed) same(t *testing.T, target cluster, link string) {
	t.Helper()
	to := connect(t, target.uriFor(admin))
	defer to.Close()
	held, err := ddl.Held(t.Context(), to, scope.DefaultMetaDB, link)
	if err != nil {
		t.Fatal(err)
	}
	report, err := compare.Compare(t.Context(), compare.Cluster(k.conn), compare.Cluster(to), compare.Options{Held: held})
	if err != nil || !report.Equal() {
		t.Errorf("%v %s", err, &report)
	}
}

// tally is what the processes of one link have copied.
type tally struct {
	processes []*process
}

// process is one run of the link.
type process struct {
	registry *prometheus.Registry
	// killAt is the command that is the last one, 0 for none; answered tells that it
	// is carried out. writeAt is the command at which write is called.
	killAt, writeAt int
	answered        bool
	write           func(ctx context.Context) (bson.Timestamp, error)
	dead            chan struct{}

	mu sync.Mutex // guards the rest
	// commands were sent, with sent documents of the copy.
	commands, sent int
	killedAt       string
	err            error
}
