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

// tooLargeMost limits the operations and documents that are kept.
const tooLargeMost = 1000

// tooLarge has the operations, and the documents of a copy, that the target has refused, each alone, because they do not
// fit its storage cache. It may have more room later. Of several that lanes retry concurrently, each attempt names one.
// It belongs to Run.
type tooLarge map[string]refusals

// refusals are those of one operation or document: the time of the last one, and for how long it was refused, without
// the times when the target was away.
type refusals struct {
	last  time.Time
	total time.Duration
}

// lasts returns err, the end of an attempt, or a *failure.TooLargeError once it has been refused for a time.
func (t *tooLarge) lasts(err error, limit time.Duration) error {
	what, tried := refused(err)
	if what == "" || !servererr.IsTooLargeForCache(err) {
		return err // An election, for example, which says nothing of it.
	}
	r, again := (*t)[what]
	if again {
		r.total += min(time.Since(r.last), tried+tooLargePause)
	} else {
		r.total = tried
	}
	r.last = time.Now()
	if *t == nil || len(*t) >= tooLargeMost {
		*t = tooLarge{}
	}
	(*t)[what] = r
	if r.total >= limit {
		return &failure.TooLargeError{Tried: r.total, Err: err}
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
