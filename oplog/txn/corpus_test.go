package txn

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// recorded returns a real server's entries for a scenario.
func recorded(t testing.TB, scenario string) []bson.Raw {
	t.Helper()
	data := must.Get(os.ReadFile(filepath.Join("..", "..", "testdata", "corpus", scenario, "oplog.bson")))(t)
	var entries []bson.Raw
	for len(data) >= 4 {
		n := int(binary.LittleEndian.Uint32(data))
		entries = append(entries, bson.Raw(data[:n:n]))
		data = data[n:]
	}
	return entries
}

// sum counts the outcomes of a recording.
type sum struct {
	Pass, Held, Transactions, ApplyOps, Aborted int
	Ops, WithCommand                            int
}

func TestCorpus(t *testing.T) {
	tests := []struct {
		scenario string
		want     sum
	}{
		{"txn-small", sum{Pass: 5, Transactions: 23, Ops: 99, WithCommand: 1}},
		{"txn-large", sum{Pass: 4, Held: 1, Transactions: 1, Ops: 45}},
		{"txn-prepared", sum{Pass: 5, Held: 4, Transactions: 2, Aborted: 1, Ops: 49}},
		{"apply-ops", sum{Pass: 5, ApplyOps: 2, Ops: 5}},
		{"fuzzy-clone", sum{Pass: 1572, Transactions: 52, Ops: 174}},
		{"random", sum{Pass: 2892, Transactions: 100, Ops: 359}},
		{"failover", sum{}},
	}
	for _, tt := range tests {
		t.Run(tt.scenario, func(t *testing.T) {
			entries := recorded(t, tt.scenario)
			for _, memory := range []int64{0, 1} {
				a := newAssembler(t, Config{MemoryBytes: memory})
				var got sum
				for _, raw := range entries {
					e := must.Get(oplog.ParseEntry(raw))(t)
					r := must.Get(a.Add(&e))(t)
					got.add(t, &e, &r)
					if open := slices.ContainsFunc(a.Open(), func(o OpenInfo) bool { return o.Prepared }); r.InDoubt != open {
						t.Errorf("after %s a prepared transaction is open: %t, want %t", e.OpTime, r.InDoubt, open)
					}
				}
				if tt.scenario == "failover" {
					tt.want.Pass = len(entries)
				}
				if got != tt.want {
					t.Errorf("with %d bytes of memory: %+v, want %+v", memory, got, tt.want)
				}
				if at, open := a.OldestOpen(); open {
					t.Errorf("%s is still open", at)
				}
			}
		})
	}
}

func (s *sum) add(t *testing.T, e *oplog.Entry, r *Result) {
	t.Helper()
	switch r.Outcome {
	case Pass:
		s.Pass++
	case Partial:
		s.Held++
	case Aborted:
		s.Aborted++
	case Committed:
		n := 0
		for op, err := range r.Txn.Ops() {
			if err != nil {
				t.Fatal(err)
			}
			if op.Upsert != (r.Txn.Kind == KindApplyOps && op.Kind == oplog.KindUpdate) {
				t.Errorf("entry %s: an %s with upsert %v", e.OpTime, op.Kind, op.Upsert)
			}
			n++
		}
		if n != r.Txn.Count {
			t.Errorf("transaction %s says %d operations and has %d", r.Txn.OpTime, r.Txn.Count, n)
		}
		s.Ops += n
		if r.Txn.MustBeProcessedIndividually {
			s.WithCommand++
		}
		if r.Txn.Kind == KindTransaction {
			s.Transactions++
		} else {
			s.ApplyOps++
		}
		must.Succeed(t, r.Txn.Close())
	default:
		t.Errorf("entry %s: %s", e.OpTime, r.Outcome)
	}
}

// The details of the recorded prepared transaction of 16 MB.
func TestCorpusPrepared(t *testing.T) {
	a := newAssembler(t, Config{})
	var last *Transaction
	for _, raw := range recorded(t, "txn-prepared") {
		e := must.Get(oplog.ParseEntry(raw))(t)
		r := must.Get(a.Add(&e))(t)
		if e.OpTime.TS.I == 116 { // a write between prepare and commit
			open := a.Open()
			if len(open) != 1 || !open[0].Prepared || open[0].Parts != 2 || open[0].Count != 45 || open[0].Start.TS.I != 71 {
				t.Errorf("open transactions before the commit: %+v", open)
			}
			if !r.InDoubt {
				t.Error("it is not told that a transaction is prepared")
			}
			if at, ok := a.OldestOpen(); !ok || at.TS.I != 71 {
				t.Errorf("the oldest open transaction began at %s, %v", at, ok)
			}
		}
		if r.Txn == nil {
			continue
		}
		if last != nil {
			must.Succeed(t, last.Close())
		}
		last = r.Txn
	}
	if last == nil || !last.Prepared || last.Kind != KindTransaction || last.Parts != 2 || last.Count != 45 ||
		last.Start.TS.I != 71 || last.OpTime.TS.I != 117 || last.CommitTimestamp.I != 115 || last.TxnNumber != 6 ||
		last.Bytes < 16<<20 {
		t.Errorf("the last transaction: %+v", last)
	}
	if a.Bytes() < 16<<20 {
		t.Errorf("%d bytes kept before Close", a.Bytes())
	}
	must.Succeed(t, last.Close())
}
