package share

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// beatLoop records that this member is alive, until ctx is done. It does not wait for an
// answer before it sends the next beat.
func (s *Share) beatLoop(ctx context.Context) {
	var beats sync.WaitGroup
	defer beats.Wait()
	failed := make(chan struct{}, 1)
	due := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-s.beating:
		case <-failed:
			if again := time.Now().Add(s.cfg.Every / 4); again.Before(due) {
				due = again
			}
			timer.Reset(time.Until(due))
			continue
		case <-ctx.Done():
			return
		}
		beats.Go(func() {
			if !s.beat(ctx) {
				select {
				case failed <- struct{}{}:
				default:
				}
			}
		})
		due = time.Now().Add(s.beatEvery())
		timer.Reset(time.Until(due))
	}
}

// beatEvery is short until the member has joined: a process that is started again gets its name
// before its partitions are moved.
func (s *Share) beatEvery() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.joined {
		return s.cfg.Every / 4
	}
	return s.cfg.Every
}

// beatSoon makes the member beat at once.
func (s *Share) beatSoon() {
	select {
	case s.beating <- struct{}{}:
	default:
	}
}

// beat sends a beat, and joins or stops by the answer. It reports whether there was one.
func (s *Share) beat(ctx context.Context) bool {
	call, cancel := context.WithTimeout(ctx, s.cfg.TTL/2)
	defer cancel()
	s.mu.Lock()
	s.beats++
	number := s.beats
	m := Member{Name: s.cfg.Member, Process: s.process, Limit: s.cfg.Limit, Leaving: s.leaving, Refuses: s.refused()}
	s.mu.Unlock()
	// Less than the time after which it is dead for a coordinator, more than one lost beat.
	now, err := s.cfg.Board.Beat(call, s.cfg.Group, m, s.cfg.Every*9/4)
	if err != nil {
		if ctx.Err() == nil {
			s.failed(fmt.Errorf("beat as %s: %w", s.cfg.Member, err))
		}
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if number < s.answered {
		return true // a late answer
	}
	s.answered = number
	switch has := now.Process == s.process; {
	case has && !s.joined:
		s.joined, s.waits = true, false
		s.log.Info("the member has joined", keyGroup, s.cfg.Group, keyMember, s.cfg.Member, keyProcess, s.process)
		s.startWorks(ctx)
	case !has && !s.waits && !s.joined:
		s.waits = true
		s.log.Warn("another process has the member's name; this one waits until that has gone", keyGroup, s.cfg.Group, keyMember, s.cfg.Member, keyProcess, now.Process)
	case !has && s.joined:
		s.joined, s.waits = false, true
		s.log.Warn("another process has the member's name; this one waits", keyGroup, s.cfg.Group, keyMember, s.cfg.Member, keyProcess, now.Process)
		s.stopWorks(ErrReplaced)
	}
	return true
}

// refused returns the refusals that are not over. mu is held.
func (s *Share) refused() []Refusal {
	var list []Refusal
	for p, r := range maps.All(s.refusals) {
		w := s.works[p]
		if w != nil && !w.since.IsZero() && time.Since(w.since) > s.cfg.RetryMax {
			delete(s.refusals, p) // it works
		} else if time.Now().Before(r.until) {
			list = append(list, r.Refusal)
		}
	}
	slices.SortFunc(list, func(a, b Refusal) int { return b.Failures - a.Failures })
	return list[:min(len(list), maxRefusals)]
}

// planLoop reads the partitions assigned to this member, and works on them.
func (s *Share) planLoop(ctx context.Context) {
	for {
		s.readPlan(ctx)
		if !wait(ctx, s.cfg.Every) {
			return
		}
	}
}

func (s *Share) readPlan(ctx context.Context) {
	call, cancel := context.WithTimeout(ctx, s.cfg.TTL/2)
	defer cancel()
	plan, err := s.cfg.Board.Plan(call, s.cfg.Group, s.cfg.Member, s.seen())
	if err != nil {
		if ctx.Err() == nil {
			s.failed(fmt.Errorf("read the assignments of %s: %w", s.cfg.Member, err))
		}
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if plan != nil && plan.Version > s.plan.Version {
		s.plan = plan
		s.startWorks(ctx)
	}
}

// wait blocks for d. It reports whether ctx is not done.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// pause is a wait with a jitter of up to a half.
func pause(ctx context.Context, d time.Duration) bool {
	return wait(ctx, d/2+rand.N(d+1)) //nolint:gosec // spreads load, keeps no secret
}
