package pipeline

import (
	"errors"
	"time"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/pipeline/failure"
)

// tooLarge is the operation that the target has refused last, alone, because it does not fit its storage cache. It may
// have more room later. It belongs to Run.
type tooLarge struct {
	op    string
	since time.Time
}

// lasts returns err, the end of an attempt, or a *failure.TooLargeError once it has been refused for a time.
func (t *tooLarge) lasts(err error, limit time.Duration) error {
	op, is := errors.AsType[*applier.OpError](err)
	if !is || !servererr.IsTooLargeForCache(err) {
		return err // An election, for example, which says nothing of it.
	}
	began := time.Now()
	if stuck, ok := errors.AsType[*applier.StuckError](err); ok {
		began = began.Add(-stuck.Tried)
	}
	if is := op.Operation(); is != t.op {
		t.op, t.since = is, began
	}
	if tried := time.Since(t.since); tried >= limit {
		return &failure.TooLargeError{Tried: tried, Err: op}
	}
	return err
}
