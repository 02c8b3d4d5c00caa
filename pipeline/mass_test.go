package pipeline_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/mongosim"
)

// envMassSeeds is how many seeds TestMassSurvives plays, envMassFirst the first of them.
const envMassSeeds, envMassFirst = "REPLICATOR_MASS_SEEDS", "REPLICATOR_MASS_FIRST"

// TestMassSurvives: the source has updates of many documents at a time, and many
// collections with few operations, and the target builds indexes and makes cuts, while the
// link is killed, and primaries of both sides step down, are killed, or are cut off with
// writes that are rolled back, all by chance. The target equals the source at the end.
// Equal updates were sent together, collections got other lanes, and collections were kept
// back for an index build, in most of the runs.
func TestMassSurvives(t *testing.T) {
	seeds := 3
	if race.Enabled {
		seeds = 1
	}
	if n, err := strconv.Atoi(os.Getenv(envMassSeeds)); err == nil {
		seeds = n
	}
	first := rand.IntN(1 << 20)
	if n, err := strconv.Atoi(os.Getenv(envMassFirst)); err == nil {
		first = n
	}
	var listed, rerouted, built atomic.Int64
	t.Run("seeds", func(t *testing.T) {
		for seed := first; seed < first+seeds; seed++ {
			t.Run(strconv.Itoa(seed), func(t *testing.T) {
				t.Parallel()
				got, builds := surviveMass(t, seed)
				t.Logf("%v, %d builds", got, builds)
				if builds > 0 {
					built.Add(1)
				}
				if got["replicator_applier_listed_ops_total"] > 100 {
					listed.Add(1)
				}
				if got["replicator_applier_reroutes_total"] > 0 {
					rerouted.Add(1)
				}
			})
		}
	})
	said := fmt.Sprintf("of %d seeds %d sent updates together, %d changed lanes, %d kept a collection back", seeds, listed.Load(), rerouted.Load(), built.Load())
	t.Log(said)
	if least := int64(seeds+1) / 2; min(listed.Load(), rerouted.Load(), built.Load()) < least {
		t.Errorf("%s: want half of them or more", said)
	}
}

// massWorld is a world with the workload of TestMassSurvives.
type massWorld struct {
	*world
	rnd  *rand.Rand
	next int // the next _id to insert into db.wide
	// builds counts the index builds for which a collection was kept back. One of the builds goes on if hung is set.
	builds int
	hung   bool
	// settings are those that a link must keep.
	settings string
}

// thinOnes is the number of collections with few operations; the first ones have a unique
// index.
const thinOnes, uniqueOnes = 40, 4

func surviveMass(t *testing.T, seed int) (counts map[string]float64, builds int) {
	t.Helper()
	// The members may be busy, but only the faults drawn may interrupt the link.
	exact := mongosim.GentleMoods("the faults are those of the seed; TestMoods plays all of them")
	rnd := rand.New(rand.NewPCG(uint64(seed), 3)) //nolint:gosec // a test's choice
	dialect := []string{"5.0", "6.0", "8.0"}[rnd.IntN(3)]
	m := &massWorld{rnd: rnd, world: newWorld(t,
		mongosim.Options{Members: 3, Seed: int64(2*seed + 1), TTLInterval: -1, Moods: exact, Dialect: dialect},
		mongosim.Options{Members: 3, Seed: int64(2*seed + 2), TTLInterval: -1, Moods: exact, Dialect: dialect})}
	if rnd.IntN(2) == 0 {
		m.settings = " serialized"
	}
	registry := prometheus.NewRegistry()
	m.registry = registry
	for i := range thinOnes {
		m.play(fmt.Sprintf("source insert db.thin%d 1..2", i))
		if i < uniqueOnes {
			m.unique(fmt.Sprint("thin", i))
		}
	}
	m.play("source insert db.wide 1..1200\nsource insert db.unique 1..600\nsource insert db.lists 1..400")
	m.next = 1201
	m.unique("unique")
	m.updateMany("lists", 1, 400, bson.D{{Key: "$set", Value: bson.D{{Key: "list", Value: bson.A{1, 2}}}}})
	m.play(m.begin())
	for round := range 5 {
		m.traffic(4)
		if m.build(round); m.rnd.IntN(4) > 0 {
			m.mishap()
		}
		if m.rnd.IntN(2) == 0 {
			m.finish()
		}
		m.mishap()
	}
	m.finish()
	m.traffic(4)
	m.play("source heal\ntarget heal\nsource await synced\ntarget await synced\nawait caught-up")
	m.reroute()
	if said := m.said("equal"); said != "equal" {
		m.fail("seed", strconv.Itoa(seed), fmt.Errorf("%.2000s", said))
	}
	m.play("drain")
	return counters(t, registry), m.builds
}

