package pipeline

import (
	"errors"
	"time"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/pipeline/failure"
)

// tooLargePause is how long the pause between two attempts counts as refused at most: for longer, the target was away.
const tooLargePause = time.Minute

// tooLarge is the operation that the target has refused last, alone, because it does not fit its storage cache. It may
// have more room later. It belongs to Run.
type tooLarge struct {
	op   string
	last time.Time
	// refused is for how long, without the times when the target was away.
	refused time.Duration
}

// lasts returns err, the end of an attempt, or a *failure.TooLargeError once it has been refused for a time.
func (t *tooLarge) lasts(err error, limit time.Duration) error {
	op, is := errors.AsType[*applier.OpError](err)
	if !is || !servererr.IsTooLargeForCache(err) {
		return err // An election, for example, which says nothing of it.
	}
	var tried time.Duration
	if stuck, ok := errors.AsType[*applier.StuckError](err); ok {
		tried = stuck.Tried
	}
	if is := op.Operation(); is == t.op {
		t.refused += min(time.Since(t.last), tried+tooLargePause)
	} else {
		t.op, t.refused = is, tried
	}
	t.last = time.Now()
	if t.refused >= limit {
		return &failure.TooLargeError{Tried: t.refused, Err: op}
	}
	return err
}
