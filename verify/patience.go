package verify

import (
	"sync"
	"time"

	"github.com/oplogrep/replicator/internal/mongo"
)

const (
	// waitsAfter is how long a side is asked again before that is told, waitsEvery how often it is told then.
	waitsAfter = 10 * time.Second
	waitsEvery = 30 * time.Second
)

// retrier retries reads of both sides, and tells once of all that wait.
type retrier struct {
	limit time.Duration
	waits func(err error)

	mu   sync.Mutex
	told time.Time // the last time
}

// retry returns how a read is retried that begins now.
func (r *retrier) retry() mongo.Retry {
	began := time.Now()
	return mongo.Retry{For: r.limit, Again: mongo.RepeatsRead, Failed: func(err error) {
		if time.Since(began) > waitsAfter {
			r.tell(err)
		}
	}}
}

func (r *retrier) tell(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.told) > waitsEvery {
		r.told = time.Now()
		r.waits(err)
	}
}
