package pipeline

import (
	"errors"
	"time"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/initialsync/clone"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/pipeline/failure"
)

// tooLargePause is how long the pause between two attempts counts as refused at most: for longer, the target was away.
const tooLargePause = time.Minute

// tooLarge is the operation, or the document of a copy, that the target has refused last, alone, because it does not fit
// its storage cache. It may have more room later. It belongs to Run.
type tooLarge struct {
	what string
	last time.Time
	// refused is for how long, without the times when the target was away.
	refused time.Duration
}

// lasts returns err, the end of an attempt, or a *failure.TooLargeError once it has been refused for a time.
func (t *tooLarge) lasts(err error, limit time.Duration) error {
	what, tried := refused(err)
	if what == "" || !servererr.IsTooLargeForCache(err) {
		return err // An election, for example, which says nothing of it.
	}
	if what == t.what {
		t.refused += min(time.Since(t.last), tried+tooLargePause)
	} else {
		t.what, t.refused = what, tried
	}
	t.last = time.Now()
	if t.refused >= limit {
		return &failure.TooLargeError{Tried: t.refused, Err: err}
	}
	return err
}

// refused returns the operation, or the document of a copy, that an error names, and for how long it was tried.
func refused(err error) (what string, tried time.Duration) {
	if doc, ok := errors.AsType[*clone.TooLargeError](err); ok {
		return doc.Document(), doc.Tried
	}
	op, ok := errors.AsType[*applier.OpError](err)
	if !ok {
		return "", 0
	}
	if stuck, ok := errors.AsType[*applier.StuckError](err); ok {
		tried = stuck.Tried
	}
	return op.Operation(), tried
}
