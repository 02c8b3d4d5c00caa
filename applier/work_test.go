package applier

import (
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/internal/metric"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// TestWork: every operation is counted once, by kind, by namespace, and with its latency by
// the source's clock, whatever the clock of this process is; and the lanes are busy while
// the target works.
func TestWork(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		ahead time.Duration
		known bool
	}{
		{"equal clocks", 0, true},
		{"the source is ahead", time.Hour, true},
		{"the source is behind", -24 * time.Hour, true},
		{"its clock is not known", 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				var g struct {
					dispatcher metric.Meter
					lanes      metric.Meters
				}
				latency := metric.NewDurations("x", "x")
				var mu sync.Mutex
				spaces := map[oplog.Namespace]NamespaceOps{}
				a := fakeApplier(t, &nullTarget{delay: 5 * time.Millisecond}, 4, func(c *Config) {
					c.Work = Work{
						Dispatcher: &g.dispatcher, Lanes: &g.lanes, Latency: latency,
						SourceClock: func() (time.Time, bool) { return time.Now().Add(tt.ahead), tt.known },
						Tally: func(list []NamespaceOps, _ []SampledOp) {
							mu.Lock()
							defer mu.Unlock()
							for i, n := range list {
								if slices.ContainsFunc(list[:i], func(o NamespaceOps) bool { return o.NS == n.NS }) {
									t.Errorf("a flush has %s twice", n.NS)
								}
								n.Ops, n.Bytes = n.Ops+spaces[n.NS].Ops, n.Bytes+spaces[n.NS].Bytes
								spaces[n.NS.Clone()] = n
							}
						},
					}
				})
				s := begin(t, a)
				l := newLog(t)
				l.add(insertOp("db.a", doc(1, 1)))
				l.add(setOp("db.a", 1, 2))
				l.end()
				l.add(l.transactionOp(insertOp("db.b", doc(2, 2)), insertOp("db.b", doc(3, 3)), insertOp("db.a", doc(4, 4))))
				l.end()
				l.alone(commandOp("db", bson.D{{Key: "create", Value: "c"}}))
				batches := l.batches()
				for i := range batches {
					for k := range batches[i].Items {
						batches[i].Items[k].Entry.Wall = bson.NewDateTimeFromTime(began.Add(tt.ahead - time.Duration(i*1000+k*100)*time.Second))
					}
				}
				send(s, batches)
				close(s.in)
				for range s.out {
				}
				must.Succeed(t, <-s.end)
				if got := a.Stats(); got.Inserts != 4 || got.Updates != 1 || got.Deletes != 0 || got.Commands != 1 || got.Ops != 5 || got.Bytes == 0 {
					t.Errorf("%+v", got)
				}
				if spaces["db.a"].Ops != 3 || spaces["db.b"].Ops != 2 || len(spaces) != 2 || spaces["db.a"].Bytes+spaces["db.b"].Bytes != a.Stats().Bytes {
					t.Errorf("by namespace: %v", spaces)
				}
				want := map[int]uint64{0: 1, 100: 1, 1000: 3, 2000: 1}
				if !tt.known {
					want = map[int]uint64{}
				}
				if got := roughly(latency.Now(), 0, 100, 1000, 2000); !maps.Equal(got, want) {
					t.Errorf("operations by latency in seconds: %v, want %v", got, want)
				}
				var busy time.Duration
				for _, spent := range g.lanes.Spent(time.Now()) {
					busy += spent[metric.Busy]
				}
				// A flush has two rounds; the transaction spans lanes and is the barrier's.
				if busy != 10*time.Millisecond {
					t.Errorf("the lanes were busy for %s", busy)
				}
				before := g.dispatcher.Spent(time.Now())
				time.Sleep(time.Hour)
				if after := g.dispatcher.Spent(time.Now()).Sub(before); before[metric.Busy] == 0 || before[metric.Waiting] == 0 || after[metric.Idle] != time.Hour {
					t.Errorf("the dispatcher was %v, and after its end %v", before, after)
				}
			})
		})
	}
}

// roughly says how many operations took about so many seconds.
func roughly(d *metric.Distribution, seconds ...int) map[int]uint64 {
	out := map[int]uint64{}
	var none metric.Distribution
	for i, n := range d {
		if n == 0 {
			continue
		}
		one := none
		one[i] = n
		took, _ := one.Quantile(1)
		for _, s := range seconds {
			if took >= 0.8*float64(s) && took < 1.3*float64(s)+0.2 {
				out[s] += n
			}
		}
	}
	return out
}

// TestSampled: about one operation in SampleEvery is sampled, with its document's hash and under its own
// namespace; none of a collection whose documents have no hashes.
func TestSampled(t *testing.T) {
	t.Parallel()
	counts := map[uint32]int{}
	w := &writer{Applier: &Applier{}}
	w.cfg.Work.Tally = func(list []NamespaceOps, sampled []SampledOp) {
		for _, op := range sampled {
			if want := map[oplog.Namespace]uint32{"db.a": 1, "db.b": 2}[list[op.In].NS]; op.Doc != want {
				t.Fatalf("document %d in %s", op.Doc, list[op.In].NS)
			}
			counts[op.Doc]++
		}
	}
	ops := make([]plan.Op, 300)
	// All names of a namespace are one string, as those that the dispatcher hands out.
	for i := range ops {
		switch i % 3 {
		case 0:
			ops[i] = plan.Op{Op: oplog.Op{NS: "db.a"}, Hash: 1}
		case 1:
			ops[i] = plan.Op{Op: oplog.Op{NS: "db.b"}, Hash: 2}
		case 2:
			ops[i] = plan.Op{Op: oplog.Op{NS: "db.capped"}}
		}
	}
	const flushes = 1000
	for range flushes {
		ops = append(ops[1:], ops[0]) // another namespace comes first
		w.tally(ops)
	}
	for doc := uint32(1); doc <= 2; doc++ {
		if n, want := counts[doc], flushes*100/sampleEvery; n < want*8/10 || n > want*12/10 {
			t.Errorf("document %d was sampled %d times, want about %d", doc, n, want)
		}
	}
}
