package pipeline

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/oplog"
)

const (
	// spoolGrace is how long a process that lacks the spool of a copy leaves the lease to one
	// that may have it, if the source still has the oplog.
	spoolGrace = 3 * time.Second
	// defaultSpoolWait is the default of Lease.SpoolWait.
	defaultSpoolWait = 5 * time.Minute
	// oldestWithin limits how long one member of the source is asked for its oldest entry, with
	// the time to connect. If none has answered by then, this process leads, unless a copy
	// could be lost.
	oldestWithin = 10 * time.Second
	// answersWithin is how long one look at the lease waits for answers.
	answersWithin = 2 * time.Second
)

// vacancy is a lease that is free, and is left to another process.
type vacancy struct {
	// since is when it was first seen free, zero if it was not when it was last looked at.
	since time.Time
	// reason is the last one that was logged.
	reason string
	oldest *oldestEntries
	// offered are the oldest entries as of now, while the lease is not free but offered.
	offered *oldestEntries
	asking  sync.WaitGroup
}

func newVacancy() *vacancy {
	v := &vacancy{}
	v.oldest = newOldestEntries(&v.asking)
	return v
}

// taken records that the lease is not free, or may not be: who has precedence then gets its
// time anew.
func (v *vacancy) taken() { v.since, v.reason = time.Time{}, "" }

// precedence says how long a process leaves a lease that is free to another one, which may
// have what this one lacks.
type precedence struct {
	wait time.Duration
	// reason says why, for the state; cost what it means that this one leads nevertheless.
	reason, cost string
}

// precedence returns how long another process comes first. A process can lead if it has the
// link's position in its spool, or if the source still has it.
func (p *Pipeline) precedence(ctx context.Context, s *checkpoint.Standing, oldest *oldestEntries) precedence {
	copying := s.Copy != nil && s.Copy.Phase != checkpoint.Copied
	hosts := p.resolver.Eligible()
	for _, host := range hosts {
		oldest.ask(ctx, host, p.source.Member(host))
	}
	limited, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	last, has := p.log.Has(s.Instance, s.Copy, s.FetchFrom)
	if has {
		if follows, answered := oldest.reach(limited, hosts, last); follows || !answered {
			return precedence{}
		}
	}
	there, answered := oldest.reach(limited, hosts, s.FetchFrom)
	switch {
	case there && (!copying || !p.monitor.IsStandby()):
		return precedence{}
	case there:
		return precedence{
			wait: spoolGrace, reason: "a process that has the spool of the copy",
			cost: "the copy is continued without its spool: documents that were copied stay, the oplog is read again",
		}
	case !answered:
		first := precedence{
			wait: oldestWithin, reason: "a process that can read on: no member of the source has answered yet",
			cost: "this process leads although no member of the source has answered",
		}
		if copying {
			// An attempt would void the copy if the oplog is gone, and copies nothing before.
			first.wait = p.cfg.Lease.SpoolWait
		}
		return first
	}
	first := precedence{
		wait:   p.cfg.Lease.SpoolWait,
		reason: fmt.Sprintf("a process that has the oplog from %s on in its spool: no member of the source that answers has it", s.FetchFrom),
		cost:   "the link ends, if no member of the source has the oplog by then, and everything has to be copied again",
	}
	if copying {
		first.cost = "the copy is void, if no member of the source has the oplog by then, and starts again from the beginning"
	}
	return first
}

// sourceHas reports whether a member of the source answers whose oplog reaches back to an entry.
func (p *Pipeline) sourceHas(ctx context.Context, at oplog.OpTime) bool {
	ctx, cancel := context.WithTimeout(ctx, answersWithin)
	var asking sync.WaitGroup
	oldest, hosts := newOldestEntries(&asking), p.resolver.Eligible()
	defer asking.Wait()
	defer cancel()
	for _, host := range hosts {
		oldest.ask(ctx, host, p.source.Member(host))
	}
	reaches, _ := oldest.reach(ctx, hosts, at)
	return reaches
}

// oldestEntries collects the oldest entries of the members of the source as they answer. A
// request to a slow member outlasts one look at the lease.
type oldestEntries struct {
	asking *sync.WaitGroup
	// mu guards the fields below.
	mu sync.Mutex
	// asked are the members whose answer is awaited; entries has the last answer of each.
	asked   map[string]bool
	entries map[string]oplog.OpTime
	// onlyNow means that only a member counts whose last answer was not an error.
	onlyNow bool
	changed chan struct{} // closed when one has answered, or has failed
}

func newOldestEntries(asking *sync.WaitGroup) *oldestEntries {
	return &oldestEntries{asking: asking, asked: map[string]bool{}, entries: map[string]oplog.OpTime{}, changed: make(chan struct{})}
}

// ask asks a member, unless an earlier request to it is still in flight.
func (o *oldestEntries) ask(ctx context.Context, host string, member mongo.Caller) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.asked[host] {
		return
	}
	o.asked[host] = true
	o.asking.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, oldestWithin)
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

// reach reports whether the oplog of one of the hosts reaches back to an entry, and whether
// any member has ever answered: one whose oplog began later does not get it back while it is
// away. It waits for the answers that are due until ctx is done.
func (o *oldestEntries) reach(ctx context.Context, hosts []string, at oplog.OpTime) (reaches, answered bool) {
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

// known is reach with what is known now. It reports whether answers are due, and returns what
// is closed with the next one.
func (o *oldestEntries) known(hosts []string, at oplog.OpTime) (reaches, due bool, changed <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, host := range hosts {
		due = due || o.asked[host]
		first, answered := o.entries[host]
		reaches = reaches || answered && oplog.CompareTimestamps(first.TS, at.TS) <= 0
	}
	return reaches, due, o.changed
}

// yields reports whether this process leaves a lease that is free to another one for now.
func (p *Pipeline) yields(ctx context.Context, s *checkpoint.Standing, v *vacancy) bool {
	if p.monitor.Snapshot().Leader != nil {
		p.monitor.Vacant(s.Lease.Record.Term, "the lease is free")
	}
	first := p.precedence(ctx, s, v.oldest)
	if first.wait == 0 {
		return false
	}
	if v.since.IsZero() {
		v.since = time.Now()
	}
	left := first.wait - time.Since(v.since)
	if left <= 0 {
		p.cfg.Observer.Log(slog.LevelWarn, first.cost, slog.String(keyFrom, s.FetchFrom.String()))
		return false
	}
	if v.reason != first.reason {
		v.reason = first.reason
		p.cfg.Observer.Log(slog.LevelWarn, "the lease is free, and is left to "+first.reason,
			slog.Duration(keyFor, left), slog.String(keyThen, first.cost))
	}
	p.monitor.Vacant(s.Lease.Record.Term, fmt.Sprintf("the lease is free; until %s UTC it is left to %s; then %s",
		time.Now().Add(left).UTC().Format(time.TimeOnly), first.reason, first.cost))
	return true
}
