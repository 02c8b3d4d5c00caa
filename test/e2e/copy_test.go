package e2e

import (
	"strconv"
	"testing"
	"time"

	"github.com/oplogrep/replicator/internal/testkit/mirrored"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/mongosim"
)

// envCopySeeds is how many seeds TestCopyCorpus tries for each recording, envCopySeed
// the first one.
const (
	envCopySeeds = "COPY_SEEDS"
	envCopySeed  = "COPY_SEED"
)

// copySeeds is how many seeds a recording is copied with, by its name, where the
// environment says nothing: those that take long get fewer.
func copySeeds(name string) int64 {
	switch {
	case race.Enabled:
		return 1
	case name == "mass", name == "txn-large", name == "txn-prepared", testing.Short():
		return 2
	}
	return 6
}

// TestCopyCorpus copies a source while it plays what a real server logged, and
// compares with what that server had.
//
// COPY_SEEDS is how many seeds are tried, COPY_SEED the first one.
func TestCopyCorpus(t *testing.T) {
	all := scenarios(t)
	first, played := number(t, envCopySeed, 1), 0
	for i := range all {
		if !race.One(i) {
			continue
		}
		t.Run(all[i].Name, func(t *testing.T) {
			meanwhile := 0
			for seed := first; seed < first+number(t, envCopySeeds, copySeeds(all[i].Name)); seed++ {
				t.Run(strconv.FormatInt(seed, 10), func(t *testing.T) {
					r := mirrored.Copy(t.Context(), &all[i], uint64(seed), mirrored.RunOptions{Limit: 3 * time.Minute})
					t.Log(r.String())
					if !r.OK() {
						t.Fail()
					}
					meanwhile += r.Meanwhile
				})
			}
			if played += meanwhile; meanwhile == 0 && !race.Enabled { // one seed is few for one recording
				t.Error("nothing was played while it was copied")
			}
		})
	}
	if played == 0 {
		t.Error("nothing was played while anything was copied")
	}
}

// TestCopyCorpusInto is TestCopyCorpus into a set that is there already, real ones
// above all. See TestMirrorCorpusInto for the parts that must be equal there.
func TestCopyCorpusInto(t *testing.T) {
	seed := number(t, envCopySeed, 1)
	eachProvider(t, []string{"7.0"}, func(t *testing.T, p provider) {
		target := p.open(t, clusterOptions{name: "target", members: 1, moods: mongosim.NoMoods("an attempt that ends counts as a failure here")})
		conn := connect(t, target.uriFor(admin))
		major := majorOf(t, target)
		if major < recordedMajor {
			t.Skipf("the recordings are of %d.0, which a server of %d.x cannot hold", recordedMajor, major)
		}
		all := scenarios(t)
		for i := range all {
			if race.Enabled && !p.real && i%6 > 0 {
				continue
			}
			t.Run(all[i].Name, func(t *testing.T) {
				r := mirrored.Copy(t.Context(), &all[i], uint64(seed), mirrored.RunOptions{
					Target: emptied(t, target, conn), Limit: 3 * time.Minute,
				})
				if major != recordedMajor {
					r.Report.Differences = documentsOnly(t, r.Report.Differences)
				}
				t.Log(r.String())
				if !r.OK() {
					t.Fail()
				}
			})
		}
	})
}
