package fetcher

import (
	"time"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// Status is the state of a Fetcher.
type Status struct {
	// Host is the member that is read and has shown that it has the position; Caller
	// runs commands on it. Empty and nil while there is none.
	Host   string
	Caller mongo.Caller
	// Replies is how many replies have passed the checks. Metadata is that of the last
	// one, which came at HeardAt; both are zero before the first.
	Replies  int64
	Metadata Metadata
	HeardAt  time.Time
	// Last is the last entry that was sent, null before the first.
	Last oplog.OpTime
	// Blocked is since when a reply has not been received downstream, zero if none waits: the
	// source is not asked for more meanwhile.
	Blocked time.Time
	// Why says why no member is read, empty while one is and before the first search.
	Why string
	// Stale reports that no member that could be asked had the position. It is reset by
	// the first reply of a member that has it.
	Stale bool
}

// Status returns the state of f now. It may be called at any time.
func (f *Fetcher) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

// Changed returns a channel that is closed when there is a newer Status than that of
// the last call: take the channel first, then the Status. It is also closed every
// second while a reply is not received: nothing is read then.
func (f *Fetcher) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.news
}

func (f *Fetcher) update(change func(*Status)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.status)
	close(f.news)
	f.news = make(chan struct{})
}
