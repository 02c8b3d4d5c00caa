package share

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/oplogrep/replicator/lease/locks"
)

const (
	// refuseFor is how long a member refuses a partition whose work kept failing, refuseMax after
	// that happened often: the time doubles.
	refuseFor, refuseMax = 10 * time.Minute, 24 * time.Hour
	// maxRefusals is how many it says, maxReason how long an error may be there, in bytes.
	maxRefusals = 100
	maxReason   = 200
)

// errUndone is the logged error of a work that returns too early without one.
var errUndone = errors.New("the work returned before its context was done")

// work is a partition that this member works on, or waits for.
type work struct {
	partition string
	stop      context.CancelCauseFunc
	// holds: this process has its lease. since is since when the work runs, zero between two tries.
	holds bool
	since time.Time
}

// refusal is a partition that this member refuses, or did: for how long, until when.
type refusal struct {
	Refusal
	lasts time.Duration
	until time.Time
}

// startWorks starts the partitions assigned to this member, and stops the others. mu is held.
func (s *Share) startWorks(ctx context.Context) {
	if !s.joined || s.leaving {
		return
	}
	assigned := make(map[string]bool, len(s.plan.Assignments))
	for i := range s.plan.Assignments {
		a := &s.plan.Assignments[i]
		if a.Member != s.cfg.Member {
			continue
		}
		assigned[a.Partition] = true
		if s.works[a.Partition] == nil {
			s.start(ctx, a.Partition)
		}
	}
	for p, w := range s.works {
		if !assigned[p] {
			w.stop(ErrMoved)
		}
	}
}

// stopWorks stops all works. mu is held.
func (s *Share) stopWorks(cause error) {
	for _, w := range s.works {
		w.stop(cause)
	}
}

// start starts a work, which lives until it is stopped. mu is held.
func (s *Share) start(ctx context.Context, partition string) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	w := &work{partition: partition, stop: cancel}
	s.works[partition] = w
	s.working.Go(func() {
		s.work(ctx, w)
		cancel(nil)
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.works, partition)
		s.startWorks(ctx) // it may have been assigned again meanwhile
	})
}

// work waits for the lease of a partition, and works with it, until ctx is done.
func (s *Share) work(ctx context.Context, w *work) {
	for {
		err := s.leases.Lock(ctx, Key(s.cfg.Group, w.partition), "assigned to "+s.cfg.Member, func(ctx context.Context) {
			s.setHolds(w, true)
			defer s.setHolds(w, false)
			s.log.Info("works on a partition", keyGroup, s.cfg.Group, keyPartition, w.partition, keyTerm, locks.Token(ctx))
			s.attempts(ctx, w)
			s.log.Info("works on a partition no more", keyGroup, s.cfg.Group, keyPartition, w.partition, keyTerm, locks.Token(ctx), keyError, context.Cause(ctx))
		})
		if ctx.Err() != nil {
			return
		}
		s.failed(cmp.Or(err, errUndone))
		if !pause(ctx, s.cfg.Every/4) {
			return
		}
	}
}

func (s *Share) setHolds(w *work, yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.holds = yes
}

// attempts calls Work until ctx is done.
func (s *Share) attempts(ctx context.Context, w *work) {
	failures, delay := 0, s.cfg.RetryMin
	for locks.Check(ctx) == nil {
		began := time.Now()
		s.setSince(w, began)
		err := s.cfg.Work(ctx, w.partition, locks.Token(ctx))
		s.setSince(w, time.Time{})
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) >= s.cfg.RetryMax {
			failures, delay = 0, s.cfg.RetryMin
		}
		if failures++; err == nil {
			failures = 0
		}
		s.log.Warn("the work has ended; it is tried again", keyGroup, s.cfg.Group, keyPartition, w.partition, keyFailures, failures, keyError, cmp.Or(err, errUndone))
		if err != nil && failures >= s.cfg.MoveAfter {
			s.refuse(w.partition, failures, err)
		}
		if !pause(ctx, delay) {
			return
		}
		delay = min(2*delay, s.cfg.RetryMax)
	}
}

func (s *Share) setSince(w *work, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.since = since
}

// refuse makes the coordinator look for another member.
func (s *Share) refuse(partition string, failures int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	why := err.Error()
	why = strings.ToValidUTF8(why[:min(len(why), maxReason)], "")
	now := time.Now()
	r := s.refusals[partition]
	switch {
	case r == nil:
		r = &refusal{lasts: refuseFor}
	case now.After(r.until):
		r.lasts = min(2*r.lasts, refuseMax)
	}
	r.Refusal, r.until = Refusal{Partition: partition, Failures: failures, Why: why}, now.Add(r.lasts)
	s.refusals[partition] = r
	s.beatSoon()
}
