package process

import (
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/mongosim"
)

// TestMemoryBacklog: a backlog of small entries, with a target that is frozen and then slower
// than the source, does not take more memory than the program was given. Parsed, such an
// entry takes three times its bytes.
func TestMemoryBacklog(t *testing.T) {
	skipBig(t)
	h := newMemoryHarness(t, 11)
	l := h.start("--memory", fmt.Sprintf("%dMiB", memoryMB))
	l.until(time.Minute, h.exists)
	h.small("small", 0, 1)
	l.until(patience, func() bool { return h.count("shop", "small") == 1 })
	h.target.Member(0).Freeze()
	h.small("small", 1, 600_000)
	l.until(3*time.Second, nil)
	frozen := h.peakMB(l)
	if frozen < 50 {
		t.Errorf("%d MB were resident while the target was frozen: it has not read a backlog", frozen)
	}
	h.target.Member(0).Thaw()
	h.within(l, "frozen", frozen)
}

// TestMemoryTransaction: a transaction of 60 MB, in entries of up to 16 MB, with operations
// that take several times their bytes, does not take more memory either.
func TestMemoryTransaction(t *testing.T) {
	skipBig(t)
	h := newMemoryHarness(t, 21)
	l := h.start("--memory", fmt.Sprintf("%dMiB", memoryMB))
	l.until(time.Minute, h.exists)
	h.small("small", 0, 1)
	idle := h.peakMB(l)
	session := mongo.NewSession(h.from, mongo.NewSessionID(), 1)
	err := session.InTxn(t.Context(), true, func(txn *mongo.Txn) error {
		for from := 1; from < 600_000; from += batchOfSmall {
			body, err := bson.Marshal(bson.D{{Key: "insert", Value: "small"}, {Key: "documents", Value: smallDocuments(from, batchOfSmall)}})
			if err != nil {
				return err
			}
			if _, err := txn.Call(t.Context(), mongo.Command{DB: "shop", Body: body}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	h.within(l, "idle", idle)
}

// within waits until everything is applied, and checks the memory that it took.
func (h *harness) within(l *life, what string, before int) {
	want := h.newest()
	l.until(patience, func() bool { return !h.reached().Before(want) })
	all := h.peakMB(l)
	h.Logf("resident at most: %d MB %s, %d MB in the end", before, what, all)
	if all > memoryMB {
		h.Errorf("%d MB were resident, want at most %d", all, memoryMB)
	}
	l.end()
}

func newMemoryHarness(t *testing.T, seed int64) *harness {
	t.Helper()
	set := func(seed int64) *mongosim.Set {
		return mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: seed, OplogBytes: 2 << 30, TTLInterval: -1})
	}
	h := &harness{TB: t, program: build(t), source: set(seed), target: set(seed + 1)}
	h.from, h.to = connect(t, h.source), connect(t, h.target)
	return h
}

const batchOfSmall = 10_000

// small inserts n small documents, from a number on.
func (h *harness) small(coll string, from, n int) {
	for end := from + n; from < end; from += batchOfSmall {
		h.run("shop", bson.D{{Key: "insert", Value: coll}, {Key: "documents", Value: smallDocuments(from, min(batchOfSmall, end-from))}})
	}
}

func smallDocuments(from, n int) bson.A {
	list := make(bson.A, 0, n)
	for i := range n {
		list = append(list, bson.D{{Key: "_id", Value: from + i}, {Key: "n", Value: i % 10}})
	}
	return list
}
