package applier

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog/batch"
)

// costOf applies a log by 16 lanes whose flushes take 200 ms, and which have one and a half of
// them in their queues, as the log comes twice as fast. It returns how long that takes, and the
// cuts.
func costOf(t *testing.T, l *sourceLog, every time.Duration) (took time.Duration, cuts []checkpoint.Cut) {
	t.Helper()
	const writers, flush, perDoc = 16, 50, 4 * time.Millisecond
	batches := l.batches()
	size := int64(len(batches[0].Items[0].Entry.O)) + opOverhead
	synctest.Test(t, func(t *testing.T) {
		a := fakeApplier(t, &nullTarget{delay: time.Millisecond, perDoc: perDoc}, writers, func(c *Config) {
			c.FlushDocs, c.WindowBytes, c.CutEvery = flush, writers*flush*3/2*size, every
			c.OnCut = func(made checkpoint.Cut) { cuts = append(cuts, made) }
		})
		in, out, end := make(chan batch.Batch), make(chan checkpoint.Applied), make(chan error, 1)
		began := time.Now()
		go func() { end <- a.Run(t.Context(), in, out) }()
		go func() {
			for range out {
			}
		}()
		for _, b := range batches {
			time.Sleep(perDoc * time.Duration(len(b.Items)) / writers / 2)
			in <- b
		}
		close(in)
		must.Succeed(t, <-end)
		took = time.Since(began)
	})
	return took, cuts
}

// TestCutCost: cuts take at most 2 % of the throughput of lanes with full queues, however short
// the interval is: the longer lanes are idle for a cut, the later the next one is made. It is not
// later than that: lanes that are busy until all of them have finished lose nothing.
func TestCutCost(t *testing.T) {
	const ops, perBatch = 50_000, 125
	l := newLog(t)
	for i := range ops {
		l.add(insertOp("db.a", doc(i, 1)))
		if i%perBatch == perBatch-1 {
			l.end()
		}
	}
	without, _ := costOf(t, l, 0)
	with, cuts := costOf(t, l, time.Second)
	longest := time.Duration(0)
	for i := range cuts {
		longest = max(longest, cuts[i].Stall)
	}
	// What the last one took would be made up for after the end.
	if len(cuts) < 2 || with > without+without/cutShare+longest {
		t.Errorf("%s with %d cuts, %s without; the longest wait was %s", with, len(cuts), without, longest)
	}
	t.Logf("%s with %d cuts, %s without; the longest wait was %s", with, len(cuts), without, longest)
}
