package pipeline_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/mongosim"
)

// envBuildSeeds is how many seeds TestBuildsSurvive plays, envBuildFirst the first of them.
const envBuildSeeds, envBuildFirst = "REPLICATOR_BUILD_SEEDS", "REPLICATOR_BUILD_FIRST"

// keptOnes are the collections whose indexes are built.
const keptOnes = 3

// TestBuildsSurvive: while the target builds indexes of collections that are kept back, the
// link is killed, and primaries of both sides step down, are killed, or are cut off with
// writes that are rolled back, all by chance. The target equals the source at the end.
func TestBuildsSurvive(t *testing.T) {
	seeds := 3
	if race.Enabled {
		seeds = 1
	}
	if n, err := strconv.Atoi(os.Getenv(envBuildSeeds)); err == nil {
		seeds = n
	}
	first := rand.IntN(1 << 20)
	if n, err := strconv.Atoi(os.Getenv(envBuildFirst)); err == nil {
		first = n
	}
	for seed := first; seed < first+seeds; seed++ {
		t.Run(strconv.Itoa(seed), func(t *testing.T) {
			t.Parallel()
			surviveBuilds(t, seed)
		})
	}
}

// buildsWorld is a world with the workload of TestBuildsSurvive.
type buildsWorld struct {
	*world
	rnd  *rand.Rand
	next int // the next _id to insert
	// begin is the line that starts the link.
	begin string
}

func surviveBuilds(t *testing.T, seed int) {
	t.Helper()
	exact := mongosim.GentleMoods("the faults are those of the seed; TestMoods plays all of them")
	rnd := rand.New(rand.NewPCG(uint64(seed), 4)) //nolint:gosec // a test's choice
	dialect := []string{"5.0", "6.0", "8.0"}[rnd.IntN(3)]
	b := &buildsWorld{rnd: rnd, next: 1000, world: newWorld(t,
		mongosim.Options{Members: 3, Seed: int64(2*seed + 1), TTLInterval: -1, Moods: exact, Dialect: dialect},
		mongosim.Options{Members: 3, Seed: int64(2*seed + 2), TTLInterval: -1, Moods: exact, Dialect: dialect})}
	b.begin = fmt.Sprintf("start copy writers=4 wait=20s checkpoint=%dms flush=%d", []int{20, 100, 500}[rnd.IntN(3)], []int{20, 200}[rnd.IntN(2)])
	for n := range keptOnes {
		b.play(fmt.Sprintf("source insert db.kept%d 1..300", n))
	}
	b.play("source insert db.other 1..300\n" + b.begin + "\nawait caught-up")
	for round := range 4 {
		b.hang("alwaysOn")
		b.play(fmt.Sprintf(`source run db {"createIndexes": "kept%d", "indexes": [{"key": {"x": 1, "f%d": 1}, "name": "n%d"}]}`, round%keptOnes, round, round))
		b.traffic(2)
		if err := b.untilOf(b.links["a"], "a collection to be kept back", func() bool { return len(b.links["a"].p.Snapshot().Applier.KeptBack) > 0 }); err != nil {
			b.fail("seed", strconv.Itoa(seed), err)
		}
		b.mishap()
		b.traffic(2)
		if rnd.IntN(2) == 0 {
			b.hang("off")
			b.traffic(1)
		}
	}
	b.hang("off")
	b.play("source heal\ntarget heal\nsource await synced\ntarget await synced\nawait caught-up")
	if said, err := b.act("equal"); err != nil || said != "equal" {
		b.fail("seed", strconv.Itoa(seed), fmt.Errorf("%.2000s %w", said, err))
	}
	b.play("drain")
}

// hang lets the index builds of all the target's members last, or end.
func (w *world) hang(mode string) {
	w.t.Helper()
	for _, m := range w.target.Members() {
		cmd := bson.D{{Key: "configureFailPoint", Value: "hangAfterStartingIndexBuild"}, {Key: "mode", Value: mode}}
		if _, err := w.target.on(w.t.Context(), m.ID(), "admin", cmd); err != nil {
			w.fail("seed", mode, err)
		}
	}
}

// traffic writes to all collections.
func (b *buildsWorld) traffic(rounds int) {
	b.t.Helper()
	for range rounds {
		for n := range keptOnes + 1 {
			ns := fmt.Sprint("db.kept", n)
			if n == keptOnes {
				ns = "db.other"
			}
			from := 1 + b.rnd.IntN(250)
			b.play(fmt.Sprintf("source update %s %d..%d\nsource delete %s %d..%d\nsource insert %s %d..%d",
				ns, from, from+40, ns, from+10, from+15, ns, b.next, b.next+40))
			b.next += 41
		}
	}
}

// mishap is what happens next, by chance, with writes in the middle of it.
func (b *buildsWorld) mishap() {
	b.t.Helper()
	side := []string{"source", "target"}[b.rnd.IntN(2)]
	var before, after string
	switch b.rnd.IntN(5) {
	case 0: // the process is killed
		before, after = "stop", b.begin
	case 1:
		before, after = "stop\n"+side+" stepdown\n"+side+" await primary", b.begin
	case 2:
		before = side + " stepdown"
	case 3:
		before, after = side+" await primary\n"+side+" kill primary\n"+side+" await primary", side+" start down\n"+side+" await synced"
	case 4:
		before = side + " await primary\n" + side + " isolate primary"
		if side == "source" {
			before += fmt.Sprintf("\nsource update db.kept0 1..50 on=isolated w=1\nsource insert db.other %d..%d on=isolated w=1", b.next, b.next+50)
			b.next += 51
		}
		before += "\n" + side + " await another isolated"
		after = side + " heal\n" + side + " await synced"
	}
	b.t.Logf("%s", strings.ReplaceAll(before+" … "+after, "\n", ", "))
	b.play(before)
	b.traffic(2)
	if after != "" {
		b.play(after)
	}
}
