package pipeline_test

import "testing"

// TestCopyFaults plays what goes wrong with copies, and who takes them over.
func TestCopyFaults(t *testing.T) {
	t.Parallel()
	runScenarios(t, "testdata/copyfaults/*")
}
