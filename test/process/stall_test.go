package process

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/mongosim"
)

// memoryMB is the memory that the program is given, and must not exceed.
const memoryMB = 256

// skipBig skips a test that moves hundreds of megabytes where that is too much.
func skipBig(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("it moves hundreds of megabytes: not with -short")
	}
}

// TestFrozenTarget: a target that stops answering while the source writes
// documents of nearly the largest size does not make the program grow beyond its
// budget, and all of them arrive once it answers again.
func TestFrozenTarget(t *testing.T) {
	skipBig(t)
	const (
		documents = 24
		size      = 15_000_000
	)
	set := func(seed int64) *mongosim.Set {
		return mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: seed, OplogBytes: 2 << 30, TTLInterval: -1})
	}
	h := &harness{TB: t, program: build(t), source: set(1), target: set(2)}
	h.from, h.to = connect(t, h.source), connect(t, h.target)
	l := h.start("--memory", fmt.Sprintf("%dMiB", memoryMB), "--writers", "4")
	l.until(time.Minute, h.exists)
	h.insert("big", 1, 3, size)
	want := h.newest()
	l.until(time.Minute, func() bool { return !h.reached().Before(want) })
	idle := h.peakMB(l)

	h.target.Member(0).Freeze()
	h.insert("big", 4, documents, size)
	// It reads on until it has no room: what it has then, it has for long.
	l.until(3*time.Second, nil)
	frozen := h.peakMB(l)
	h.target.Member(0).Thaw()
	want = h.newest()
	l.until(patience, func() bool { return !h.reached().Before(want) })
	all := h.peakMB(l)
	t.Logf("resident at most: %d MB before, %d MB while the target was frozen, %d MB in the end", idle, frozen, all)
	if all > memoryMB {
		t.Errorf("%d MB were resident, want at most %d", all, memoryMB)
	}
	l.end()
	h.equal()
}

// TestFrozenTargetCopy: the same while documents of the largest size are copied, and
// others come in, which go to disk.
func TestFrozenTargetCopy(t *testing.T) {
	skipBig(t)
	const (
		// before is how many documents there are in each collection when the copy
		// begins, during how many come in while the target is frozen.
		collections, before, during = 8, 4, 2
		size                        = 16<<20 - 64
		// How many lanes there are must not matter.
		lanes = 8
	)
	h := &harness{
		TB: t, program: build(t),
		source: mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 3, OplogBytes: 2 << 30, TTLInterval: -1}),
		target: mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 4, OplogBytes: 64 << 20, TTLInterval: -1}),
	}
	h.from, h.to = connect(t, h.source), connect(t, h.target)
	each := func(from, to int) {
		for c := range collections {
			h.insert("big"+strconv.Itoa(c), from, to, size)
		}
	}
	each(1, before)
	h.newSpool()
	l := h.start("--memory", fmt.Sprintf("%dMiB", memoryMB), "--writers", strconv.Itoa(lanes), "--clone-workers", strconv.Itoa(lanes))
	l.until(patience, func() bool { return h.state().Copy != nil })
	idle := h.peakMB(l)
	there := func() (n int) {
		for c := range collections {
			n += h.count("shop", "big"+strconv.Itoa(c))
		}
		return n
	}
	l.until(patience, func() bool { return there() >= 2 })
	if n := there(); n > collections*before/2 {
		t.Fatalf("%d documents are there already", n)
	}
	h.target.Member(0).Freeze()
	each(before+1, before+during)
	l.until(3*time.Second, nil)
	frozen := h.peakMB(l)
	h.target.Member(0).Thaw()
	l.until(patience, func() bool { return h.state().Copy.Phase != checkpoint.Copying })
	copied := h.peakMB(l)
	want := h.newest()
	l.until(patience, func() bool {
		st := h.state()
		return st.Copy.Phase == checkpoint.Copied && !st.Applied.Before(want)
	})
	all := h.peakMB(l)
	t.Logf("resident at most: %d MB before, %d MB while the target was frozen, %d MB when all was copied, %d MB in the end", idle, frozen, copied, all)
	if all > memoryMB {
		t.Errorf("%d MB were resident, want at most %d", all, memoryMB)
	}
	l.end()
	h.equal()
}

// insert inserts documents with these numbers into a collection of shop, one by one.
func (h *harness) insert(coll string, from, to, size int) {
	filler := strings.Repeat("x", size)
	for id := from; id <= to; id++ {
		h.run("shop", bson.D{{Key: "insert", Value: coll}, {Key: "documents", Value: bson.A{
			bson.D{{Key: "_id", Value: id}, {Key: "filler", Value: filler}},
		}}})
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
