package pipeline_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/mongosim"
)

// played is how many scenarios TestMoods plays, chosen by chance.
const played = 8

// notMoody are the scenarios that cannot be played with moods, each with the reason.
var notMoody = map[string]string{
	"drain":         "the file has where exactly a link is stopped",
	"target-errors": "counts by a fail point how often a command is refused",
	"resync-phases": "waits for a phase that the link has passed already if it had to start over",
}

// continued are the scenarios in which a copy continues from another member, or from one that has changed. That needs the source's
// configuration: without it the copy waits for as long as --source-wait says, and starts over.
var continued = []string{"gone", "resync-rollback", "resynced-member", "rollback", "rollback-listing", "source-restarts"}

// TestMoods plays scenarios again while both sets answer in unusual but legal ways. The
// events differ each time; the output of the acts and how the links end do not. All
// scenarios are played if REPLICATOR_MOODS is set, and none if it is off.
func TestMoods(t *testing.T) {
	t.Parallel()
	chosen := os.Getenv("REPLICATOR_MOODS")
	if chosen == "off" {
		t.Skip("REPLICATOR_MOODS=off: scenarios are played with moods by make soak, or without that variable")
	}
	var files []string
	for _, pattern := range []string{"testdata/faults/*", "testdata/copies/*"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatal(found, err)
		}
		files = append(files, found...)
	}
	files = slices.DeleteFunc(files, func(file string) bool { return notMoody[filepath.Base(file)] != "" })
	n := played
	if race.Enabled {
		n = played / 2
	}
	if chosen != "" {
		n = len(files)
	}
	for _, i := range rand.Perm(len(files))[:n] {
		t.Run(filepath.Base(files[i]), func(t *testing.T) {
			t.Parallel()
			var w *world
			datadriven.RunTest(t, files[i], func(t *testing.T, d *datadriven.TestData) string {
				if d.Cmd == "sets" {
					all := mongosim.Moods{All: true}
					source := all
					if slices.Contains(continued, filepath.Base(files[i])) {
						source = all.But("no-config", "the copy continues from another member")
					}
					w = newWorld(t, setOptions(t, d, "source", 1, source), setOptions(t, d, "target", 2, all))
					return ""
				}
				return w.moody(t, d)
			})
		})
	}
}

// moody plays a part of a scenario. It returns the expected output of the file if the
// acts and the ends of the links match it.
func (w *world) moody(t *testing.T, d *datadriven.TestData) string {
	said := w.acts(d)
	want := strings.Split(strings.TrimSuffix(d.Expected, "\n"), "\n")
	if len(said) > len(want) || !slices.Equal(said, want[len(want)-len(said):]) {
		return strings.Join(said, "\n") + "\n"
	}
	// A link that is stopped may have nothing left to do.
	ends := func(lines []string) (ends []string) {
		for _, line := range lines {
			if strings.Contains(line, "ended: ") {
				ends = append(ends, strings.Replace(line, "exit 10: stopped", "drained", 1))
			}
		}
		return ends
	}
	got := ends(w.journal(nil))
	if wanted := ends(want); !slices.Equal(got, wanted) {
		t.Errorf("the links ended so: %q, want %q", got, wanted)
	}
	return d.Expected
}
