package pipeline

import (
	"time"

	"github.com/oplogrep/replicator/pipeline/failure"
)

// Refusals that servers do not explain end a run with the eighth in a row: after some seconds of attempts. Those of
// which one comes more than ten minutes after another are not in a row.
const (
	unexplainedMost   = 8
	unexplainedWithin = 10 * time.Minute
)

// unexplained counts them. It belongs to Run.
type unexplained struct {
	n    int
	last time.Time
}

// passes counts an error, and reports whether another attempt may not meet it again.
func (u *unexplained) passes(err error) bool {
	if !failure.Unexplained(err) {
		return false
	}
	if time.Since(u.last) > unexplainedWithin {
		u.n = 0
	}
	u.n, u.last = u.n+1, time.Now()
	return u.n < unexplainedMost
}
