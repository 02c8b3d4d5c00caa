package txn

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// startChain adds parts of one chain and returns the Assembler and the chain.
func startChain(t *testing.T, cfg Config, parts ...string) (*Assembler, *chain) {
	t.Helper()
	a := newAssembler(t, cfg)
	for i, p := range parts {
		if _, err := add(t, a, part(i+1, i, 1, 1, list(ops(p), partial))); err != nil {
			t.Fatal(err)
		}
	}
	return a, a.oldest
}

func TestSpillKeepsToBudget(t *testing.T) {
	size := int64(len(list(ops("i1 i2"), partial)))
	a := newAssembler(t, Config{MemoryBytes: 5 * size})
	at := 0
	add1 := func(prev int, session byte) {
		t.Helper()
		at++
		if _, err := add(t, a, part(at, prev, session, 1, list(ops("i1 i2"), partial))); err != nil {
			t.Fatal(err)
		}
		if held := a.Bytes(); held > 5*size {
			t.Fatalf("%d bytes kept after entry %d", held, at)
		}
	}
	add1(null, 1)
	add1(1, 1)
	add1(2, 1)
	add1(null, 2)
	add1(4, 2)
	if a.Bytes() != 5*size {
		t.Fatalf("%d bytes kept, want all of %d", a.Bytes(), 5*size)
	}
	add1(5, 2) // the other chain is as large as this one gets: this one goes
	infos := a.Open()
	frame := size + headerSize
	if infos[0].Spilled != 0 || infos[1].Spilled != 3*frame {
		t.Fatalf("files of %d and %d bytes", infos[0].Spilled, infos[1].Spilled)
	}
	add1(6, 2)
	add1(7, 2)
	add1(null, 3) // now the other is the largest
	infos = a.Open()
	if infos[0].Spilled != 3*frame || infos[1].Spilled != 3*frame || infos[2].Spilled != 0 {
		t.Fatalf("files of %d, %d and %d bytes", infos[0].Spilled, infos[1].Spilled, infos[2].Spilled)
	}
	r, err := add(t, a, part(20, 8, 2, 1, list(ops("i9"), count(11))))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(opsOf(t, r.Txn), " "); got != "i1 i2 i1 i2 i1 i2 i1 i2 i1 i2 i9" {
		t.Errorf("half from the file, half from memory: %s", got)
	}
	if a.Bytes() != 3*size { // until it is closed
		t.Errorf("%d bytes kept before Close, want %d", a.Bytes(), 3*size)
	}
	must.Succeed(t, r.Txn.Close())
	if a.Bytes() != size {
		t.Errorf("%d bytes kept after Close, want %d", a.Bytes(), size)
	}
}

func TestSpillFilesAreGone(t *testing.T) {
	for _, named := range []bool{false, true} {
		dir := t.TempDir()
		a, c := startChain(t, Config{MemoryBytes: 1, SpillDir: dir}, "i1", "i2")
		if left, _ := os.ReadDir(dir); len(left) != 0 {
			t.Skip("an open file keeps its name here")
		}
		if named { // as if an open file cannot be removed
			file := c.store.extents[0].file
			must.Succeed(t, os.WriteFile(file.Name(), nil, 0o600))
			file.named = true
		}
		r := must.Get(add(t, a, part(9, 2, 1, 1, list(nil, count(2)))))(t)
		must.Succeed(t, r.Txn.Close())
		if left, _ := os.ReadDir(dir); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

func TestSpillReadErrors(t *testing.T) {
	first := int64(len(list(ops("i1"), partial)))
	tests := []struct {
		name string
		harm func(f *segment) error
		want error
		says string
	}{
		{"a changed byte", func(f *segment) error {
			_, err := f.WriteAt([]byte{0xff}, headerSize+10)
			return err
		}, ErrSpillCorrupt, "part at byte 0 differs"},
		{"a changed byte in the second part", func(f *segment) error {
			_, err := f.WriteAt([]byte{0xff}, f.size-1)
			return err
		}, ErrSpillCorrupt, "differs"},
		{"a changed checksum", func(f *segment) error {
			_, err := f.WriteAt([]byte{1, 2, 3, 4}, 4)
			return err
		}, ErrSpillCorrupt, "differs"},
		{"a length beyond the file", func(f *segment) error {
			_, err := f.WriteAt([]byte{0xff, 0xff, 0xff, 0xff}, 0)
			return err
		}, ErrSpillCorrupt, "a part of 4294967295 bytes at byte 0, where they end at byte"},
		{"a wrong length", func(f *segment) error {
			_, err := f.WriteAt([]byte{byte(first - 1)}, 0)
			return err
		}, ErrSpillCorrupt, "differs"},
		{"cut off in a part", func(f *segment) error { return f.Truncate(f.size - 1) }, ErrSpillCorrupt, "it ends at byte"},
		{"cut off in a header", func(f *segment) error { return f.Truncate(3) }, ErrSpillCorrupt, "it ends at byte 3"},
		{"closed", func(f *segment) error { return f.Close() }, os.ErrClosed, "file already closed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a, c := startChain(t, Config{MemoryBytes: 1}, "i1", "i2")
			file := c.store.extents[0].file
			r, err := add(t, a, part(9, 2, 1, 1, list(nil, count(2))))
			if err != nil {
				t.Fatal(err)
			}
			must.Succeed(t, tt.harm(file))
			var got error
			for _, err := range r.Txn.Ops() {
				if got != nil {
					t.Fatal("operations after an error")
				}
				got = err
			}
			spill, ok := errors.AsType[*SpillError](got)
			if !ok || spill.Writing || spill.OpTime != optime(1) || spill.Path != file.Name() || !errors.Is(got, tt.want) ||
				!strings.Contains(got.Error(), tt.says) || !strings.Contains(got.Error(), "read back the transaction that starts at 1000:1 t1") {
				t.Errorf("%v, want it to say %q", got, tt.says)
			}
			if err := r.Txn.Close(); (err != nil) != (tt.name == "closed") {
				t.Errorf("close: %v", err)
			}
		})
	}
}

func TestSpillWriteErrors(t *testing.T) {
	check := func(t *testing.T, err, want error, path string) {
		t.Helper()
		spill, ok := errors.AsType[*SpillError](err)
		if !ok || !spill.Writing || spill.OpTime != optime(1) || spill.Path != path || !errors.Is(err, want) ||
			!strings.Contains(err.Error(), "make room there") {
			t.Errorf("%v", err)
		}
	}
	t.Run("no directory", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "missing")
		a := newAssembler(t, Config{MemoryBytes: 1, SpillDir: dir})
		_, err := add(t, a, part(1, null, 1, 1, list(nil, partial)))
		check(t, err, os.ErrNotExist, dir)
	})
	t.Run("closed", func(t *testing.T) {
		a, c := startChain(t, Config{MemoryBytes: 1}, "i1")
		file := c.store.extents[0].file
		must.Succeed(t, file.Close())
		path := file.Name()
		_, err := add(t, a, part(2, 1, 1, 1, list(nil, partial)))
		check(t, err, os.ErrClosed, path)
		if err := a.Close(); err == nil {
			t.Error("closing the closed file went well")
		}
	})
	t.Run("disk full", func(t *testing.T) {
		full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
		if err != nil {
			t.Skip("there is no full device")
		}
		size := int64(len(list(ops("i1"), partial)))
		a, _ := startChain(t, Config{MemoryBytes: size}, "i1")
		a.segments.current = &segment{File: full}
		_, err = add(t, a, part(2, 1, 1, 1, list(ops("i1"), partial)))
		check(t, err, syscall.ENOSPC, "/dev/full")
	})
	t.Run("another chain", func(t *testing.T) {
		a, _ := startChain(t, Config{MemoryBytes: 300}, "i1 i2 i3")
		a.segments.dir = filepath.Join(t.TempDir(), "missing")
		_, err := add(t, a, part(2, null, 2, 1, list(ops("i1"), partial)))
		check(t, err, os.ErrNotExist, a.segments.dir)
	})
}

