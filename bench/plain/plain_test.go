package plain

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.uber.org/goleak"

	"github.com/oplogrep/replicator/bench/ends"
	"github.com/oplogrep/replicator/bench/workload"
	"github.com/oplogrep/replicator/internal/testkit/compare"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// filled is an embedded set with a workload's initial data, and a client of it.
func filled(t *testing.T, seed int64, w workload.Workload) (*ends.End, *Client) {
	t.Helper()
	end, err := ends.StartEmbedded(t.Context(), seed, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(end.Close)
	gen, err := workload.New(w)
	if err != nil {
		t.Fatal(err)
	}
	collections, err := gen.Collections()
	if err != nil {
		t.Fatal(err)
	}
	if err := end.Fill(t.Context(), collections); err != nil {
		t.Fatal(err)
	}
	c, err := Connect(t.Context(), end.URI)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.WithoutCancel(t.Context())) })
	return end, c
}

func preset(t *testing.T, name string) workload.Workload {
	t.Helper()
	w, err := workload.Preset(name)
	if err != nil {
		t.Fatal(err)
	}
	w.Ops, w.Documents, w.Seed = 300, 300, 11
	return w
}

// TestPace: writing the operations one by one gives the state of the workload's log, with
// hot documents and transactions, however many are in flight.
func TestPace(t *testing.T) {
	w := preset(t, "mixed")
	w.Hot, w.HotShare, w.TxnShare = 2, 0.5, 0.2
	want, _, err := ends.Start(t.Context(), nil, ends.What{Kind: ends.Played, Seed: 1, Workload: w})
	if err != nil {
		t.Fatal(err)
	}
	defer want.Close()
	got, c := filled(t, 2, w)
	var acks atomic.Int64
	const rate = 3000
	start := time.Now()
	err = c.Pace(t.Context(), w, rate, func(sent, acked time.Time) {
		acks.Add(1)
		if sent.Before(start) || acked.Before(sent) {
			t.Errorf("acknowledged %s after it was sent, %s after the start", acked.Sub(sent), sent.Sub(start))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if acks.Load() != 300 {
		t.Errorf("%d operations of 300 were told of", acks.Load())
	}
	// The last transaction may have more operations than are due after it began.
	if least := time.Second * (300 - 20) / rate; time.Since(start) < least {
		t.Errorf("300 operations at %d a second took %s", rate, time.Since(start))
	}
	report, err := compare.Compare(t.Context(), compare.Cluster(want.Set), compare.Cluster(got.Set), compare.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if !report.Equal() {
		t.Error(report.String())
	}
}

func TestPaceFails(t *testing.T) {
	w := preset(t, "updates")
	_, c := filled(t, 1, workload.Workload{Name: "nothing", Documents: 1})
	if err := c.Pace(t.Context(), w, 1000, nil); !errors.Is(err, errMissed) {
		t.Errorf("updates of nothing: %v", err)
	}
	work, err := Prepare(w, 2)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Write(t.Context(), work, 10); !errors.Is(err, errMissed) {
		t.Errorf("bulk updates of nothing: %v", err)
	}
	if err := c.Pace(t.Context(), w, 0, nil); err == nil {
		t.Error("a pace of nothing a second")
	}
	if err := c.Write(t.Context(), work, 0); err == nil {
		t.Error("bulk writes of nothing")
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	cancel(cause)
	if err := c.Pace(ctx, preset(t, "small-inserts"), 1, nil); !errors.Is(err, cause) {
		t.Errorf("cancelled: %v", err)
	}
	if _, err := Connect(t.Context(), "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=100"); err == nil {
		t.Error("connected to nobody")
	}
}

// TestPrepare: each operation is there once, and all of a document are one writer's,
// in their order.
func TestPrepare(t *testing.T) {
	for _, name := range []string{"coalesce", "small-inserts"} {
		w := preset(t, name)
		if name == "small-inserts" { // divided by collection
			w.Namespaces = 1000
		}
		work, err := Prepare(w, 5)
		if err != nil {
			t.Fatal(err)
		}
		n, owner, busy := 0, map[uint64]int{}, 0
		for i, ops := range work.writers {
			for _, op := range ops {
				n++
				if other, ok := owner[op.key]; ok && other != i {
					t.Fatalf("%s: a document of %s is written by %d and %d", name, op.ns, other, i)
				}
				owner[op.key] = i
			}
			if len(ops) > 0 {
				busy++
			}
		}
		if n != 300 || work.Ops != 300 || work.Bytes < 300*10 {
			t.Errorf("%s: %d operations, said to be %d with %d bytes", name, n, work.Ops, work.Bytes)
		}
		if busy < 3 {
			t.Errorf("%s: only %d writers of 5 have something to do", name, busy)
		}
	}
	w := workload.Workload{Name: "types", File: "../../testdata/corpus/types/oplog.bson"}
	if _, err := Prepare(w, 2); !errors.Is(err, ErrCommands) {
		t.Errorf("commands: %v", err)
	}
}

// TestProbe: with one set as both ends everything is seen at once.
func TestProbe(t *testing.T) {
	_, c := filled(t, 1, workload.Workload{Name: "nothing", Documents: 1})
	ctx, cancel := context.WithCancelCause(t.Context())
	var mu sync.Mutex
	n := 0
	err := Probe(ctx, c, c, time.Millisecond, func(sent, acked, seen time.Time) {
		mu.Lock()
		defer mu.Unlock()
		if n++; n == 5 {
			cancel(nil)
		}
		if acked.Before(sent) || seen.Before(acked) {
			t.Errorf("sent %s, acknowledged %s, seen %s", sent, acked, seen)
		}
	})
	if err != nil || n != 5 {
		t.Errorf("%d probes, %v", n, err)
	}
	// Probes that never arrive are not reported.
	_, other := filled(t, 2, workload.Workload{Name: "nothing", Documents: 1})
	ctx, cancel = context.WithCancelCause(t.Context())
	time.AfterFunc(100*time.Millisecond, func() { cancel(nil) })
	if err := Probe(ctx, c, other, time.Millisecond, func(_, _, _ time.Time) { t.Error("a probe was seen") }); err != nil {
		t.Error(err)
	}
	c.Close(t.Context())
	if err := Probe(t.Context(), c, c, time.Millisecond, func(_, _, _ time.Time) {}); err == nil || !strings.Contains(err.Error(), "probe") {
		t.Errorf("a client that was closed: %v", err)
	}
}

// TestProbeMajority: a probe is acknowledged by a majority, and looked for from then on.
func TestProbeMajority(t *testing.T) {
	set := mongosim.StartTest(t, mongosim.Options{Members: 3, ElectionTimeout: time.Hour, TTLInterval: -1})
	if err := set.AwaitSynced(t.Context()); err != nil {
		t.Fatal(err)
	}
	c, err := Connect(t.Context(), set.URI())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	set.Cut(0, 1)
	set.Cut(0, 2)
	const alone = 300 * time.Millisecond
	ctx, cancel := context.WithCancelCause(t.Context())
	var healed atomic.Bool
	time.AfterFunc(alone, func() { healed.Store(true); set.HealAll() })
	err = Probe(ctx, c, c, time.Millisecond, func(sent, acked, _ time.Time) {
		if !healed.Load() || acked.Sub(sent) < alone/2 {
			t.Errorf("acknowledged after %s, without a majority", acked.Sub(sent))
		}
		cancel(nil)
	})
	if err != nil {
		t.Error(err)
	}
}

// TestParts: a batch keeps the order of what meets one document, and is cut only where
// that makes fewer commands.
func TestParts(t *testing.T) {
	const i, u, d = oplog.KindInsert, oplog.KindUpdate, oplog.KindDelete
	for name, tt := range map[string]struct {
		kinds   []oplog.Kind
		keys    []uint64
		want    [][]int
		ordered bool
	}{
		"distinct documents":      {[]oplog.Kind{i, u, d, i}, []uint64{1, 2, 3, 4}, [][]int{{0, 1, 2, 3}}, false},
		"one kind":                {[]oplog.Kind{u, u, u}, []uint64{1, 1, 1}, [][]int{{0, 1, 2}}, true},
		"kinds in turns":          {[]oplog.Kind{i, u, i, u, i, u}, []uint64{1, 2, 3, 1, 4, 3}, [][]int{{0, 1, 2, 4}, {3, 5}}, false},
		"a document's whole life": {[]oplog.Kind{i, u, d}, []uint64{1, 1, 1}, [][]int{{0, 1, 2}}, true},
	} {
		b := &bulk{met: map[uint64]int{}}
		index := map[mongo.WriteModel]int{}
		for n := range tt.kinds {
			model := mongo.NewInsertOneModel()
			index[model] = n
			b.add(&operation{key: tt.keys[n], kind: tt.kinds[n], model: model})
		}
		parts, ordered := b.parts()
		var got [][]int
		for _, part := range parts {
			var list []int
			for _, model := range part {
				list = append(list, index[model])
			}
			got = append(got, list)
		}
		if ordered != tt.ordered || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %v, ordered: %t; want %v, %t", name, got, ordered, tt.want, tt.ordered)
		}
	}
}
