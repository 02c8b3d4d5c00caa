package process

import (
	"errors"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline/failure"
)

const (
	// perLink is how often a link is killed: copying, replaying and after.
	perLink = 9
	// bulk are collections that nobody writes to, of bulkDocs documents each, so
	// that there is something to copy for a while.
	bulk, bulkDocs = 5, 2000
	// slowly is for lives that are to end while documents are copied.
	slowly = "--max-ops-per-second=500"
	// unapplied withholds the log, so that a life stays in the phase that applies it.
	unapplied = "--delay=1h"
)

// TestKillCopy kills the program again and again while it copies a source that is
// written to, while it applies the log to the copy, and afterwards; and once more
// with another link, to another target, until there were enough kills.
func TestKillCopy(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes half a minute: not with -short")
	}
	kills, seed := number(t, "REPLICATOR_KILLS", perLink), number(t, "REPLICATOR_SEED", 1)
	h := &harness{TB: t, program: build(t), rnd: rand.New(rand.NewPCG(uint64(seed), 10))}
	h.choose(seed)
	t.Logf("%d kills, seed %d, versions %s", kills, seed, h.versions)
	moods := mongosim.MoodsWithout("no-config", "a copy that cannot be continued after a rollback does not begin anew without the configuration")
	h.source = mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: int64(seed) + 2, Dialect: h.versions[0], Moods: moods})
	h.from = connect(t, h.source)
	h.fillBulk()
	in := map[checkpoint.CopyPhase]int{}
	for n := 0; n < kills; n += perLink {
		h.killLink(n, min(perLink, kills-n), int64(seed+3+n), in)
		if t.Failed() {
			t.Fatalf("after %d kills", min(kills, n+perLink))
		}
	}
	t.Logf("kills by phase: %v", in)
	if kills >= perLink && (in[checkpoint.Copying] < kills/4 || in[checkpoint.Replaying] == 0 || in[checkpoint.Copied] == 0) {
		t.Errorf("kills by phase: %v: some are too few", in)
	}
}

// killLink makes one link to a new target, under traffic of its own, kills it a
// number of times, and compares.
func (h *harness) killLink(number, kills int, seed int64, in map[checkpoint.CopyPhase]int) {
	h.target = mongosim.StartTest(h, mongosim.Options{Members: 3, Seed: seed, Dialect: h.versions[1]})
	h.to = connect(h.TB, h.target)
	spool := h.newSpool()
	end := h.write("shop"+strconv.Itoa(number), uint64(seed))

	for i := range kills {
		h.hurt()
		if i%perLink == 3 || i%perLink == 6 || h.rnd.IntN(8) == 0 {
			spool = h.newSpool() // as on another machine
		}
		phase := h.killOne(i, kills)
		in[phase]++
		h.Logf("kill %d: in phase %q, with the spool %s", number+i+1, phase, spool)
	}
	end()
	h.changes.Wait()
	h.lastOfCopy()
}

// killOne lives the i-th life of a link: about the first half of them while it starts or
// copies, then some while it applies the log to the copy, then some afterwards. It returns the
// phase. Some lives are sure to end in each phase, however slow the machine is.
func (h *harness) killOne(i, kills int) checkpoint.CopyPhase {
	settings := h.copySettings()
	phase := func(is ...checkpoint.CopyPhase) func() bool {
		return func() bool {
			c := h.state().Copy
			return c != nil && slices.Contains(is, c.Phase)
		}
	}
	var l *life
	switch {
	case 2*i <= kills:
		l = h.start(append(settings, slowly)...)
		if i >= 2 {
			l.until(patience, phase(checkpoint.Copying, checkpoint.Replaying))
		}
		l.until(time.Duration(h.rnd.Int64N(int64(longest))), nil)
	case 4*i <= 3*kills:
		// The checkpoint that ends this phase is written once a second.
		settings = append(settings, "--checkpoint-interval=1s")
		if 2*(i-1) <= kills { // the first of them
			settings = append(settings, unapplied)
		}
		l = h.start(settings...)
		l.until(patience, phase(checkpoint.Replaying, checkpoint.Copied))
		l.until(time.Duration(h.rnd.Int64N(int64(longest/5))), nil)
	default:
		l = h.start(settings...)
		l.until(patience, phase(checkpoint.Copied))
		l.until(time.Duration(h.rnd.Int64N(int64(longest))), nil)
	}
	l.kill()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		st, err := h.load()
		switch {
		case err == nil && st.Copy != nil:
			return st.Copy.Phase
		case err == nil:
			return ""
		case time.Now().After(end):
			h.Fatalf("read the phase: %v", err)
		}
	}
}

