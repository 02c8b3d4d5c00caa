package pipeline_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/oplogrep/replicator/internal/testkit/race"
)

// TestNothingIsLeft ends links in each phase, in order and at once. When Run has
// returned, none of their goroutines runs, and no file of the spool is open. It is not
// parallel, so that no other test has any. Under the race detector the steps alternate
// between the two ways to end.
func TestNothingIsLeft(t *testing.T) { //nolint:paralleltest // see above
	const start = "start copy flush=10 workers=2 range=1000 "
	for i, step := range []string{
		start + "ops=300\nawait told copy: listing",
		start + "ops=300\nawait copied 100",
		"hold copy: building\n" + start + "\nawait told copy: building\nsource insert shop.a 301..400\nrelease",
		"hold copied\n" + start + "delay=10s\nawait told copied\nsource insert shop.a 301..400\nrelease\nawait told everything copied",
		start + "\nawait told consistent",
		start + "\nawait running",
		start + "\nawait running\nlimit 100\nresync shop.a\nawait told copies again\nawait busy",
	} {
		for j, end := range []string{"drain", "stop"} {
			if race.Enabled && i%2 != j {
				continue
			}
			w := playOn(t, 1, `
				source insert shop.a 1..300
				source insert shop.b 1..300
				source run shop {"createIndexes": "a", "indexes": [{"key": {"x": 1}, "name": "x_1"}]}
			`)
			step = strings.Replace(step, "await busy", "await resync copying shop.a", 1)
			w.play(step + "\n" + end)
			w.nothingLeft(step + ", " + end)
			w.play("limit 0\n" + start + "\nawait running\nawait caught-up")
			if strings.Contains(step, "resync") {
				w.awaitRequest(w.links["a"], "shop.a")
			}
			w.play("source update shop.a 1..20\nawait caught-up\nequal\n" + end)
			w.nothingLeft(step + ", " + end + ", then all of it")
		}
	}
}

func (w *world) nothingLeft(when string) {
	w.t.Helper()
	own := []string{"replicator/pipeline.", "replicator/buffer", "replicator/initialsync", "replicator/fetcher", "replicator/checkpoint", "replicator/applier", "replicator/batcher", "replicator/feedback", "replicator/syncsource"}
	buf := make([]byte, 4<<20)
	for try := 0; ; try++ {
		left := ""
		for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			for _, name := range own {
				if strings.Contains(g, name) && !strings.Contains(g, "testing.tRunner") {
					left = g
				}
			}
		}
		if left == "" {
			break
		}
		if try == 6000 { // a goroutine that has just closed a channel may not have returned yet
			w.t.Fatalf("%s: there is still\n%s", when, left)
		}
		time.Sleep(10 * time.Millisecond)
	}
	open, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		w.t.Fatal(err)
	}
	for _, fd := range open {
		if name, err := os.Readlink(fd); err == nil && strings.HasPrefix(name, w.spool("")) {
			w.t.Errorf("%s: %s is open", when, name)
		}
	}
}
