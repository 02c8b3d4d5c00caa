package spool

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// TestSalvage: whatever is damaged, what comes before it is read, and the files stay as they are.
func TestSalvage(t *testing.T) {
	t.Parallel()
	whole, replies := sample(t, true)
	all := allNumbers(replies)
	before := 0
	for i, name := range slices.Sorted(maps.Keys(whole)) {
		for at := 0; at < len(whole[name]); at += 97 {
			for _, torn := range []bool{true, false} {
				changed := slices.Clone(whole[name])
				if changed[at] ^= 0x40; torn {
					changed = changed[:at]
				}
				m := whole.with(name, changed)
				dir := t.TempDir()
				m.write(t, dir)
				s, cut, err := Salvage(Config{Dir: dir, ID: "link/1", SegmentBytes: 1000}, true)
				must.Succeed(t, err)
				got := readToEnd(t, s)
				must.Succeed(t, s.Close())
				if !slices.Equal(got, all[:len(got)]) || len(got) < before {
					t.Fatalf("file %d, byte %d, torn %v: read %v", i, at, torn, got)
				}
				if len(got) < len(all) && cut == nil && (at > 0 || i < 2 || !torn) {
					t.Errorf("file %d, byte %d, torn %v: the damage is not told", i, at, torn)
				}
				if after := imageOf(t, dir); !maps.EqualFunc(m, after, slices.Equal) {
					t.Errorf("file %d, byte %d, torn %v: the files have changed", i, at, torn)
				}
			}
		}
		s, _, err := Salvage(Config{Dir: saved(t, whole, i+1), ID: "link/1", SegmentBytes: 1000}, false)
		must.Succeed(t, err)
		before = len(readToEnd(t, s))
		must.Succeed(t, s.Close())
	}
	if before != len(all) {
		t.Errorf("of the whole, %d entries are read", before)
	}
}

// saved writes the first files of an image.
func saved(t *testing.T, m image, n int) (dir string) {
	t.Helper()
	part := image{}
	for _, name := range slices.Sorted(maps.Keys(m))[:n] {
		part[name] = m[name]
	}
	dir = t.TempDir()
	part.write(t, dir)
	return dir
}

// readToEnd reads everything, and checks that nothing can be stored.
func readToEnd(t *testing.T, s *Spool) (got []int) {
	t.Helper()
	if err := tryStore(t, s, reply(t, 0, 100)); err == nil {
		t.Error("it can be stored into")
	}
	_, last, ok := s.Bounds()
	if !ok {
		return nil
	}
	ctx, stop := context.WithCancelCause(t.Context())
	defer stop(nil)
	out := make(chan oplog.Reply)
	go func() { _ = s.Read(ctx, out) }()
	for r := range out {
		got = append(got, numbers(r)...)
		if r.Entries[len(r.Entries)-1].OpTime.Equal(last) {
			stop(nil)
		}
	}
	return got
}

// TestSalvageInUse: a folder that another process uses is not read with lock, though nothing is stored in it yet: that may come.
func TestSalvageInUse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cfg := Config{Dir: dir, ID: "link/1"}
	s := must.Get(Open(cfg))(t)
	if _, _, err := Salvage(cfg, true); !errors.Is(err, ErrInUse) {
		t.Errorf("it is read: %v", err)
	}
	free, _, err := Salvage(cfg, false)
	must.Succeed(t, err)
	must.Succeed(t, free.Close())
	must.Succeed(t, s.Close())
	left, _, err := Salvage(cfg, true) // with the lock file that the other one has left
	must.Succeed(t, err)
	must.Succeed(t, left.Close())
}
