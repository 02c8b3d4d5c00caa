package spool

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// image is the files of a spool, by name.
type image map[string][]byte

func imageOf(t testing.TB, dir string) image {
	t.Helper()
	m := image{}
	for _, path := range files(t, dir) {
		b := must.Get(os.ReadFile(path))(t)
		m[filepath.Base(path)] = b
	}
	return m
}

func (m image) write(t testing.TB, dir string) {
	t.Helper()
	for _, path := range files(t, dir) {
		must.Succeed(t, os.Remove(path))
	}
	for name, b := range m {
		must.Succeed(t, os.WriteFile(filepath.Join(dir, name), b, 0o600))
	}
}

func (m image) names() []string {
	var list []string
	for name := range m {
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}

func (m image) with(name string, b []byte) image {
	n := maps.Clone(m)
	if n[name] = b; b == nil {
		delete(n, name)
	}
	return n
}

// sample is a spool of three files with entries 1 to 9.
func sample(t testing.TB, sync bool) (image, []oplog.Reply) {
	t.Helper()
	dir := t.TempDir()
	s := mustOpen(t, Config{Dir: dir, SegmentBytes: 1000})
	var replies []oplog.Reply
	for n := 1; n <= 12; n += 2 {
		r := reply(t, 10, n, n+1)
		replies = append(replies, r)
		if sync {
			storeAll(t, s, r) // which is synced at its end
		}
	}
	if !sync {
		storeAll(t, s, replies...)
	}
	must.Succeed(t, s.Close())
	m := imageOf(t, dir)
	if len(m) != 3 {
		t.Fatalf("%d files", len(m))
	}
	return m, replies
}

// lostEnd is the end of a file that was cut off.
type lostEnd struct{ offset, bytes, entries int64 }

// found opens the files in m and reads everything, compared with the entries that were
// stored. It returns the first entry and the number of entries.
func found(t testing.TB, dir string, m image, replies []oplog.Reply) (begin, n int, lost []lostEnd, err error) {
	t.Helper()
	m.write(t, dir)
	s, err := openTest(t, Config{Dir: dir, SegmentBytes: 1000, Observer: func(e event.Event) {
		if e.Message() == "unfinished end of the spool cut off" {
			number := func(key string) int64 { return event.Attr(e, key).Int64() }
			lost = append(lost, lostEnd{number(keyOffset), number(keyBytes), number(keyEntries)})
		}
	}})
	if err != nil {
		return 0, 0, nil, err
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	got, err := drain(t, s)
	if err != nil {
		t.Errorf("what Open takes can be read: %v", err)
	}
	var all []oplog.Entry
	for _, r := range replies {
		all = append(all, r.Entries...)
	}
	begin = -1
	for _, r := range got {
		for i := range r.Entries {
			e := &r.Entries[i]
			if begin < 0 {
				begin = slices.IndexFunc(all, func(f oplog.Entry) bool { return f.OpTime == e.OpTime })
			}
			if begin < 0 || begin+n >= len(all) || !bytes.Equal(all[begin+n].Raw, e.Raw) {
				t.Fatalf("entry %d is %s", n, e.Raw)
			}
			n++
		}
	}
	// It continues from there.
	if err := tryStore(t, s, reply(t, 0, 100)); err != nil {
		t.Errorf("store: %v", err)
	}
	return max(begin, 0), n, lost, nil
}

// TestKilledAtEveryByte: whatever is missing at the end, complete records are found.
func TestKilledAtEveryByte(t *testing.T) {
	m, replies := sample(t, false)
	dir := t.TempDir()
	names := m.names()
	for i, name := range names {
		before := 0
		for _, earlier := range names[:i] {
			before += bytes.Count(m[earlier], []byte(recordMagic))
		}
		b := m[name]
		for size := range len(b) + 1 {
			left := image{name: b[:size]}
			for _, earlier := range names[:i] {
				left[earlier] = m[earlier]
			}
			_, n, lost, err := found(t, dir, left, replies)
			if err != nil {
				t.Fatalf("%s with %d bytes: %v", name, size, err)
			}
			// A record is whole if the next one, or the end, is not after size.
			records := 0
			for at := bytes.Index(b, []byte(recordMagic)); at >= 0 && at < size; records++ {
				end := len(b)
				if next := bytes.Index(b[at+1:], []byte(recordMagic)); next >= 0 {
					end = at + 1 + next
				}
				if end > size {
					break
				}
				at = end
			}
			if n != 2*(before+records) {
				t.Fatalf("%s with %d bytes: %d entries, want %d", name, size, n, 2*(before+records))
			}
			if len(lost) > 1 || len(lost) == 1 && lost[0].offset+lost[0].bytes != int64(size) {
				t.Fatalf("%s with %d bytes: cut: %+v", name, size, lost)
			}
		}
	}
}

// TestDamageAtEveryByte: every changed byte is detected. In the part that may not have
// been synced, the end is lost; elsewhere it is damage.
func TestDamageAtEveryByte(t *testing.T) {
	for _, sync := range []bool{false, true} {
		m, replies := sample(t, sync)
		dir := t.TempDir()
		names := m.names()
		for i, name := range names {
			last := i == len(names)-1
			first := bytes.Index(m[name], []byte(recordMagic))
			final := bytes.LastIndex(m[name], []byte(recordMagic))
			for at := range m[name] {
				b := bytes.Clone(m[name])
				b[at] ^= 1 << (at % 8)
				_, n, lost, err := found(t, dir, m.with(name, b), replies)
				d, damaged := errors.AsType[*DamagedError](err)
				// A bad record that was synced before a later one was written is damage.
				wantDamage := !last || at < first || sync && at < final
				switch {
				case err != nil && !damaged:
					t.Fatalf("%s, byte %d: %v", name, at, err)
				case damaged != wantDamage:
					t.Fatalf("%s, byte %d (records from %d to %d, synced %v): %v", name, at, first, final, sync, err)
				case damaged && (d.File != filepath.Join(dir, name) || d.Offset > int64(at)):
					t.Fatalf("%s, byte %d: %v", name, at, err)
				case !damaged && (n >= 12 || len(lost) != 1 || lost[0].entries > int64(12-n)):
					t.Fatalf("%s, byte %d: %d entries, %+v", name, at, n, lost)
				}
			}
		}
	}
}

// TestLostFiles: a missing file is detected, except at the ends, where it cannot be
// distinguished from one that never existed.
func TestLostFiles(t *testing.T) {
	m, replies := sample(t, true)
	names := m.names()
	dir := t.TempDir()
	for i, name := range names {
		begin, n, _, err := found(t, dir, m.with(name, nil), replies)
		_, damaged := errors.AsType[*DamagedError](err)
		if damaged != (i == 1) || !damaged && begin+n > 12 {
			t.Errorf("without %s: %d entries from %d on, %v", name, n, begin, err)
		}
	}
	shorter := m[names[0]][:bytes.LastIndex(m[names[0]], []byte(recordMagic))]
	if _, _, _, err := found(t, dir, m.with(names[0], shorter), replies); err == nil {
		t.Error("records are missing at the end of the first file")
	}
	if _, _, _, err := found(t, dir, m.with(names[1], m[names[0]]), replies); err == nil {
		t.Error("the first file twice")
	}
	begin := bytes.Index(m[names[1]], []byte(recordMagic))
	other := append(bytes.Clone(m[names[0]][:begin]), m[names[1]][begin:]...)
	if _, _, _, err := found(t, dir, m.with(names[0], other), replies); err == nil {
		t.Error("records of the second file in the first")
	}
}

// TestLostRecords: a missing record is detected, whatever follows it.
func TestLostRecords(t *testing.T) {
	for _, sync := range []bool{false, true} {
		m, replies := sample(t, sync)
		dir := t.TempDir()
		for _, name := range m.names() {
			b := m[name]
			begin := bytes.Index(b, []byte(recordMagic))
			end := begin + 1 + bytes.Index(b[begin+1:], []byte(recordMagic))
			_, n, _, err := found(t, dir, m.with(name, slices.Concat(b[:begin], b[end:])), replies)
			if _, ok := errors.AsType[*DamagedError](err); !ok {
				t.Errorf("%s without its first record, synced %v: %d entries, %v", name, sync, n, err)
			}
		}
	}
}

// TestDamagedWhileOpen changes a file while the spool is open.
func TestDamagedWhileOpen(t *testing.T) {
	for name, change := range map[string]func(path string, b []byte) error{
		"a byte":    func(path string, b []byte) error { b[200] ^= 1; return os.WriteFile(path, b, 0o600) },
		"the end":   func(path string, b []byte) error { return os.Truncate(path, int64(len(b)-1)) },
		"the head":  func(path string, b []byte) error { b[70] ^= 1; return os.WriteFile(path, b, 0o600) },
		"all of it": func(path string, _ []byte) error { return os.Truncate(path, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{Dir: t.TempDir()}
			s := mustOpen(t, cfg)
			storeAll(t, s, reply(t, 100, 1, 2, 3))
			path := files(t, cfg.Dir)[0]
			b, err := os.ReadFile(path)
			if err == nil {
				err = change(path, b)
			}
			if err != nil {
				t.Fatal(err)
			}
			got, err := drain(t, s)
			if d, ok := errors.AsType[*DamagedError](err); !ok || d.File != path || len(got) > 0 {
				t.Errorf("run: %v %v", allNumbers(got), err)
			}
			err = s.Commands(t.Context(), at(1), at(3).TS, func(*oplog.Entry) error { return nil })
			if _, ok := errors.AsType[*DamagedError](err); !ok {
				t.Errorf("commands: %v", err)
			}
		})
	}
}

func TestClear(t *testing.T) {
	dir := t.TempDir()
	image{fileName(1): []byte("not a spool, but longer than the preamble of one would be, by some bytes")}.write(t, dir)
	_, err := openTest(t, Config{Dir: dir})
	if _, ok := errors.AsType[*DamagedError](err); !ok {
		t.Fatal(err)
	}
	must.Succeed(t, Clear(dir))
	storeAll(t, mustOpen(t, Config{Dir: dir}), reply(t, 0, 1))
}

// FuzzOpen changes the files of a spool. Open must accept or reject them, and the
// entries that are read must be consecutive stored ones.
func FuzzOpen(f *testing.F) {
	m, replies := sample(f, true)
	names := m.names()
	f.Add(uint8(0), uint16(0), uint16(0), []byte(nil))
	f.Add(uint8(2), uint16(400), uint16(1000), []byte(recordMagic))
	f.Add(uint8(1), uint16(0), uint16(5000), []byte(fileMagic))
	f.Add(uint8(2), uint16(0), uint16(5000), m[names[2]])
	f.Fuzz(func(t *testing.T, file uint8, from, length uint16, patch []byte) {
		name := names[int(file)%len(names)]
		b := m[name]
		begin := min(int(from), len(b))
		end := min(begin+int(length), len(b))
		changed := slices.Concat(b[:begin], patch, b[end:])
		_, _, _, err := found(t, t.TempDir(), m.with(name, changed), replies)
		if err != nil {
			if _, ok := errors.AsType[*DamagedError](err); !ok {
				t.Errorf("open: %v", err)
			}
		}
	})
}

// writeUntilKilled is the process of TestKill. It never returns.
func writeUntilKilled(dir string) {
	s, err := Open(Config{Dir: dir, ID: "x", SegmentBytes: 200_000, MinFree: 1})
	if err != nil {
		say(err)
		os.Exit(1)
	}
	_, last, _ := s.Bounds()
	say("last", last.TS.I)
	in := make(chan oplog.Reply)
	go func() {
		t := &testing.T{}
		for n := int(last.TS.I) + 1; ; n += 3 {
			in <- reply(t, (n%17)*500, n, n+1, n+2)
			say("taken", n)
		}
	}()
	say(s.Store(context.Background(), in))
	os.Exit(1)
}

func say(words ...any) {
	if _, err := fmt.Fprintln(os.Stdout, words...); err != nil {
		os.Exit(1)
	}
}

// TestKill repeatedly kills a process that writes.
func TestKill(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts and kills processes: not with -short")
	}
	dir := t.TempDir()
	taken := 0
	for round := range 8 {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), "SPOOL_KILL_DIR="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		must.Succeed(t, cmd.Start())
		lines := bufio.NewScanner(out)
		begun := 0 // with which entry
		for lines.Scan() {
			if _, err := fmt.Sscanf(lines.Text(), "taken %d", &taken); err != nil && !strings.HasPrefix(lines.Text(), "last ") {
				t.Fatal(lines.Text())
			}
			if begun == 0 {
				begun = taken
			}
			if taken-begun > 100+70*round && cmd.ProcessState == nil {
				_ = cmd.Process.Kill()
			}
		}
		_ = cmd.Wait()
		s := mustOpen(t, Config{Dir: dir, ID: "x", SegmentBytes: 200_000})
		got, err := drain(t, s)
		if err != nil {
			t.Fatal(err)
		}
		list := allNumbers(got)
		want(t, "in order", slices.Equal(list, sequence(1, len(list))), true)
		// A reply is stored before the next one is received.
		if len(list) < taken-1 {
			t.Errorf("%d entries, %d were taken", len(list), taken)
		}
		must.Succeed(t, s.Close())
	}
	t.Logf("%d entries were written", taken)
}

// TestTornPreamble: a last file whose preamble was not written, though the file has its size, holds no entry: the spool continues without it.
func TestTornPreamble(t *testing.T) {
	t.Parallel()
	m, replies := sample(t, false)
	names := m.names()
	last := names[len(names)-1]
	for _, size := range []int64{0, preambleSize("link/1") - 1, preambleSize("link/1")} {
		dir := t.TempDir()
		_, n, lost, err := found(t, dir, m.with(last, make([]byte, size)), replies)
		if err != nil || n == 0 || len(lost) != 1 || lost[0] != (lostEnd{0, size, 0}) {
			t.Errorf("%d bytes: %d entries, lost %v, %v", size, n, lost, err)
		}
	}
	var damaged *DamagedError
	if _, _, _, err := found(t, t.TempDir(), m.with(last, make([]byte, preambleSize("link/1")+1)), replies); !errors.As(err, &damaged) {
		t.Errorf("what was written after it is lost: %v", err)
	}
}
