package update

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/testkit/bsongen"
)

// ValidateComputeApproxSize: the size estimated while building a diff is its actual
// size.
func TestReckonedSizeIsTheSize(t *testing.T) {
	diffs := 0
	rapid.Check(t, func(t *rapid.T) {
		pre := bsongen.Document(t)
		d := diffObject(pre, bsongen.Mutate(t, pre), 0)
		if d == nil {
			return
		}
		diffs++
		if got := len(d.append(nil)); got != d.size {
			t.Fatalf("reckoned %d bytes, written %d", d.size, got)
		}
	})
	if diffs == 0 {
		t.Error("not one diff")
	}
}