// build builds an index that lasts until finish, unless another one does.
func (m *massWorld) build(round int) {
	m.t.Helper()
	if m.hung {
		return
	}
	m.play("await caught-up")
	m.hung = true
	m.hang("alwaysOn")
	coll := []string{"lists", "wide", "thin7"}[m.rnd.IntN(3)]
	m.must(bson.D{{Key: "createIndexes", Value: coll}, {Key: "indexes", Value: bson.A{bson.D{
		{Key: "key", Value: bson.D{{Key: "n", Value: 1}, {Key: fmt.Sprint("f", round), Value: 1}}}, {Key: "name", Value: fmt.Sprint("n", round)},
	}}}})
	m.traffic(1)
	if err := m.untilOf(m.links["a"], "a collection to be kept back", func() bool { return len(m.links["a"].p.Snapshot().Applier.KeptBack) > 0 }); err != nil {
		m.fail("seed", coll, err)
	}
	m.builds++
}

// finish ends the index build.
func (m *massWorld) finish() {
	m.t.Helper()
	if m.hung {
		m.hung = false
		m.hang("off")
	}
}

// reroute writes until collections have changed lanes: on a busy machine each comparison
// so far may have been skipped for a build or a cut.
func (m *massWorld) reroute() {
	m.t.Helper()
	for range 20 {
		if counters(m.t, m.registry)["replicator_applier_reroutes_total"] > 0 {
			return
		}
		m.traffic(4)
		m.play("await caught-up")
	}
}

// begin returns the line that starts the link.
func (m *massWorld) begin() string {
	return fmt.Sprintf("start copy writers=4 wait=20s cuts=50ms shares=%d checkpoint=%dms flush=%d",
		[]int{300, 600, 1200}[m.rnd.IntN(3)], []int{20, 100, 500}[m.rnd.IntN(3)], []int{40, 200, 1000}[m.rnd.IntN(3)]) + m.settings
}

// unique gives every document of a collection another v, and builds a unique index on it.
func (m *massWorld) unique(coll string) {
	m.t.Helper()
	m.must(bson.D{{Key: "update", Value: coll}, {Key: "updates", Value: bson.A{bson.D{
		{Key: "q", Value: bson.D{}},
		{Key: "u", Value: bson.A{bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: "$_id"}}}}}},
		{Key: "multi", Value: true},
	}}}})
	m.must(uniqueOn(coll))
}

func (m *massWorld) must(cmd bson.D) {
	m.t.Helper()
	if err := m.source.write(m.t.Context(), "db", cmd); err != nil {
		m.fail("seed", fmt.Sprint(cmd), err)
	}
}

// said carries out an act and returns what it says.
func (m *massWorld) said(line string) string {
	m.t.Helper()
	says, err := m.act(line)
	if err != nil {
		m.fail("seed", line, err)
	}
	return says
}

// traffic writes: rounds of an update of many documents, and of few operations on each of
// many collections.
func (m *massWorld) traffic(rounds int) {
	m.t.Helper()
	for range rounds {
		m.many()
		for i := range thinOnes {
			m.must(bson.D{{Key: "update", Value: fmt.Sprint("thin", i)}, {Key: "updates", Value: bson.A{m.one(1), m.one(2)}}})
		}
	}
}

// one is an update of a document that others do not equal.
func (m *massWorld) one(id int) bson.D {
	return bson.D{
		{Key: "q", Value: bson.D{{Key: "_id", Value: id}}},
		{Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: m.rnd.IntN(1 << 30)}}}}},
	}
}

