package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/mongosim"
)

// envLivePairs chooses the versions of the tests below: "5.0-4.4,4.4-8.0", the source's first, or "all".
const envLivePairs = "LIVE_PAIRS"

// TestLiveUpgrade is TestLive with a target of another version: what a source logs in one form has to reach a server that does
// not take that form.
//
// LIVE_SECONDS, LIVE_SEED and LIVE_PAIRS (5.0-4.4,4.4-8.0 or all) choose another run.
func TestLiveUpgrade(t *testing.T) {
	seed := number(t, envLiveSeed, time.Now().UnixNano()&0xffffff)
	eachPair(t, []string{"4.4-8.0", "8.0-4.4"}, func(t *testing.T, p provider) {
		t.Logf("%s=%d", envLiveSeed, seed)
		openLive(t, p, seed, clusterOptions{expires: expiry}).run(t)
	})
}

// TestCopyLiveUpgrade is TestCopyLive with a target of another version.
//
// LIVE_SECONDS, LIVE_SEED and LIVE_PAIRS (5.0-4.4,4.4-8.0 or all) choose another run.
func TestCopyLiveUpgrade(t *testing.T) {
	seed := number(t, envLiveSeed, time.Now().UnixNano()&0xffffff)
	eachPair(t, []string{"5.0-4.4"}, func(t *testing.T, p provider) {
		t.Logf("%s=%d", envLiveSeed, seed)
		openCopyLive(t, p, seed).run(t)
	})
}

// eachPair calls run in a subtest for pairs of versions: some, of which only the first is played with the race detector, or those
// that the environment names.
func eachPair(t *testing.T, some []string, run func(t *testing.T, p provider)) {
	if race.Enabled {
		some = some[:1]
	}
	switch list := os.Getenv(envLivePairs); list {
	case "":
	case "all":
		some = allPairs()
	default:
		some = strings.Split(list, ",")
	}
	for _, pair := range some {
		t.Run(pair, func(t *testing.T) {
			t.Parallel()
			source, target, _ := strings.Cut(pair, "-")
			run(t, provider{name: pair, major: majorIn(t, source), targetMajor: majorIn(t, target), open: func(t *testing.T, o clusterOptions) cluster {
				if o.name == "target" {
					return openEmbedded(t, target, o)
				}
				return openEmbedded(t, source, o)
			}})
		})
	}
}

func majorIn(t *testing.T, version string) int {
	t.Helper()
	first, _, _ := strings.Cut(version, ".")
	major, err := strconv.Atoi(first)
	if err != nil {
		t.Fatalf("%s: read the version %q: %v", envLivePairs, version, err)
	}
	return major
}

func allPairs() (pairs []string) {
	for _, source := range mongosim.Dialects() {
		for _, target := range mongosim.Dialects() {
			if source != target {
				pairs = append(pairs, fmt.Sprintf("%s-%s", source, target))
			}
		}
	}
	return pairs
}
