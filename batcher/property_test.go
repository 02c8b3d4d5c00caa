package batcher

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/testkit/corpus"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/batch"
	"github.com/oplogrep/replicator/oplog/txn"
)

// wanted is the expected result for an entry, computed in the simplest way.
type wanted struct {
	name      string // "" if there is nothing to apply
	ops       []string
	alone     bool
	cost      int
	bytes     int64
	optime    oplog.OpTime
	inDoubt   bool
	fetchFrom oplog.OpTime
}

// direct runs a log through an Assembler. Entries applied before are not in the
// result.
func direct(t testing.TB, entries []oplog.Entry, after oplog.OpTime) []wanted {
	t.Helper()
	a, err := txn.New(txn.Config{ApplyAfter: after, SpillDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	var all []wanted
	for i := range entries {
		e := &entries[i]
		r, err := a.Add(e)
		if err != nil {
			t.Fatal(err)
		}
		w := wanted{cost: 1, bytes: int64(len(e.Raw)), optime: e.OpTime, fetchFrom: r.FetchFrom, inDoubt: r.InDoubt}
		switch {
		case r.Outcome == txn.Past:
			continue
		case r.Txn != nil:
			w.cost, w.bytes = max(1, r.Txn.Count), max(w.bytes, r.Txn.Bytes)
			for op, err := range r.Txn.Ops() {
				if err != nil {
					t.Fatal(err)
				}
				w.ops = append(w.ops, tell(&op))
				w.alone = w.alone || single(&op)
			}
			if len(w.ops) > 0 {
				w.name = e.OpTime.String()
			}
			must.Succeed(t, r.Txn.Close())
		case r.Outcome == txn.Pass && e.Kind != oplog.KindNoop:
			w.name, w.alone = e.OpTime.String(), single(&e.Op)
		}
		all = append(all, w)
	}
	must.Succeed(t, a.Close())
	return all
}

func tell(op *oplog.Op) string {
	return fmt.Sprintf("%s %s %s", op.Kind, op.NS, op.O)
}

func single(op *oplog.Op) bool {
	return op.Kind == oplog.KindCommand || op.Kind != oplog.KindNoop &&
		(strings.HasSuffix(string(op.NS), ".system.views") && strings.Count(string(op.NS), ".") == 2 ||
			slices.Contains([]oplog.Namespace{"admin.system.users", "admin.system.roles"}, op.NS))
}

// check runs replies through a Batcher and compares the batches with the expected
// results. It returns the number of batches.
func check(t testing.TB, cfg Config, replies []oplog.Reply, want []wanted) int {
	t.Helper()
	var in, out int64
	queue := make(chan oplog.Reply, len(replies))
	for _, r := range replies {
		in += r.Bytes
		queue <- r
	}
	close(queue)
	cfg.SpillDir = t.TempDir()
	cfg.Release = func(bytes int64) { out += bytes }
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	batches := make(chan batch.Batch, 1)
	var got []batch.Batch
	var wg sync.WaitGroup
	wg.Go(func() { err = b.Run(t.Context(), queue, batches) })
	for x := range batches {
		got = append(got, x)
	}
	wg.Wait()
	if err != nil {
		t.Fatal(err)
	}
	// Map the log's entries to the batches' spans, one entry at a time.
	at := 0
	var prev []wanted
	for n := range got {
		x := &got[n]
		out += x.Bytes
		if x.Entries < 1 || at+x.Entries > len(want) {
			t.Fatalf("batch %d has %d entries, %d are left", n, x.Entries, len(want)-at)
		}
		span := want[at : at+x.Entries]
		at += x.Entries
		checkSpan(t, b.cfg, n, x, span)
		// All entries were available from the start, so no batch ends early.
		if first := span[0]; n > 0 && !got[n-1].Individually && !first.alone && within(b.cfg, append(slices.Clone(prev), first)) {
			t.Fatalf("batch %d could have taken the first entry of the next", n-1)
		}
		prev = span
	}
	if at != len(want) {
		t.Fatalf("%d of %d entries are in batches", at, len(want))
	}
	if in != out {
		t.Fatalf("%d bytes came, %d are given back", in, out)
	}
	if n := b.assembler.Bytes(); n != 0 {
		t.Fatalf("%d bytes are still held", n)
	}
	return len(got)
}

// checkSpan compares batch n with the entries that it has.
func checkSpan(t testing.TB, cfg Config, n int, x *batch.Batch, span []wanted) {
	t.Helper()
	last := span[len(span)-1]
	if x.Last != last.optime || x.FetchFrom != last.fetchFrom || x.InDoubt != last.inDoubt {
		t.Fatalf("batch %d ends at %s from %s, in doubt %t, want %s from %s, %t", n, x.Last, x.FetchFrom, x.InDoubt, last.optime, last.fetchFrom, last.inDoubt)
	}
	items, weight, alone := 0, 0, false
	for _, w := range span {
		if w.name == "" {
			continue
		}
		weight += w.cost
		alone = alone || w.alone
		if items == len(x.Items) {
			t.Fatalf("batch %d lacks %s", n, w.name)
		}
		item := &x.Items[items]
		items++
		if item.Entry.OpTime.String() != w.name || !slices.Equal(itemOps(t, item), w.ops) {
			t.Fatalf("batch %d has %s, want %s", n, item.Entry.OpTime, w.name)
		}
	}
	if items != len(x.Items) || weight != x.Weight || alone != x.Individually || alone && items != 1 {
		t.Fatalf("batch %d: %d items of weight %d, alone %v; want %d of %d, %v",
			n, len(x.Items), x.Weight, x.Individually, items, weight, alone)
	}
	if !alone && len(span) > 1 && !within(cfg, span) {
		t.Fatalf("batch %d of %d entries exceeds the limits", n, len(span))
	}
}

// within reports whether entries are within the limits of a batch.
func within(cfg Config, entries []wanted) bool {
	cost, bytes := 0, int64(0)
	for _, w := range entries {
		cost += w.cost
		bytes += w.bytes
	}
	return cost <= cfg.MaxOps && bytes <= cfg.MaxBytes
}

func itemOps(t testing.TB, item *batch.Item) []string {
	t.Helper()
	if item.Txn == nil {
		return nil
	}
	var ops []string
	for op, err := range item.Txn.Ops() {
		if err != nil {
			t.Fatal(err)
		}
		ops = append(ops, tell(&op))
	}
	must.Succeed(t, item.Txn.Close())
	return ops
}

// drawTokens returns a random log in the notation of log.
func drawTokens(t *rapid.T) []string {
	var tokens []string
	parts := map[int]int{} // 1: open, 2: prepared
	element := rapid.SampledFrom([]string{
		"i1", "u2", "d3", "i4*300", "i5@a.b", "i6*50", "u7", "i8", "i9", "d10", "n1",
		"i1@db.system.views", "u2@admin.system.users", "c:create",
	})
	list := func() string {
		return "(" + strings.Join(rapid.SliceOfN(element, 1, 4).Draw(t, "ops"), ",") + ")"
	}
	for range rapid.IntRange(1, 40).Draw(t, "entries") {
		id := rapid.IntRange(1, 3).Draw(t, "transaction")
		switch k := rapid.IntRange(0, 12).Draw(t, "kind"); {
		case k < 5:
			tokens = append(tokens, element.Draw(t, "op"))
		case k == 5:
			tokens = append(tokens, "t"+list())
		case k == 6:
			tokens = append(tokens, "a"+list())
		case parts[id] == 2 && k%2 == 0:
			tokens = append(tokens, fmt.Sprintf("k%d", id))
			delete(parts, id)
		case parts[id] != 0 && k == 7, parts[id] == 2:
			tokens = append(tokens, fmt.Sprintf("x%d", id))
			delete(parts, id)
		case k == 8:
			tokens = append(tokens, fmt.Sprintf("q%d%s", id, list()))
			parts[id] = 2
		case parts[id] == 1 && k == 9:
			tokens = append(tokens, fmt.Sprintf("e%d%s", id, list()))
			delete(parts, id)
		default:
			tokens = append(tokens, fmt.Sprintf("p%d%s", id, list()))
			parts[id] = 1
		}
	}
	return tokens
}

// drawReplies distributes entries over replies of random size.
func drawReplies(t *rapid.T, entries []oplog.Entry) []oplog.Reply {
	var replies []oplog.Reply
	for len(entries) > 0 || rapid.IntRange(0, 3).Draw(t, "more") == 0 {
		n := min(len(entries), rapid.IntRange(0, 12).Draw(t, "reply"))
		replies = append(replies, oplog.Reply{Entries: entries[:n:n], Bytes: int64(rapid.IntRange(0, 1000).Draw(t, "bytes"))})
		entries = entries[n:]
	}
	return replies
}

// The batches, concatenated, are the log: every entry that has an effect, once, in
// order, within the limits, and individually if required; started at any point
// reached before.
func TestBatchesAreTheLog(t *testing.T) {
	alone, resumed := 0, 0
	rapid.Check(t, func(r *rapid.T) {
		l := newLog()
		var entries []oplog.Entry
		for _, token := range drawTokens(r) {
			entries = append(entries, l.entry(t, 1000, token))
		}
		cfg := Config{MaxOps: rapid.IntRange(1, 12).Draw(r, "max ops"), MaxBytes: int64(rapid.IntRange(1, 2000).Draw(r, "max bytes"))}
		all := direct(t, entries, oplog.OpTime{})
		for _, w := range all {
			if w.alone && w.name != "" {
				alone++
			}
		}
		check(t, cfg, drawReplies(r, entries), all)

		// Run again, resuming after some entry.
		from := rapid.IntRange(0, len(all)-1).Draw(r, "applied")
		cfg.ApplyAfter = all[from].optime
		first := slices.IndexFunc(entries, func(e oplog.Entry) bool { return e.OpTime == all[from].fetchFrom })
		rest := direct(t, entries[first:], cfg.ApplyAfter)
		if len(rest) != len(all)-from-1 {
			r.Fatalf("%d entries after entry %d of %d", len(rest), from, len(all))
		}
		check(t, cfg, drawReplies(r, entries[first:]), all[from+1:])
		resumed++
	})
	if alone == 0 || resumed == 0 {
		t.Errorf("nothing was tested: %d alone, %d resumed", alone, resumed)
	}
}

// The logs of a real server, with several limits and sizes of replies.
func TestRecordings(t *testing.T) {
	scenarios, err := corpus.Open("../testdata/corpus")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range scenarios {
		t.Run(s.Name, func(t *testing.T) {
			var entries []oplog.Entry
			for e, err := range s.Oplog() {
				if err != nil {
					t.Fatal(err)
				}
				entries = append(entries, *e)
			}
			want := direct(t, entries, oplog.OpTime{})
			sizes := []int{1, 7, DefaultMaxOps}
			if race.Enabled {
				sizes = sizes[1:2] // the others hand over as much, in more or in fewer batches
			}
			for _, maxOps := range sizes {
				size := max(1, min(len(entries), 3*maxOps/2))
				var replies []oplog.Reply
				for c := range slices.Chunk(entries, size) {
					replies = append(replies, oplog.Reply{Entries: c, Bytes: int64(100 * len(c))})
				}
				t.Logf("%d entries, at most %d operations: %d batches", len(entries), maxOps, check(t, Config{MaxOps: maxOps}, replies, want))
			}
		})
	}
}
