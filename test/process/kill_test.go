package process

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/traffic"
	"github.com/oplogrep/replicator/mongosim"
)

const (
	// longest is how long a life is at most, before its end in order.
	longest = 1500 * time.Millisecond
	// patience is for the last process, which must read all that is missing.
	patience = 2 * time.Minute
)

func TestKill(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it takes half a minute: not with -short")
	}
	const usual = 20
	kills, seed := number(t, "REPLICATOR_KILLS", usual), number(t, "REPLICATOR_SEED", 1)
	t.Logf("%d kills, seed %d", kills, seed)
	h := &harness{
		TB: t, program: build(t), rnd: rand.New(rand.NewPCG(uint64(seed), 9)), rare: true,
		source: mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: int64(seed), TTLInterval: expiry}),
		target: mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: int64(seed) + 1, TTLInterval: expiry}),
	}
	h.from, h.to = connect(t, h.source), connect(t, h.target)

	// The link begins with empty sets.
	first := h.start(h.settings()...)
	first.until(time.Minute, h.exists)
	first.kill()
	end := h.write("shop", uint64(seed))

	for i := range kills {
		switch h.rnd.IntN(8) {
		case 0:
			h.stepDown(h.target)
		case 1:
			h.stepDown(h.source)
		}
		l := h.start(h.settings()...)
		l.until(time.Duration(h.rnd.Int64N(int64(longest))), nil)
		l.kill()
		if t.Failed() {
			t.Fatalf("after %d kills", i)
		}
	}

	end()
	h.changes.Wait()
	h.last()
	must.Succeed(t, traffic.Check(t.Context(), h.to, "shop"))
}

func number(t testing.TB, name string, def int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return def
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s=%s is no number", name, text)
	}
	return n
}

// last lives until everything is mirrored, ends in order, and compares.
func (h *harness) last() {
	want := h.newest()
	l := h.start(h.settings()...)
	l.until(patience, func() bool { return !h.reached().Before(want) })
	l.end()
	h.equal()
}

// stepDown changes the primary of a set in the course of the next life.
func (h *harness) stepDown(set *mongosim.Set) {
	after := time.Duration(h.rnd.Int64N(int64(longest)))
	h.changes.Go(func() {
		select {
		case <-time.After(after):
			// One that is in the middle of an election is left alone.
			_ = set.StepDown(h.Context())
		case <-h.Context().Done():
		}
	})
}

// settings are those of one life.
func (h *harness) settings() []string {
	return []string{
		"--writers", []string{"4", "4", "4", "7"}[h.rnd.IntN(4)], "--transactions", []string{"atomic", "relaxed"}[h.rnd.IntN(2)],
		"--flush-docs", []string{"5", "2000"}[h.rnd.IntN(2)], "--checkpoint-interval", []string{"20ms", "1s"}[h.rnd.IntN(2)],
	}
}
