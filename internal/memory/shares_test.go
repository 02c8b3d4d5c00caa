package memory

import "testing"

// TestShares: whatever the memory is, the shares and what they may exceed it by leave some
// of it to the collector, with as many parts as may run.
func TestShares(t *testing.T) {
	t.Parallel()
	for _, total := range []int64{MinLink, 256 << 20, 320 << 20, 512 << 20, 1 << 30, 16 << 30} {
		for parts := range Parts(total) + 1 {
			left := total - program - int64(parts)*part
			s := SharesOf(total, parts)
			applying, copying := s.Buffer+2*s.Window+s.Window/2+s.Txn, s.Copied+fetched
			if most := left - left/4; applying > most || copying > most && parts == 0 {
				t.Errorf("%d MiB, %d parts: %d MiB applying, %d MiB copying, at most %d MiB", total>>20, parts, applying>>20, copying>>20, most>>20)
			}
		}
	}
	if s := SharesOfPart(); s.Buffer+2*s.Window+s.Window/2+s.Txn > part-part/4 {
		t.Errorf("a part takes %+v", s)
	}
	for total, want := range map[int64]int{MinLink: 1, 320<<20 - 1: 1, 320 << 20: 2, 16 << 30: 2} {
		if got := Parts(total); got != want {
			t.Errorf("with %d MiB, %d parts run at a time, want %d", total>>20, got, want)
		}
	}
}
