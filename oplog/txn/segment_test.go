package txn

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/oplogrep/replicator/internal/testkit/must"
)

// Any number of chains share one file, and each reads back its own parts.
func TestSegmentIsShared(t *testing.T) {
	const chains = 500
	a := newAssembler(t, Config{MemoryBytes: 1})
	for round := range 3 { // interleaved
		for c := range chains {
			prev := null
			if round > 0 {
				prev = (round-1)*chains + c + 1
			}
			l := line{at: round*chains + c + 1, prev: prev, cmd: list([]string{opOf(round, c)}, partial)}
			if _, err := add(t, a, l); err != nil {
				t.Fatal(err)
			}
		}
	}
	file := a.segments.current
	if file.users != chains {
		t.Errorf("%d users of the file, want %d", file.users, chains)
	}
	for c, n := a.oldest, 0; c != nil; c, n = c.newer, n+1 {
		if len(c.store.extents) != 3 || c.store.extents[2].file != file {
			t.Fatalf("chain %d is in %d places", n, len(c.store.extents))
		}
	}
	for n, info := range a.Open() {
		var want int64
		for round := range 3 {
			want += headerSize + int64(len(list([]string{opOf(round, n)}, partial)))
		}
		if info.Spilled != want {
			t.Fatalf("chain %d has %d bytes in the file, want %d", n, info.Spilled, want)
		}
	}
	for c := range chains {
		r, err := add(t, a, line{at: 3*chains + c + 1, prev: 2*chains + c + 1, cmd: list(nil, count(3))})
		if err != nil {
			t.Fatal(err)
		}
		want := strings.Join([]string{opOf(0, c), opOf(1, c), opOf(2, c)}, " ")
		if got := strings.Join(opsOf(t, r.Txn), " "); got != want {
			t.Fatalf("chain %d has %s, want %s", c, got, want)
		}
		must.Succeed(t, r.Txn.Close())
		if _, err := file.Stat(); (err != nil) != (c == chains-1) { // closed with the last one
			t.Fatalf("the file after the end of chain %d: %v", c, err)
		}
	}
	if a.segments.current != nil {
		t.Error("the closed file is to take the next part")
	}
}

func opOf(round, chain int) string { return fmt.Sprintf("i%d%03d", round+1, chain) }

// A full file is followed by a new one, and is removed when no chain has parts in
// it.
func TestSegmentsFollowEachOther(t *testing.T) {
	a := newAssembler(t, Config{MemoryBytes: 1})
	frame := int64(len(list(ops("i1"), partial))) + headerSize
	a.segments.limit = 2 * frame
	var files []*segment
	at := 0
	step := func(prev int, session byte) {
		t.Helper()
		at++
		if _, err := add(t, a, part(at, prev, session, 1, list(ops("i1"), partial))); err != nil {
			t.Fatal(err)
		}
		if n := len(files); n == 0 || files[n-1] != a.segments.current {
			files = append(files, a.segments.current)
		}
	}
	step(null, 1) // file 0
	step(null, 2)
	step(1, 1) // 1
	step(3, 1)
	step(4, 1) // 2, with one part
	if len(files) != 3 {
		t.Fatalf("%d files, want 3", len(files))
	}
	open := func(want ...bool) {
		t.Helper()
		for i, f := range files {
			if _, err := f.Stat(); (err == nil) != want[i] || err != nil && !errors.Is(err, os.ErrClosed) {
				t.Errorf("file %d after entry %d: %v", i, at, err)
			}
		}
	}
	open(true, true, true)
	if spilled := a.oldest.store.spilled(); spilled != 4*frame || len(a.oldest.store.extents) != 3 {
		t.Errorf("%d bytes in %d places, want %d in 3", spilled, len(a.oldest.store.extents), 4*frame)
	}
	at++
	r, err := add(t, a, part(at, 5, 1, 1, list(nil, count(4))))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(opsOf(t, r.Txn), " "); got != "i1 i1 i1 i1" {
		t.Errorf("the operations are %s", got)
	}
	for range 2 { // the second time does nothing
		must.Succeed(t, r.Txn.Close())
	}
	open(true, false, false) // the other chain has a part in the first
	at++
	if _, err := add(t, a, part(at, 2, 2, 1, abortCmd)); err != nil {
		t.Fatal(err)
	}
	open(false, false, false)
	step(null, 3) // and on
	open(false, false, false, true)
}

// A transaction is read and closed concurrently with the Assembler writing to the
// same file.
func TestSegmentTwoGoroutines(t *testing.T) {
	a := newAssembler(t, Config{MemoryBytes: 1})
	a.segments.limit = 1000
	var wait sync.WaitGroup
	for i := range 100 {
		at := 3*i + 1
		var r Result
		for _, l := range []line{
			part(at, null, 1, int64(i), list(ops("i1 i2"), partial)),
			part(at+1, at, 1, int64(i), list(ops("i3"), partial)),
			part(at+2, at+1, 1, int64(i), list(nil, count(3))),
		} {
			var err error
			if r, err = add(t, a, l); err != nil {
				t.Fatal(err)
			}
		}
		wait.Go(func() {
			n := 0
			for _, err := range r.Txn.Ops() {
				if err != nil {
					t.Error(err)
				}
				n++
			}
			if n != 3 {
				t.Errorf("%d operations, want 3", n)
			}
			if err := r.Txn.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if a.segments.current != nil {
		t.Error("a file is open that nobody uses")
	}
}
