package mongo

import (
	"testing"
	"time"
	"unsafe"
)

// slept returns a time that was taken before the machine was suspended for d: the
// monotonic clock stopped meanwhile.
func slept(t *testing.T, at time.Time, d time.Duration) time.Time {
	t.Helper()
	apart := at.Add(-d)
	// The second word of a Time with a monotonic reading is that reading.
	type words struct {
		wall uint64
		mono int64
	}
	(*words)(unsafe.Pointer(&apart)).mono += int64(d)
	if got, all := at.Sub(apart), at.Round(0).Sub(apart.Round(0)); got != 0 || all != d {
		t.Fatalf("the clocks are %s and %s apart, not 0 and %s", got, all, d)
	}
	return apart
}

// TestOverdue: a command is not sent late according to either clock: the machine may have
// been suspended, or its clock set back.
func TestOverdue(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, tt := range []struct {
		name string
		by   time.Time
		want bool
	}{
		{"no limit", time.Time{}, false},
		{"in time", now.Add(time.Minute), false},
		{"late", now.Add(-time.Nanosecond), true},
		{"suspended", slept(t, now.Add(time.Minute), time.Hour), true},
		{"set back", slept(t, now.Add(-time.Minute), -time.Hour), true},
	} {
		if c := (Command{SendBy: tt.by}); c.Overdue() != tt.want {
			t.Errorf("%s: overdue is %t", tt.name, !tt.want)
		}
	}
}
