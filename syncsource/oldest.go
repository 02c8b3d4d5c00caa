package syncsource

import (
	"context"
	"sync"
	"time"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/oplog"
)

const (
	// OldestWithin limits how long one member is asked for its oldest entry, with the time to
	// connect.
	OldestWithin = 10 * time.Second
	// answersWithin is how long Reaches waits for answers.
	answersWithin = 2 * time.Second
)

// Reaches reports whether a member answers whose oplog reaches back to an entry.
func (r *Resolver) Reaches(ctx context.Context, at oplog.OpTime) bool {
	ctx, cancel := context.WithTimeout(ctx, answersWithin)
	var asking sync.WaitGroup
	oldest := r.OldestEntries(&asking, false)
	defer asking.Wait()
	defer cancel()
	oldest.Ask(ctx)
	reaches, _ := oldest.Reach(ctx, at)
	return reaches
}

// OldestEntries collects the oldest entries of the members of the source as they answer. A
// request to a slow member outlasts one look at them. Ask and Reach are for one goroutine at a time.
type OldestEntries struct {
	of *Resolver
	// hosts are the members that were asked last.
	hosts  []string
	asking *sync.WaitGroup
	// mu guards the fields below.
	mu sync.Mutex
	// asked are the members whose answer is awaited; entries has the last answer of each.
	asked   map[string]bool
	entries map[string]oplog.OpTime
	onlyNow bool
	changed chan struct{} // closed when one has answered, or has failed
}

// OldestEntries returns one that has asked no member yet, and asks in asking: the caller waits for
// that. With onlyNow, a member counts only if its last answer was not an error.
func (r *Resolver) OldestEntries(asking *sync.WaitGroup, onlyNow bool) *OldestEntries {
	return &OldestEntries{of: r, asking: asking, onlyNow: onlyNow, asked: map[string]bool{}, entries: map[string]oplog.OpTime{}, changed: make(chan struct{})}
}

// Ask asks the members that may be read from, unless an earlier request to one is still in flight.
func (o *OldestEntries) Ask(ctx context.Context) {
	o.hosts = o.of.eligible()
	for _, host := range o.hosts {
		o.ask(ctx, host, o.of.dial.Member(host))
	}
}

// ask asks a member, unless an earlier request to it is still in flight.
func (o *OldestEntries) ask(ctx context.Context, host string, member mongo.Caller) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.asked[host] {
		return
	}
	o.asked[host] = true
	o.asking.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, OldestWithin)
		defer cancel()
		entry, err := replset.OldestEntry(ctx, member)
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.asked, host)
		switch {
		case err == nil:
			o.entries[host] = entry.OpTime
		case o.onlyNow:
			delete(o.entries, host)
		}
		close(o.changed)
		o.changed = make(chan struct{})
	})
}

// Reach reports whether the oplog of one of the members that were asked last reaches back to an
// entry, and whether any member has ever answered: one whose oplog began later does not get it
// back while it is away. It waits for the answers that are due until ctx is done.
func (o *OldestEntries) Reach(ctx context.Context, at oplog.OpTime) (reaches, answered bool) {
	return o.reach(ctx, o.hosts, at)
}

func (o *OldestEntries) reach(ctx context.Context, hosts []string, at oplog.OpTime) (reaches, answered bool) {
	for {
		reaches, due, changed := o.known(hosts, at)
		if !reaches && due {
			select {
			case <-changed:
				continue
			case <-ctx.Done():
			}
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		return reaches, len(o.entries) > 0
	}
}

// known is reach with the answers received until now. It reports whether answers are due, and returns
// a channel that is closed with the next one.
func (o *OldestEntries) known(hosts []string, at oplog.OpTime) (reaches, due bool, changed <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, host := range hosts {
		due = due || o.asked[host]
		first, answered := o.entries[host]
		reaches = reaches || answered && oplog.CompareTimestamps(first.TS, at.TS) <= 0
	}
	return reaches, due, o.changed
}
