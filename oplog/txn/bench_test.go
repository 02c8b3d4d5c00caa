package txn

import (
	"testing"

	"github.com/oplogrep/replicator/oplog"
)

// tick gives an entry the next timestamp.
func tick(e *oplog.Entry, n *uint32) {
	*n++
	e.OpTime.TS.T, e.OpTime.TS.I = 2000, *n
}

func TestAllocs(t *testing.T) {
	a := newAssembler(t, Config{})
	// An open chain, so that sessions are searched.
	if _, err := add(t, a, part(1, null, 9, 1, list(ops("i1"), partial))); err != nil {
		t.Fatal(err)
	}
	n := uint32(1)
	for _, tt := range []struct {
		name string
		line line
		most float64
	}{
		{"an insert", line{at: 2, prev: none, op: "i1"}, 0},
		{"a retryable write", line{at: 2, prev: null, session: 9, number: 1, op: "u1"}, 0},
		{"a transaction in one entry", part(2, null, 2, 1, list(ops("i1 u2 d3"))), 4},
	} {
		e := tt.line.entry(t)
		got := testing.AllocsPerRun(100, func() {
			tick(&e, &n)
			if _, err := a.Add(&e); err != nil {
				t.Fatal(err)
			}
		})
		if got > tt.most {
			t.Errorf("adding %s: %v allocations, at most %v wanted", tt.name, got, tt.most)
		}
	}
}

func BenchmarkAdd(b *testing.B) {
	for _, bm := range []struct {
		name string
		line line
	}{
		{"insert", line{at: 1, prev: none, op: "i1"}},
		{"transaction of 4", part(1, null, 1, 1, list(ops("i1 i2 u3 d4")))},
	} {
		b.Run(bm.name, func(b *testing.B) {
			a := newAssembler(b, Config{})
			e := bm.line.entry(b)
			var n uint32
			b.ReportAllocs()
			for b.Loop() {
				tick(&e, &n)
				r, err := a.Add(&e)
				if err != nil {
					b.Fatal(err)
				}
				if r.Txn != nil {
					if err := r.Txn.Close(); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