// copySettings are those of one life in which documents may be copied.
func (h *harness) copySettings() []string {
	return append(h.settings(),
		"--indexes", []string{"after", "before"}[h.rnd.IntN(2)],
		"--clone-workers", []string{"1", "3"}[h.rnd.IntN(2)], "--range-bytes", []string{"1MiB", "512MiB"}[h.rnd.IntN(2)])
}

// newSpool has the next lives begin with an empty folder for the log.
func (h *harness) newSpool() string {
	dir := h.TempDir()
	h.begin = []string{"--start-at=copy", "--spool-dir=" + dir, "--spool-free=16MiB"}
	return dir
}

// fillBulk gives the source collections that take a while to copy.
func (h *harness) fillBulk() {
	for c := range bulk {
		for docs := range slices.Chunk(numbers(bulkDocs), 500) {
			list := bson.A{}
			for _, i := range docs {
				list = append(list, bson.D{{Key: "_id", Value: i}, {Key: "n", Value: i % 10}, {Key: "pad", Value: strings.Repeat("b", 1000)}})
			}
			h.run("bulk", bson.D{{Key: "insert", Value: bulkName(c)}, {Key: "documents", Value: list}})
		}
		h.run("bulk", bson.D{{Key: "createIndexes", Value: bulkName(c)}, {Key: "indexes", Value: bson.A{
			bson.D{{Key: "key", Value: bson.D{{Key: "n", Value: 1}}}, {Key: "name", Value: "n_1"}},
		}}})
	}
}

// run runs a command on the source.
func (h *harness) run(db string, cmd bson.D) {
	body, err := bson.Marshal(cmd)
	if err != nil {
		h.Fatal(err)
	}
	// A document that a try before an election has inserted is there.
	err = client.ThroughElections(h.Context(), func() error {
		_, err := h.from.Call(h.Context(), mongo.Command{DB: db, Body: body})
		return err
	})
	if err != nil {
		h.Fatal(err)
	}
}

func numbers(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}

// lastOfCopy lives until the target is consistent and everything is mirrored, ends
// in order, and compares.
func (h *harness) lastOfCopy() {
	want := h.newest()
	l := h.start(h.copySettings()...)
	var st checkpoint.State
	l.until(patience, func() bool {
		st = h.state()
		return st.Copy != nil && st.Copy.Phase == checkpoint.Copied && !st.Applied.Before(want)
	})
	if n := st.Copy.Number; n > 1 {
		h.Logf("it was copy %d: %s", n, st.Copy.Why)
	}
	l.end()
	h.equal()
}

// TestEndCopy: a signal in the middle of a copy ends the program in order, which
// says that the next start goes on with it, as that does.
func TestEndCopy(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it takes some seconds: not with -short")
	}
	h := &harness{
		TB: t, program: build(t), rnd: rand.New(rand.NewPCG(1, 11)),
		source: mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 61}), target: mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 62}),
	}
	h.from, h.to = connect(t, h.source), connect(t, h.target)
	h.fillBulk()
	h.newSpool()
	l := h.start("--writers=4", "--flush-docs=50", slowly)
	l.until(time.Minute, func() bool { return h.bulkCopied() > 0 })
	must.Succeed(t, l.cmd.Process.Signal(syscall.SIGTERM))
	err := <-l.ended
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok || exit.ExitCode() != failure.ExitNotDrained {
		t.Fatalf("it ended with %v, want code %d\n%s", err, failure.ExitNotDrained, l.said.String())
	}
	for _, want := range []string{"nothing is lost", "Start it again with the same link"} {
		if !strings.Contains(l.said.String(), want) {
			t.Errorf("it did not say %q\n%s", want, l.said.String())
		}
	}
	had, number := h.bulkCopied(), h.state().Copy.Number
	if had == bulk*bulkDocs {
		t.Error("everything was copied, whatever the limit is")
	}

	// It goes on, with a copy that it does not start over, on another machine.
	h.insert("late", 1, 3, 100)
	h.newSpool()
	l = h.start("--writers=4", "--flush-docs=50", slowly)
	l.until(time.Minute, func() bool { return h.bulkCopied() > had })
	l.kill()
	h.newSpool()
	h.lastOfCopy()
	if got := h.state().Copy.Number; got != number {
		t.Errorf("it was copy %d, and copy %d before", got, number)
	}
}

// bulkCopied is how many documents of bulk the target has.
func (h *harness) bulkCopied() int {
	n := 0
	for c := range bulk {
		n += h.count("bulk", bulkName(c))
	}
	return n
}

func bulkName(c int) string { return "c" + strconv.Itoa(c) }
