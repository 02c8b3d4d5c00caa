// Package race reports whether the race detector is on: tests then make shorter runs, and
// skip measurements. What a test leaves out by Skip or One, make test plays without the race
// detector: UNRACED in the Makefile lists the tests that name one of them, and test/style
// compares. So that it can, only the test itself may do that, no helper and no subtest. What a
// test leaves out where Enabled is left to make soak.
package race

import "testing"

// Skip skips a test with the race detector, and says why.
func Skip(t testing.TB, why string) {
	t.Helper()
	if Enabled {
		t.Skipf("%s: not with the race detector", why)
	}
}

// One reports whether the part i of a test is to be played: every part, but only the first
// of each six with the race detector.
func One(i int) bool { return !Enabled || i%6 == 0 }
