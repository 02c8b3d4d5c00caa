package spool

import (
	"path/filepath"
	"testing"

	"golang.org/x/sync/errgroup"
)

// TestWithin opens and removes a spool in the folder of another that is opened and
// removed at the same time, as the spools of a link and of its resyncs are.
func TestWithin(t *testing.T) {
	outer := filepath.Join(t.TempDir(), "a", "link")
	inner := filepath.Join(outer, "resync")
	var group errgroup.Group
	for _, dir := range []string{outer, inner} {
		group.Go(func() error {
			for range 300 {
				s, err := openTest(t, Config{Dir: dir})
				if err != nil {
					return err
				}
				if err := s.Remove(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}
