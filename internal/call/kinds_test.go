package call_test

import (
	"slices"
	"testing"

	"github.com/oplogrep/replicator/internal/call"
	"github.com/oplogrep/replicator/internal/call/errtest"
	"github.com/oplogrep/replicator/internal/servererr"
)

// TestEveryError: what is done about each kind, for every code and label, as a refusal of
// a statement or of a commit, tried for as long as may be, or lost.
func TestEveryError(t *testing.T) {
	t.Parallel()
	dispositions := map[servererr.Kind]call.Disposition{
		servererr.Transient: call.Again, servererr.Expired: call.Again, servererr.Split: call.Smaller, servererr.Isolate: call.Other,
	}
	passes := []servererr.Kind{servererr.Transient, servererr.Split, servererr.Expired, servererr.Ended}
	seen := map[servererr.Kind]bool{}
	for err, k := range errtest.Errors() {
		seen[k] = true
		disposition := call.DispositionOf(err)
		if disposition != dispositions[k] {
			t.Errorf("%T %v (%s): %s", err, err, k, disposition)
		}
		if got := call.Passes(err); got != slices.Contains(passes, k) {
			t.Errorf("%T %v (%s) passes: %t", err, err, k, got)
		}
		if got := call.PassesRead(err); got != (slices.Contains(passes, k) || k == servererr.Cursor) {
			t.Errorf("%T %v (%s) passes for a read: %t", err, err, k, got)
		}
		// What ends an attempt is what the next one may get over, or what says what to do.
		if disposition == call.End && !k.Passes() && k != servererr.Auth && k != servererr.Unsupported {
			t.Errorf("%T %v (%s): the end of the run, and no rule for it", err, err, k)
		}
	}
	for _, k := range servererr.Kinds() {
		if !seen[k] {
			t.Errorf("no error is %s", k)
		}
	}
}

// TestEveryCommit: a commit that failed was not done only if the server said so.
func TestEveryCommit(t *testing.T) {
	t.Parallel()
	for e := range errtest.Refusals() {
		err := &call.CommitError{Err: e}
		aborted := slices.Contains(e.Labels, servererr.LabelTransient) && !slices.Contains(e.Labels, servererr.LabelUnknownCommit)
		switch disposition := call.DispositionOf(err); {
		case disposition == call.Other:
			t.Errorf("%v, %q: a statement is looked for", e, e.Labels)
		case disposition == call.Again && !aborted:
			t.Errorf("%v, %q: again", e, e.Labels)
		case disposition == call.Smaller && slices.Contains(e.Labels, servererr.LabelUnknownCommit):
			t.Errorf("%v, %q: smaller", e, e.Labels)
		case call.Passes(err) && !aborted && e.Kind() != servererr.Split:
			t.Errorf("%v, %q: passes", e, e.Labels)
		}
	}
}
