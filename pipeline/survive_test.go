package pipeline_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/mongosim"
)

// envSeeds is how many seeds TestCopySurvives plays.
const envSeeds = "REPLICATOR_COPY_SEEDS"

// TestCopySurvives: while a source is copied, members are killed, roll back, are resynced,
// are removed and added again, and lose elections, all by chance. The copy never begins
// anew, and the target equals the source.
func TestCopySurvives(t *testing.T) {
	seeds := 10
	if race.Enabled {
		seeds = 2
	}
	if n, err := strconv.Atoi(os.Getenv(envSeeds)); err == nil {
		seeds = n
	}
	first := rand.IntN(1 << 20)
	if n, err := strconv.Atoi(os.Getenv("REPLICATOR_COPY_FIRST")); err == nil {
		first = n
	}
	for seed := first; seed < first+seeds; seed++ {
		t.Run(strconv.Itoa(seed), func(t *testing.T) {
			t.Parallel()
			survive(t, seed)
		})
	}
}

const toCopy = `
	source insert shop.a 1..600
	source insert shop.b 1..300 size=100
	source run shop {"create": "collated", "collation": {"locale": "en", "strength": 2}}
	source insert shop.collated 1..300
	source run shop {"create": "ring", "capped": true, "size": 1048576, "max": 200}
	source insert shop.ring 1..260
	source run shop {"create": "byid"%s}
	source insert shop.byid 1..300
	source seed s
	start copy ops=400 workers=2 flush=20 range=1000 wait=10s
	await copied 40
`

// copied returns acts that create the collections to be copied. Only newer dialects have clustered
// collections.
func copied(dialect string) string {
	var lines strings.Builder
	for n := range 8 {
		fmt.Fprintf(&lines, "source insert shop.x%d 1..%d\n", n, 20+20*n)
	}
	clustered := ""
	if dialect >= "6.0" {
		clustered = `, "clusteredIndex": {"key": {"_id": 1}, "unique": true}`
	}
	return lines.String() + fmt.Sprintf(toCopy, clustered)
}

func survive(t *testing.T, seed int) {
	r := rand.New(rand.NewPCG(uint64(seed), 1)) //nolint:gosec // a test's choice
	exact := mongosim.GentleMoods("the faults are those of the seed; TestMoods plays all of them")
	dialect := []string{"5.0", "6.0", "7.0"}[seed%3]
	w := newWorld(t, mongosim.Options{Members: 3, Seed: int64(2*seed + 1), TTLInterval: -1, Moods: exact, Dialect: dialect},
		mongosim.Options{Members: 1, Seed: int64(2*seed + 2), TTLInterval: -1, Moods: exact, Dialect: dialect})
	w.play(copied(dialect))
	replaced := 0
	for n := range 4 {
		lines := misfortune(r, n)
		t.Logf("%s", lines)
		if strings.HasPrefix(lines, "remove") {
			// Two of the first members stay, as one of them may be killed next: none that the
			// link knows would be left, if it did not ask again in between.
			if replaced++; replaced > 1 {
				continue
			}
			if err := w.replaceMember(t.Context(), r); err != nil {
				w.fail("seed", lines, err)
			}
			continue
		}
		w.play(lines)
	}
	w.play(`
		source heal
		source await synced
		limit 0
		await caught-up
		equal
		drain
	`)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if line, _ := w.line(e); strings.HasPrefix(line, "copy void") {
			t.Errorf("%s: %s", line, e.event.LogValue())
		}
	}
}

// misfortune returns what happens next, by chance, and writes before and after it.
func misfortune(r *rand.Rand, n int) string {
	writes := func(k int) string {
		from := 1 + r.IntN(250)
		return "\n" + ddlOn(r, k) + fmt.Sprintf(`
			source update shop.a %d..%d
			source delete shop.b %d..%d
			source insert shop.b %d..%d
			source update shop.collated %d..%d
			source insert shop.ring %d..%d
			source delete shop.byid %d..%d
		`, from, from+30, 1+30*k, 5+30*k, 1000+100*k, 1020+100*k, from, from+10, 1000+40*k, 1030+40*k, 1+30*k, 5+30*k)
	}
	who := []string{"current", "primary", "secondary", "current"}[r.IntN(4)]
	before, after := writes(2*n), writes(2*n+1)
	back := "\nsource start down\nsource await synced\n"
	switch r.IntN(10) {
	case 0: // and it is away for some time
		return before + "source kill " + who + "\nsource await primary\n" + after + back
	case 1: // and it is back at once
		return before + "source kill " + who + back + after
	case 2:
		return before + "source stop " + who + "\nsource await primary\n" + after + "source wipe down" + back
	case 3:
		return before + fmt.Sprintf(`
			source isolate primary
			source insert shop.a %d..%d on=isolated w=1
			source await another isolated
		`, 5000+100*n, 5050+100*n) + after + "source heal\nsource await synced\n"
	case 4:
		return before + "source stepdown" + after
	case 5:
		return "remove and add a member"
	case 6: // an ordinary restart
		return before + "source stop current\nsource await primary\n" + after + back
	case 7: // it still answers
		return before + "source isolate current\nsource await another isolated\n" + after + "source heal\nsource await synced\n"
	case 8: // the target cannot record it
		return before + "source kill current\ntarget stepdown\nsource await primary\n" + after + "target await primary" + back
	}
	// The copy is told that it goes on elsewhere before that member is back.
	return before + "source kill current\nsource await primary\nawait told copy continues\n" + after + back
}

// ddlOn returns commands on a collection that nothing else writes to.
func ddlOn(r *rand.Rand, n int) string {
	rename := fmt.Sprintf("source run admin {\"renameCollection\": \"shop.x%d\", \"to\": \"shop.y%d\"}\n", n, n)
	drop := fmt.Sprintf("source run shop {\"drop\": \"x%d\"}\n", n)
	again := fmt.Sprintf("source insert shop.x%d 500..520\n", n)
	switch r.IntN(6) {
	case 0:
		return drop
	case 1:
		return drop + again
	case 2:
		return rename
	case 3:
		return rename + again
	case 4:
		return fmt.Sprintf("source run shop {\"createIndexes\": \"x%d\", \"indexes\": [{\"key\": {\"v\": 1}, \"name\": \"v\"}]}\n", n)
	}
	return ""
}

// replaceMember removes a secondary of the source and adds a member, which is synced again.
func (w *world) replaceMember(ctx context.Context, r *rand.Rand) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if _, err := w.source.AwaitPrimary(ctx); err != nil {
		return err
	}
	first := r.IntN(3)
	if id, err := w.memberOf(w.source, "current"); err == nil && r.IntN(2) == 0 {
		first = id
	}
	// It keeps running. A primary, or one that was removed before, is not removed.
	all := w.source.Members()
	for n := range all {
		if err := w.source.RemoveMember(ctx, all[(first+n)%len(all)].ID()); err == nil {
			break
		}
	}
	if _, err := w.source.AddMember(ctx, mongosim.MemberOptions{}); err != nil {
		return err
	}
	return w.source.AwaitSynced(ctx)
}
