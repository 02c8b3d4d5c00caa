package cutover_test

import (
	"errors"
	"testing"
	"time"

	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/internal/testkit/client"
)

// TestBackTouchedBeforeElection: a way back is refused if something has written to the old side, also if its primary was just elected, and does not
// know yet that a majority has the write.
func TestBackTouchedBeforeElection(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	last := &client.Elected{Caller: s.last}
	last.Elect(t)
	insert(t, s.last, "shop", "c", 2)
	defer time.AfterFunc(100*time.Millisecond, last.Learn).Stop()
	if err := s.begin(last); !errors.Is(err, cutover.ErrTouched) {
		t.Errorf("got %v", err)
	}
	if s.exists() {
		t.Error("the link exists")
	}
}
