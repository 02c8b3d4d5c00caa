package spool

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestCovers: what the files may be needed for is known without reading all of them.
func TestCovers(t *testing.T) {
	t.Parallel()
	cfg := Config{Dir: t.TempDir(), SegmentBytes: 500}
	covers := func(n int, want bool) {
		t.Helper()
		if got, err := Covers(cfg.Dir, at(n)); err != nil || got != want {
			t.Errorf("from %d: %t, %v", n, got, err)
		}
	}
	covers(1, false)
	s := mustOpen(t, cfg)
	for n := 10; n <= 30; n++ {
		storeAll(t, s, reply(t, 100, n))
	}
	must.Succeed(t, s.Forget(at(20)))
	first, _, _ := s.Bounds()
	must.Succeed(t, s.Close())
	from := int(first.TS.I)
	covers(5, false)
	covers(from-1, false)
	covers(from, true)
	covers(29, true)
	covers(30, false)
	covers(31, false)
	files := must.Get(filepath.Glob(filepath.Join(cfg.Dir, "*.spool")))(t)
	must.Succeed(t, os.Truncate(files[len(files)-1], 10))
	covers(31, true) // Open decides
}
