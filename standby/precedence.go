package standby

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/syncsource"
)

const (
	// spoolGrace is how long a process that lacks the spool of a copy leaves the lease to one
	// that may have it, if the source still has the oplog.
	spoolGrace = 3 * time.Second
	// answersWithin is how long one look at the lease waits for answers of the source's members.
	answersWithin = 2 * time.Second
)

// vacancy is a lease that is free, and is left to another process.
type vacancy struct {
	// since is when it was first seen free, zero if it was not when it was last read.
	since time.Time
	// reason is the last one that was logged.
	reason string
	oldest *syncsource.OldestEntries
	// offered are the oldest entries as of now, while the lease is not free but offered.
	offered *syncsource.OldestEntries
	asking  sync.WaitGroup
}

func newVacancy(source *syncsource.Resolver) *vacancy {
	v := &vacancy{}
	v.oldest = source.OldestEntries(&v.asking, false)
	return v
}

// taken records that the lease is not free, or may not be: a process with precedence then gets its
// time again.
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
func (c *Candidate) precedence(ctx context.Context, s *checkpoint.View, oldest *syncsource.OldestEntries) precedence {
	copying := s.Copy != nil && s.Copy.Phase != checkpoint.Copied
	oldest.Ask(ctx)
	limited, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	last, has := c.cfg.Spooled(s.Instance, s.Copy, s.FetchFrom)
	if has {
		if follows, answered := oldest.Reach(limited, last); follows || !answered {
			return precedence{}
		}
	}
	there, answered := oldest.Reach(limited, s.FetchFrom)
	switch {
	case there && (!copying || !c.cfg.Monitor.IsStandby()):
		return precedence{}
	case there:
		return precedence{
			wait: spoolGrace, reason: "a process that has the spool of the copy",
			cost: "the copy is continued without its spool: documents that were copied stay, the oplog is read again",
		}
	case !answered:
		first := precedence{
			wait: syncsource.OldestWithin, reason: "a process that can read on: no member of the source has answered yet",
			cost: "this process leads although no member of the source has answered",
		}
		if copying {
			// An attempt would void the copy if the oplog is gone, and copies nothing before.
			first.wait = c.cfg.SpoolWait
		}
		return first
	}
	first := precedence{
		wait:   c.cfg.SpoolWait,
		reason: fmt.Sprintf("a process that has the oplog from %s on in its spool: no member of the source that answers has it", s.FetchFrom),
		cost:   "the link ends, if no member of the source has the oplog by then, and everything has to be copied again",
	}
	if copying {
		first.cost = "the copy is void, if no member of the source has the oplog by then, and starts again from the beginning"
	}
	return first
}

// yields reports whether this process leaves a lease that is free to another one for now.
func (c *Candidate) yields(ctx context.Context, s *checkpoint.View, v *vacancy) bool {
	if c.cfg.Monitor.Snapshot().Leader != nil {
		c.cfg.Monitor.Vacant(s.Lease.Record.Term, "the lease is free")
	}
	first := c.precedence(ctx, s, v.oldest)
	if first.wait == 0 {
		return false
	}
	if v.since.IsZero() {
		v.since = time.Now()
	}
	left := first.wait - time.Since(v.since)
	if left <= 0 {
		c.cfg.Observer.Log(slog.LevelWarn, first.cost, slog.String(keyFrom, s.FetchFrom.String()))
		return false
	}
	if v.reason != first.reason {
		v.reason = first.reason
		c.cfg.Observer.Log(slog.LevelWarn, "the lease is free, and is left to "+first.reason,
			slog.Duration(keyFor, left), slog.String(keyThen, first.cost))
	}
	c.cfg.Monitor.Vacant(s.Lease.Record.Term, fmt.Sprintf("the lease is free; until %s UTC it is left to %s; then %s",
		time.Now().Add(left).UTC().Format(time.TimeOnly), first.reason, first.cost))
	return true
}
