package process

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/call"
	"github.com/oplogrep/replicator/internal/mongosim"
)

// TestFrozenTarget: a target that stops answering while the source writes
// documents of nearly the largest size does not make the program grow beyond its
// budget, and all of them arrive once it answers again.
func TestFrozenTarget(t *testing.T) {
	if testing.Short() {
		t.Skip("it moves hundreds of megabytes")
	}
	const (
		documents = 24
		size      = 15_000_000
		budgetMB  = 64
		// marginMB is for the program itself, for what is on its way between the
		// stages and in the network's buffers, some of it twice, and for what the
		// collector has not taken back yet.
		marginMB = 256
	)
	set := func(seed int64) *mongosim.Set {
		return mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: seed, OplogBytes: 2 << 30, TTLInterval: -1})
	}
	h := &harness{T: t, program: build(t), source: set(1), target: set(2)}
	h.from, h.to = connect(t, h.source), connect(t, h.target)
	l := h.start("--buffer-bytes", fmt.Sprintf("%dMiB", budgetMB), "--writers", "4")
	l.until(time.Minute, h.exists)
	h.insert(1, 3, size)
	want := h.newest()
	l.until(time.Minute, func() bool { return !h.reached().Before(want) })
	idle := h.peakMB(l)

	h.target.Member(0).Freeze()
	h.insert(4, documents, size)
	// It reads on until it has no room: what it has then, it has for long.
	l.until(3*time.Second, nil)
	frozen := h.peakMB(l)
	h.target.Member(0).Thaw()
	want = h.newest()
	l.until(patience, func() bool { return !h.reached().Before(want) })
	all := h.peakMB(l)
	t.Logf("resident at most: %d MB before, %d MB while the target was frozen, %d MB in the end", idle, frozen, all)
	if all > budgetMB+marginMB {
		t.Errorf("%d MB were resident, want at most %d", all, budgetMB+marginMB)
	}
	l.end()
	h.equal()
}

// insert inserts documents with these numbers, one by one.
func (h *harness) insert(from, to, size int) {
	filler := strings.Repeat("x", size)
	for id := from; id <= to; id++ {
		body, err := bson.Marshal(bson.D{{Key: "insert", Value: "big"}, {Key: "documents", Value: bson.A{
			bson.D{{Key: "_id", Value: id}, {Key: "filler", Value: filler}},
		}}})
		if err != nil {
			h.Fatal(err)
		}
		if _, err := h.from.Call(h.Context(), call.Command{DB: "shop", Body: body}); err != nil {
			h.Fatal(err)
		}
	}
}

// peakMB is the most memory that a life had resident so far.
func (h *harness) peakMB(l *life) int {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", l.cmd.Process.Pid))
	if os.IsNotExist(err) {
		h.Skip("the system does not say what a process uses")
	}
	if err != nil {
		h.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		var kb int
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &kb); err == nil {
			return kb >> 10
		}
	}
	h.Fatalf("no VmHWM in %s", status)
	return 0
}
