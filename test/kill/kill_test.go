package kill

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/compare"
	"github.com/oplogrep/replicator/internal/mdb"
	"github.com/oplogrep/replicator/internal/mongosim"
	"github.com/oplogrep/replicator/internal/traffic"
	"github.com/oplogrep/replicator/oplog"
)

const (
	link = "kill"
	// longest is how long a life is at most, before its end in order.
	longest = 1500 * time.Millisecond
	// patience is for the last life: what was missed has to be read.
	patience = 2 * time.Minute
)

func TestKill(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes half a minute")
	}
	kills, seed := number(t, "REPLICATOR_KILLS", 20), number(t, "REPLICATOR_SEED", 1)
	t.Logf("%d kills, seed %d", kills, seed)
	h := &harness{
		T: t, program: build(t), rnd: rand.New(rand.NewPCG(uint64(seed), 9)),
		source: mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: int64(seed)}),
		target: mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: int64(seed) + 1}),
	}
	h.from, h.to = connect(t, h.source), connect(t, h.target)

	// The link begins with empty sets.
	h.live(time.Minute, h.exists, false)
	clients, err := traffic.New(traffic.Config{Cluster: h.from, DB: "shop", Seed: uint64(seed), Pause: 5 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	soft, rest := context.WithCancel(t.Context())
	defer rest()
	written := make(chan error, 1)
	go func() { written <- clients.Run(t.Context(), soft) }()

	for i := range kills {
		switch h.rnd.IntN(8) {
		case 0:
			h.stepDown(h.target)
		case 1:
			h.stepDown(h.source)
		}
		h.live(time.Duration(h.rnd.Int64N(int64(longest))), nil, false)
		if t.Failed() {
			t.Fatalf("after %d kills", i)
		}
	}

	rest()
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	h.changes.Wait()
	h.last()
	t.Logf("%+v", clients.Stats())
}

// harness is the two sets, and the program between them.
type harness struct {
	*testing.T
	program        string
	rnd            *rand.Rand
	source, target *mongosim.Set
	from, to       *mdb.Set
	// changes are the step-downs under way.
	changes sync.WaitGroup
}

func number(t *testing.T, name string, def int) int {
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

// build builds the program as it is.
func build(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "replicator")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, "github.com/oplogrep/replicator/cmd/replicator").CombinedOutput()
	if err != nil {
		t.Fatalf("build the program: %v\n%s", err, out)
	}
	return path
}

func connect(t *testing.T, set *mongosim.Set) *mdb.Set {
	t.Helper()
	o, err := mdb.Parse(mdb.Config{URI: set.URI()})
	if err != nil {
		t.Fatal(err)
	}
	s, err := mdb.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// newest is the newest entry of the source.
func (h *harness) newest() oplog.OpTime {
	p, err := h.source.AwaitPrimary(h.Context())
	if err != nil {
		h.Fatal(err)
	}
	v, _ := p.View()
	return v.Applied
}

// reached is the link's checkpoint, null while there is none.
func (h *harness) reached() oplog.OpTime {
	store, err := checkpoint.New(checkpoint.Config{Target: h.to, Link: link})
	if err != nil {
		h.Fatal(err)
	}
	st, _, err := store.Load(h.Context())
	if err != nil {
		return oplog.OpTime{} // no primary just now
	}
	return st.Applied
}

func (h *harness) exists() bool { return !h.reached().IsNull() }

// last lives until everything is mirrored, ends in order, and compares.
func (h *harness) last() {
	want := h.newest()
	h.live(patience, func() bool { return !h.reached().Before(want) }, true)
	held, err := ddl.Held(h.Context(), h.to, "replicator", link)
	if err != nil {
		h.Fatal(err)
	}
	report, err := compare.Compare(h.Context(), compare.Cluster(h.from), compare.Cluster(h.to), compare.Options{Held: held})
	if err != nil {
		h.Fatal(err)
	}
	h.Log(report.String())
	if !report.Equal() {
		h.Fail()
	}
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

// live runs the program for a time, or until done says so, and then kills it, or
// ends it in order. It must not end by itself.
func (h *harness) live(atMost time.Duration, done func() bool, inOrder bool) {
	var said bytes.Buffer
	cmd := exec.CommandContext(h.Context(), h.program, "run",
		"--source", h.source.URI(), "--target", h.target.URI(), "--link", link,
		"--writers", []string{"4", "4", "4", "7"}[h.rnd.IntN(4)], "--transactions", []string{"atomic", "relaxed"}[h.rnd.IntN(2)],
		"--flush-docs", []string{"5", "2000"}[h.rnd.IntN(2)], "--checkpoint-interval", []string{"20ms", "1s"}[h.rnd.IntN(2)],
		"--await", "1s", "--log-format", "text", "--log-level", "info",
	)
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		h.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	timer := time.NewTimer(atMost)
	defer timer.Stop()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for met := false; !met; {
		select {
		case err := <-ended:
			h.Fatalf("it ended by itself: %v\n%s", err, said.String())
		case <-timer.C:
			if done != nil {
				_ = cmd.Process.Kill()
				<-ended
				h.Fatalf("it did not get there in %s\n%s", atMost, said.String())
			}
			met = true
		case <-look.C:
			met = done != nil && done()
		}
	}
	how := syscall.SIGKILL
	if inOrder {
		how = syscall.SIGTERM
	}
	if err := cmd.Process.Signal(how); err != nil {
		h.Fatal(err)
	}
	if err := check(<-ended, inOrder); err != nil {
		h.Fatalf("%v\n%s", err, said.String())
	}
}

// check says whether it ended as it was told to.
func check(err error, inOrder bool) error {
	if inOrder {
		if err != nil {
			return fmt.Errorf("it did not end in order: %w", err)
		}
		return nil
	}
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		return fmt.Errorf("killed, it ended with %v", err)
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); !ok || !status.Signaled() {
		return fmt.Errorf("it ended by itself: %w", err)
	}
	return nil
}
