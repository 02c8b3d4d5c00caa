package workload_test

import (
	"bytes"
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/bench/workload"
	"github.com/oplogrep/replicator/oplog"
)

func TestSameSeedSameBytes(t *testing.T) {
	t.Parallel()
	for _, w := range workload.Presets() {
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			w = reduced(w)
			w.Ops = min(w.Ops, 500)
			g, one := ops(t, w)
			again, two := ops(t, w)
			if !reflect.DeepEqual(one, two) { // cmp.Diff takes minutes for that many bytes
				t.Error("operations differ")
			}
			before := collections(t, g)
			if !reflect.DeepEqual(before, collections(t, again)) {
				t.Error("collections differ")
			}
			if !reflect.DeepEqual(before, collections(t, newGenerator(t, w))) {
				t.Error("collections are not the same after the operations")
			}
			logged := slices.Concat(raws(entries(t, w, first))...)
			if !bytes.Equal(logged, slices.Concat(raws(entries(t, w, first))...)) {
				t.Error("logs differ")
			}
			w.Seed++
			if bytes.Equal(logged, slices.Concat(raws(entries(t, w, first))...)) {
				t.Error("another seed makes the same log")
			}
		})
	}
}

func raws(all []entry) [][]byte {
	raws := make([][]byte, len(all))
	for i := range all {
		raws[i] = all[i].raw
	}
	return raws
}

// counts are what operations are, by kind, and updates by what they change.
func counts(all []workload.Op) map[string]int {
	n := map[string]int{}
	for i := range all {
		op := &all[i]
		switch {
		case op.Kind == oplog.KindUpdate && op.Doc != nil:
			n["replace"]++
		case op.Kind == oplog.KindUpdate:
			n["update"]++
			n[shapeOf(op)]++
		default:
			n[op.Kind.String()]++
		}
		if op.Txn > 0 {
			n["txn"]++
		}
	}
	return n
}

func shapeOf(op *workload.Op) string {
	section, _ := op.Diff.IndexErr(0)
	switch section.Key() {
	case "sin":
		return "nested"
	case "sl":
		return "array"
	case "d":
		return "unset"
	}
	fields, _ := section.Value().Document().Elements()
	switch {
	case op.IsPipeline:
		return "dotted"
	case len(fields) == 10:
		return "many"
	case len(fields) == 2:
		return "set"
	case fields[0].Key() == "l":
		return "array"
	default:
		return "text"
	}
}

func TestMixIsThatOfTheWorkload(t *testing.T) {
	t.Parallel()
	w := workload.Workload{
		Ops: 40_000, Documents: 5_000, Namespaces: 7, Mix: workload.Mix{Insert: 3, Update: 5, Delete: 1, Replace: 1},
		Deltas:   workload.Deltas{Set: 4, Many: 1, Nested: 1, Array: 1, Unset: 1, Dotted: 1, Text: 1},
		TxnShare: 0.25, TxnOps: 5, Size: 300,
	}
	_, all := ops(t, w)
	n := counts(all)
	want := map[string]float64{
		"insert": 0.3, "update": 0.5, "delete": 0.1, "replace": 0.1, "txn": 0.25,
		"set": 0.2, "many": 0.05, "nested": 0.05, "array": 0.05, "unset": 0.05, "dotted": 0.05, "text": 0.05,
	}
	for name, share := range want {
		if got := float64(n[name]) / float64(w.Ops); math.Abs(got-share) > 0.015 {
			t.Errorf("%s: a share of %.3f, want %v", name, got, share)
		}
	}
	if len(n) != len(want) {
		t.Errorf("there are %v", n)
	}
	perNS := map[oplog.Namespace]int{}
	for i := range all {
		perNS[all[i].NS]++
	}
	for ns, k := range perNS {
		if share := float64(k) * 7 / float64(w.Ops); math.Abs(share-1) > 0.1 {
			t.Errorf("%s has %.2f of its share", ns, share)
		}
	}
	if len(perNS) != 7 {
		t.Errorf("%d namespaces, want 7", len(perNS))
	}
}