// A chain that ends without effect releases its file in every case, and an error in
// doing so is returned.
func TestSpillDropErrors(t *testing.T) {
	for name, last := range map[string]line{
		"abort":            part(9, 1, 1, 1, abortCmd),
		"abort by session": part(9, null, 1, 1, abortCmd),
		"session goes on":  {at: 9, prev: null, session: 1, number: 2, op: "i1"},
		"past":             part(9, 1, 1, 1, list(nil, count(1))),
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{MemoryBytes: 1}
			if name == "past" {
				cfg.ApplyAfter = optime(9)
			}
			a, c := startChain(t, cfg, "i1")
			file := c.store.extents[0].file
			must.Succeed(t, file.Close())
			if _, err := add(t, a, last); !errors.Is(err, os.ErrClosed) || !strings.Contains(err.Error(), file.Name()) ||
				!strings.Contains(err.Error(), "starts at 1000:1 t1") {
				t.Errorf("closing the closed file: %v", err)
			}
		})
	}
}

// Operations stay valid after the iterator has advanced, also those that were read
// back from a file.
func TestSpilledOpsStayValid(t *testing.T) {
	a, _ := startChain(t, Config{MemoryBytes: 1}, "i1 i2", "i3", "i4 c5")
	r, err := add(t, a, part(9, 3, 1, 1, list(ops("i6"), count(6))))
	if err != nil {
		t.Fatal(err)
	}
	var kept []oplog.Op
	for op, err := range r.Txn.Ops() {
		if err != nil {
			t.Fatal(err)
		}
		kept = append(kept, op)
	}
	must.Succeed(t, r.Txn.Close())
	var got []string
	for _, op := range kept {
		got = append(got, read(t, op))
	}
	if s := strings.Join(got, " "); s != "i1 i2 i3 i4 c5 i6" {
		t.Errorf("the operations are %s", s)
	}
}

// Two readers of one transaction do not interfere.
func TestSpillTwoReaders(t *testing.T) {
	a, _ := startChain(t, Config{MemoryBytes: 1}, "i1", "i2", "i3")
	r, err := add(t, a, part(9, 3, 1, 1, list(nil, count(3))))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for op, err := range r.Txn.Ops() {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, read(t, op))
		got = append(got, opsOf(t, r.Txn)...)
	}
	if s := strings.Join(got, " "); s != "i1 i1 i2 i3 i2 i1 i2 i3 i3 i1 i2 i3" {
		t.Errorf("the operations are %s", s)
	}
	must.Succeed(t, r.Txn.Close())
}

func TestSegmentParts(t *testing.T) {
	f, err := createSegment(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []bson.Raw{{}, {1}, []byte(strings.Repeat("x", 1000))} {
		at := f.size
		must.Succeed(t, f.append(part))
		got, err := f.read(at, f.size)
		if err != nil || string(got) != string(part) {
			t.Errorf("a part of %d bytes comes back as %d, %v", len(part), len(got), err)
		}
	}
	must.Succeed(t, f.close())
}