// many changes many documents in one statement.
func (m *massWorld) many() {
	m.t.Helper()
	from, v := 1+m.rnd.IntN(800), m.rnd.IntN(1<<30)
	set := bson.D{{Key: "$set", Value: bson.D{{Key: "s", Value: v}}}}
	inc := bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}
	switch m.rnd.IntN(10) {
	case 0, 1, 2:
		m.updateMany("wide", from, from+399, set)
	case 3: // the results differ, and are equal for those that have had as many
		m.updateMany("wide", from, from+399, inc)
	case 4: // a field in front of one that is there, and one that goes
		m.updateMany("wide", from, from+399, bson.D{{Key: "$set", Value: bson.D{{Key: "a.b", Value: v}}}, {Key: "$unset", Value: bson.D{{Key: "s", Value: 1}}}})
	case 5:
		m.updateMany("lists", 1, 400, bson.D{{Key: "$push", Value: bson.D{{Key: "list", Value: v}}}})
	case 6:
		m.updateMany("lists", 1, 400, bson.D{{Key: "$set", Value: bson.D{{Key: "list.1", Value: v}}}})
	case 7: // every key moves, the free ones first
		m.updateMany("unique", 1, 600, bson.D{{Key: "$inc", Value: bson.D{{Key: "v", Value: 1000}}}})
		m.updateMany("unique", from/2, from/2+399, set)
	case 8: // some are deleted, and others made, between two updates of the same range
		m.updateMany("wide", from, from+399, set)
		m.play(fmt.Sprintf("source delete db.wide %d..%d\nsource insert db.wide %d..%d", from, from+20, m.next, m.next+40))
		m.next += 41
		m.updateMany("wide", from, from+399, inc)
		m.updateMany("wide", m.next-41, m.next-1, set)
	case 9: // one that was thin is not any more
		coll := fmt.Sprint("thin", m.rnd.IntN(thinOnes-uniqueOnes)+uniqueOnes)
		m.play(fmt.Sprintf("source insert db.%s 3..300", coll))
		m.updateMany(coll, 1, 300, set)
		m.updateMany(coll, 1, 300, inc)
	}
}

func (m *massWorld) updateMany(coll string, from, to int, u bson.D) {
	m.t.Helper()
	m.must(bson.D{{Key: "update", Value: coll}, {Key: "updates", Value: bson.A{bson.D{
		{Key: "q", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: from}, {Key: "$lte", Value: to}}}}}, {Key: "u", Value: u}, {Key: "multi", Value: true},
	}}}})
}

// mishap is what happens next, by chance, with writes in the middle of it.
func (m *massWorld) mishap() {
	m.t.Helper()
	side := []string{"source", "target", "target"}[m.rnd.IntN(3)]
	var before, after string
	switch m.rnd.IntN(6) {
	case 0, 1: // the process is killed
		before, after = "stop", m.begin()
	case 2: // it waits for a build
		m.finish()
		before, after = "drain", m.begin()
	case 3:
		before = side + " stepdown"
	case 4:
		before, after = side+" await primary\n"+side+" kill primary\n"+side+" await primary", side+" start down\n"+side+" await synced"
	case 5:
		before = side + " await primary\n" + side + " isolate primary"
		if side == "source" {
			before += fmt.Sprintf("\nsource update db.wide %d..%d on=isolated w=1", 1, 50)
		}
		before += "\n" + side + " await another isolated"
		after = side + " heal\n" + side + " await synced"
	}
	m.t.Logf("%s", strings.ReplaceAll(before+" … "+after, "\n", ", "))
	m.play(before)
	m.traffic(2)
	if after != "" {
		m.play(after)
	}
}

// counters returns the counters of the applier.
func counters(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, metric := range f.GetMetric() {
			if c := metric.GetCounter(); c != nil && strings.HasPrefix(f.GetName(), "replicator_applier_") {
				got[f.GetName()] += c.GetValue()
			}
		}
	}
	return got
}