func TestTransactionsAreWhole(t *testing.T) {
	t.Parallel()
	w := workload.Workload{Ops: 2_003, Documents: 500, Mix: workload.Mix{Insert: 1, Update: 1}, TxnShare: 0.7, TxnOps: 6}
	_, all := ops(t, w)
	sizes := map[int]int{}
	for i := range all {
		op := &all[i]
		if op.Txn == 0 {
			continue
		}
		sizes[op.Txn]++
		if op.Kind != oplog.KindInsert && op.Kind != oplog.KindUpdate {
			t.Errorf("operation %d of a transaction is of the kind %s", i, op.Kind)
		}
		last := i == len(all)-1 || all[i+1].Txn != op.Txn
		if op.TxnEnd != last || op.Txn > 1 && sizes[op.Txn-1] != w.TxnOps {
			t.Errorf("operation %d is in transaction %d, the end: %v, after one of %d", i, op.Txn, op.TxnEnd, sizes[op.Txn-1])
		}
	}
	logged := 0
	for _, e := range entries(t, w, first) {
		if e, _ := oplog.ParseEntry(e.raw); e.Command == oplog.CommandApplyOps {
			logged++
		}
	}
	if logged != len(sizes) || logged == 0 {
		t.Errorf("%d entries for %d transactions", logged, len(sizes))
	}
}

func TestSizes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		size   int
		spread float64
	}{{90, 0}, {200, 0}, {2_000, 0.5}, {64 << 10, 0.5}} {
		_, all := ops(t, workload.Workload{Ops: 401, Size: test.size, Spread: test.spread})
		var sizes []int
		for i := range all {
			sizes = append(sizes, len(all[i].Doc))
		}
		slices.Sort(sizes)
		median, low, high := sizes[200], sizes[64], sizes[336]
		if test.spread == 0 && (sizes[0] != test.size || sizes[400] != test.size) {
			t.Errorf("size %d: from %d to %d", test.size, sizes[0], sizes[400])
		}
		if ratio := float64(median) / float64(test.size); ratio < 0.85 || ratio > 1.15 {
			t.Errorf("size %d: a median of %d", test.size, median)
		}
		// A standard deviation to each side.
		if got := math.Log(float64(high)/float64(low)) / 2; math.Abs(got-test.spread) > 0.15 {
			t.Errorf("size %d: a spread of %.2f, want %v", test.size, got, test.spread)
		}
	}
}

// met returns how often each document is updated.
func met(all []workload.Op) []int {
	n := map[string]int{}
	for i := range all {
		if all[i].Kind == oplog.KindUpdate {
			n[string(all[i].NS)+keyOf(all[i].ID)]++
		}
	}
	var counts []int
	for _, k := range n {
		counts = append(counts, k)
	}
	slices.SortFunc(counts, func(a, b int) int { return b - a })
	return counts
}

func sum(n []int) (s int) {
	for _, k := range n {
		s += k
	}
	return s
}

func TestChoice(t *testing.T) {
	t.Parallel()
	preset := func(name string, operations, documents int) []workload.Op {
		w, err := workload.Preset(name)
		if err != nil {
			t.Fatal(err)
		}
		w.Ops, w.Documents = operations, documents
		_, all := ops(t, w)
		return all
	}
	if hot := met(preset("hot", 20_000, 5_000)); math.Abs(float64(sum(hot[:100]))/20_000-0.9) > 0.01 {
		t.Errorf("hot: the first 100 documents take %d of 20,000", sum(hot[:100]))
	}
	if once := met(preset("updates", 5_000, 5_000)); len(once) != 5_000 {
		t.Errorf("updates: %d documents for 5,000 updates", len(once))
	}
	if all := preset("coalesce", 20_000, 2_000); len(documentsOf(all)) > len(all)/8 {
		t.Errorf("coalesce: %d operations on %d documents", len(all), len(documentsOf(all)))
	}
}

func documentsOf(all []workload.Op) map[string]bool {
	ids := map[string]bool{}
	for i := range all {
		ids[string(all[i].NS)+keyOf(all[i].ID)] = true
	}
	return ids
}

