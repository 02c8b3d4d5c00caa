package monitor

import "testing"

// TestSpoolReason: the reason says why the oplog is to be spooled, and, if the spool is full, why that is.
func TestSpoolReason(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ full, want string }{
		{"", "the oplog is spooled to disk: the target is away"},
		{"the limit of 1 GiB is reached", "the oplog is to be spooled to disk (the target is away), and the spool is full: the limit of 1 GiB is reached"},
	} {
		if got := spooled("the target is away", tt.full != "", tt.full); got != tt.want {
			t.Errorf("%s, want %s", got, tt.want)
		}
	}
}
