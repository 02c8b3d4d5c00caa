package pipeline_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline"
)

// TestCopyGetsOn: a copy that is interrupted repeatedly, and advances in between,
// resumes after the shortest pause each time.
func TestCopyGetsOn(t *testing.T) {
	t.Parallel()
	alone := mongosim.NoMoods("the pauses after interruptions of its own are looked at")
	w := newWorld(t, mongosim.Options{Members: 1, Seed: 1, Moods: alone}, mongosim.Options{Members: 1, Seed: 2, Moods: alone})
	do := func(line string) {
		t.Helper()
		if _, err := w.act(line); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	do("source insert shop.a 1..900")
	do("start copy ops=300 workers=1 flush=10 range=4000")
	const times = 6
	for i := range times {
		do(fmt.Sprintf("await copied %d", 100*(i+1)))
		do(`target failcommand primary {"mode": {"times": 1}, "data": {"failCommands": ["commitTransaction"], "closeConnection": true}}`)
	}
	do("await caught-up")
	ended := 0
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if a, ok := e.event.(pipeline.AttemptEnded); ok {
			ended++
			if a.Wait > 100*time.Millisecond {
				t.Errorf("attempt %d is followed by a pause of %s: %v", a.Attempt, a.Wait, a.Err)
			}
		}
	}
	if ended == 0 {
		t.Error("no attempt was interrupted")
	}
	t.Logf("%d attempts were interrupted", ended)
}