func TestPhases(t *testing.T) {
	t.Parallel()
	w, err := workload.Preset("backlog")
	if err != nil {
		t.Fatal(err)
	}
	for operations := range 60 {
		if w.Ops = operations; operations == 0 {
			w.Ops = 2_500
		}
		_, all := ops(t, w)
		n := counts(all)
		inserts := (2*w.Ops + 4) / 5
		want := map[string]int{"insert": inserts, "update": min(inserts, w.Ops-inserts), "delete": max(0, w.Ops-2*inserts)}
		for kind, k := range want {
			if n[kind] != k {
				t.Fatalf("%d operations: %d times %s, want %d", w.Ops, n[kind], kind, k)
			}
		}
		kinds := slices.CompactFunc(slices.Clone(all), func(a, b workload.Op) bool { return a.Kind == b.Kind })
		if len(kinds) > 3 || len(documentsOf(all)) != inserts || len(met(all)) != want["update"] {
			t.Fatalf("%d operations: phases %d, documents %d, updated %d", w.Ops, len(kinds), len(documentsOf(all)), len(met(all)))
		}
	}
}

// A text can be compressed about as much as text can, and documents are alike in
// nothing but their fields.
func TestTextsDiffer(t *testing.T) {
	t.Parallel()
	_, all := ops(t, workload.Workload{Ops: 300, Size: 400})
	seen := map[string]bool{}
	for i := range all {
		text := all[i].Doc.Lookup("s").StringValue()
		if words := strings.Fields(text); len(words) < 20 {
			t.Errorf("a text of %d words: %q", len(words), text)
		}
		seen[text] = true
	}
	if len(seen) < 299 {
		t.Errorf("%d texts for 300 documents", len(seen))
	}
}

func TestSmallEntry(t *testing.T) {
	t.Parallel()
	for _, e := range entries(t, workload.Workload{Ops: 10, Size: 90}, first) {
		if len(e.raw) < 190 || len(e.raw) > 210 {
			t.Errorf("the entry of a document of 90 bytes has %d", len(e.raw))
		}
	}
}

func TestWallAscends(t *testing.T) {
	t.Parallel()
	last := bson.DateTime(0)
	for _, raw := range entries(t, workload.Workload{Ops: 2_500}, first) {
		e, err := oplog.ParseEntry(raw.raw)
		if err != nil {
			t.Fatal(err)
		}
		if e.Wall <= last || int64(e.Wall)/1000 != int64(e.OpTime.TS.T) {
			t.Fatalf("entry %v has the wall clock %v after %v", e.OpTime, e.Wall.Time(), last.Time())
		}
		last = e.Wall
	}
}

func TestNextAllocates(t *testing.T) {
	const operations = 3_000
	for _, w := range workload.Presets() {
		w = reduced(w)
		if w.Ops < operations {
			continue // operations larger than a chunk are allocated separately
		}
		g, l := newGenerator(t, w), newLog(t, w)
		next := testing.AllocsPerRun(1, func() {
			for range operations / 2 {
				if _, _, err := g.Next(); err != nil {
					t.Fatal(err)
				}
			}
		})
		entry := testing.AllocsPerRun(1, func() {
			for range operations / 2 / max(w.TxnOps, 8) {
				if _, _, _, err := l.Next(); err != nil {
					t.Fatal(err)
				}
			}
		})
		if next > operations/2*0.03 || entry > operations/2*0.03 {
			t.Errorf("%s: %v allocations for %d operations, %v for their entries", w.Name, next, operations/2, entry)
		}
	}
}

// A workload goes into a report, and can be read from there.
func TestJSON(t *testing.T) {
	t.Parallel()
	for _, w := range workload.Presets() {
		text, err := json.Marshal(w)
		if err != nil {
			t.Fatal(err)
		}
		var read workload.Workload
		if err := json.Unmarshal(text, &read); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(w, read); diff != "" || strings.Contains(string(text), "Insert") {
			t.Errorf("%s\n%s", text, diff)
		}
	}
}
