package process

import (
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
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

// TestKill kills the program while it mirrors random traffic from a set of one version into one of another, or of the same, and lets the next process
// take the link over, some of them while the one before it still runs. Members of both sets step down, are killed, and are cut off from
// the others meanwhile, so that the source rolls back. REPLICATOR_KILLS, REPLICATOR_SEED and REPLICATOR_PAIR (8.0-4.4, the source's
// version first) choose another run.
func TestKill(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it takes half a minute: not with -short")
	}
	const usual = 20
	kills, seed := number(t, "REPLICATOR_KILLS", usual), number(t, "REPLICATOR_SEED", 1)
	h := &harness{TB: t, program: build(t), rnd: rand.New(rand.NewPCG(uint64(seed), 33)), rare: true}
	h.choose(seed)
	t.Logf("%d kills, seed %d, versions %s", kills, seed, h.versions)
	h.source = mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: int64(seed), Dialect: h.versions[0], TTLInterval: expiry})
	h.target = mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: int64(seed) + 1, Dialect: h.versions[1], TTLInterval: expiry})
	h.from, h.to = connect(t, h.source), connect(t, h.target)

	// The link begins with empty sets.
	first := h.start(h.settings()...)
	first.until(time.Minute, h.exists)
	first.kill()
	end := h.write("shop", uint64(seed))

	var before *life // it runs still, and the next one takes the link over from it
	for i := range kills {
		h.hurt()
		l := h.start(h.settings()...)
		if l.alone = before == nil; !l.alone {
			before.until(h.soon(), nil)
			before.kill()
		}
		l.until(h.soon(), nil)
		if before = l; h.rnd.IntN(3) > 0 || i == kills-1 {
			l.kill()
			before = nil
		} else {
			l.alone = false // the next one starts before its end
		}
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
	l.until(patience, func() bool { return !h.reached().Before(want) && len(h.state().LeftOut) == 0 })
	l.end()
	h.equal()
}

// choose chooses the versions of the sets: those of REPLICATOR_PAIR, or two at random, or, for every fourth seed, one for both: only then
// clients write to capped collections by key.
func (h *harness) choose(seed int) {
	all := mongosim.Dialects()
	source := h.rnd.IntN(len(all))
	h.versions = [2]string{all[source], all[(source+1+h.rnd.IntN(len(all)-1))%len(all)]}
	if seed%4 == 0 {
		h.versions[1] = h.versions[0]
	}
	if source, target, ok := strings.Cut(os.Getenv("REPLICATOR_PAIR"), "-"); ok {
		h.versions = [2]string{source, target}
	}
}

// major is the major version of the source (0) or of the target (1).
func (h *harness) major(of int) int {
	first, _, _ := strings.Cut(h.versions[of], ".")
	return must.Get(strconv.Atoi(first))(h)
}

// soon is a time until something happens in a life.
func (h *harness) soon() time.Duration { return time.Duration(h.rnd.Int64N(int64(longest))) }

// hurt lets a set have a failover in the course of the next life, or does nothing. One set at a time has a member away.
func (h *harness) hurt() {
	set := h.source
	if h.rnd.IntN(2) == 0 {
		set = h.target
	}
	switch h.rnd.IntN(8) {
	case 0, 1:
		h.stepDown(set)
	case 2:
		h.away(set, (*mongosim.Member).Kill, (*mongosim.Member).Start)
	case 3: // clients still reach it, and what they write is rolled back
		h.away(set, func(m *mongosim.Member) error { set.Isolate(m.ID()); return nil }, func(m *mongosim.Member) error { set.Rejoin(m.ID()); return nil })
	}
}

// away does without the primary of a set for some time.
func (h *harness) away(set *mongosim.Set, leave, comeBack func(*mongosim.Member) error) {
	h.changes.Wait()
	after, then := h.soon(), h.soon()
	h.changes.Go(func() {
		h.sleep(after)
		m, err := set.AwaitPrimary(h.Context())
		if err == nil {
			err = leave(m)
		}
		if err == nil {
			h.sleep(then)
			err = comeBack(m)
		}
		if err == nil {
			err = set.AwaitReady(h.Context())
		}
		if err != nil && h.Context().Err() == nil {
			h.Errorf("a member of the set %s is away: %v", set.URI(), err)
		}
	})
}

// sleep waits for a time, or until the test ends.
func (h *harness) sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-h.Context().Done():
	}
}

// stepDown changes the primary of a set in the course of the next life.
func (h *harness) stepDown(set *mongosim.Set) {
	after := h.soon()
	h.changes.Go(func() {
		h.sleep(after)
		_ = set.StepDown(h.Context()) // one that is in the middle of an election is left alone
	})
}

// settings are those of one life.
func (h *harness) settings() []string {
	return []string{
		"--writers", []string{"4", "4", "4", "7"}[h.rnd.IntN(4)], "--transactions", []string{"atomic", "relaxed"}[h.rnd.IntN(2)],
		"--flush-docs", []string{"5", "2000"}[h.rnd.IntN(2)], "--checkpoint-interval", []string{"20ms", "1s"}[h.rnd.IntN(2)],
	}
}
