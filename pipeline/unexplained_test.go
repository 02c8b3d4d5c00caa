package pipeline

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// TestUnexplainedInARow: refusals that are not explained end a run with the eighth in a row, whatever else comes between, and
// not where one comes long after another.
func TestUnexplainedInARow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var u unexplained
		for range 2 {
			for n := 1; n <= unexplainedMost; n++ {
				if u.passes(errors.New("something else")) {
					t.Error("an error that no server has returned passes")
				}
				time.Sleep(unexplainedWithin)
				if got, want := u.passes(servererr.New(servererr.UnknownError, "no")), n < unexplainedMost; got != want {
					t.Errorf("refusal %d: %t", n, got)
				}
			}
			time.Sleep(unexplainedWithin + time.Second)
		}
	})
}
