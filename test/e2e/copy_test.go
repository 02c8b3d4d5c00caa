package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/oplogrep/replicator/internal/mirrored"
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
	switch name {
	case "mass", "txn-large", "txn-prepared":
		return 2
	}
	if testing.Short() {
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
	first := number(t, envCopySeed, 1)
	for i := range all {
		t.Run(all[i].Name, func(t *testing.T) {
			for seed := first; seed < first+number(t, envCopySeeds, copySeeds(all[i].Name)); seed++ {
				t.Run(fmt.Sprint(seed), func(t *testing.T) {
					r := mirrored.Copy(t.Context(), &all[i], uint64(seed), mirrored.RunOptions{Limit: 30 * time.Second})
					t.Log(r.String())
					if !r.OK() {
						t.Fail()
					}
				})
			}
		})
	}
}
