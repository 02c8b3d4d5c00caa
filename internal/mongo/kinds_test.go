package mongo_test

import (
	"slices"
	"testing"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/errtest"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// TestEveryError: the disposition for each kind, for every code and label, alone and in
// each of the package's errors.
func TestEveryError(t *testing.T) {
	t.Parallel()
	dispositions := map[servererr.Kind]mongo.Disposition{
		servererr.Transient: mongo.Again, servererr.Expired: mongo.Again, servererr.Split: mongo.Smaller, servererr.Isolate: mongo.Other,
	}
	passes := []servererr.Kind{servererr.Transient, servererr.Split, servererr.Expired, servererr.Ended}
	seen := map[servererr.Kind]bool{}
	for err, k := range errtest.Errors() {
		seen[k] = true
		disposition := mongo.DispositionOf(err)
		if disposition != dispositions[k] {
			t.Errorf("%T %v (%s): %s", err, err, k, disposition)
		}
		if got := mongo.Passes(err); got != slices.Contains(passes, k) {
			t.Errorf("%T %v (%s) passes: %t", err, err, k, got)
		}
		if got := mongo.PassesRead(err); got != (slices.Contains(passes, k) || k == servererr.Cursor) {
			t.Errorf("%T %v (%s) passes for a read: %t", err, err, k, got)
		}
		// An error that ends an attempt either passes, or tells the operator what to do.
		if disposition == mongo.End && !k.Passes() && k != servererr.Auth && k != servererr.Unsupported {
			t.Errorf("%T %v (%s): the end of the run, and no rule for it", err, err, k)
		}
	}
	for _, k := range errtest.Kinds() {
		if !seen[k] {
			t.Errorf("no error is %s", k)
		}
	}
}

// TestFullCommit: a server whose disk is full does not say that it has aborted the transaction.
func TestFullCommit(t *testing.T) {
	t.Parallel()
	for _, e := range []*servererr.Error{
		servererr.New(servererr.OutOfDiskSpace, "no"),
		servererr.New(servererr.UnknownError, "28: No space left on device"),
	} {
		if got := servererr.Classify(&mongo.CommitError{Err: e}); got != servererr.Unconfirmed {
			t.Errorf("%v: %s", e, got)
		}
		if got := servererr.Classify(&mongo.CommitError{Err: e.WithLabels(servererr.LabelTransient)}); got != servererr.Full {
			t.Errorf("%v, aborted: %s", e, got)
		}
	}
}

// TestEveryCommit: a failed commit counts as having had no effect only if the server
// reported that.
func TestEveryCommit(t *testing.T) {
	t.Parallel()
	for e := range errtest.Refusals() {
		err := &mongo.CommitError{Err: e}
		aborted := slices.Contains(e.Labels, servererr.LabelTransient) && !slices.Contains(e.Labels, servererr.LabelUnknownCommit)
		switch disposition := mongo.DispositionOf(err); {
		case disposition == mongo.Other:
			t.Errorf("%v, %q: a statement is looked for", e, e.Labels)
		case disposition == mongo.Again && !aborted:
			t.Errorf("%v, %q: again", e, e.Labels)
		case disposition == mongo.Smaller && slices.Contains(e.Labels, servererr.LabelUnknownCommit):
			t.Errorf("%v, %q: smaller", e, e.Labels)
		case mongo.Passes(err) && !aborted && e.Kind() != servererr.Split:
			t.Errorf("%v, %q: passes", e, e.Labels)
		}
	}
}
