package share

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/oplogrep/replicator/lease/locks"
)

// coordinator is one term of a member that assigns the partitions.
type coordinator struct {
	s     *Share
	term  int64
	since time.Time
	watch *watch
	// plan is the one that was read or written last, nil before; newest is the newest version of those.
	plan   *Plan
	newest int64
	// missing: the board does not seem to have it any more. A primary that was just elected may not know yet that a majority has it.
	missing bool
	// lost is one that the board has not any more, nil for none: members follow it.
	lost *Plan
	// partitions are those to assign, as of the last call of the function that lists them.
	partitions []string
	// listing is the call under way of that function, nil for none.
	listing *listing
	calls   sync.WaitGroup
	// gone is when members were first seen to be dead.
	gone map[string]time.Time
}

// listing is a call of the function that lists the partitions: list and err are its result once done is closed.
type listing struct {
	began time.Time
	done  chan struct{}
	list  []string
	err   error
}

func (l *listing) ended() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// errSuperseded ends a term: another coordinator has written with a newer one.
var errSuperseded = errors.New("another coordinator has a newer term")

// candidateLoop becomes the coordinator whenever there is none.
func (s *Share) candidateLoop(ctx context.Context) {
	for {
		ended := make(chan struct{})
		led, err := s.chair.TryLock(ctx, CoordinatorKey(s.cfg.Group), "assigns the partitions", func(ctx context.Context) {
			defer close(ended)
			s.coordinate(ctx)
		})
		if err != nil && ctx.Err() == nil {
			s.failed(err)
		}
		if led {
			<-ended
		}
		if !pause(ctx, s.candidacy()) {
			return
		}
	}
}

// candidacy is the time between two tries to become the coordinator: short for deputies, and
// while there is no plan.
func (s *Share) candidacy() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.plan.Version == 0 || slices.Contains(s.plan.Deputies, s.cfg.Member) {
		return s.cfg.Every * 2 / 5 // and a jitter of a half
	}
	return s.cfg.TTL
}

// coordinate assigns partitions until ctx is done.
func (s *Share) coordinate(ctx context.Context) {
	c := &coordinator{s: s, term: locks.Token(ctx), since: time.Now(), watch: newWatch(s.cfg.Every, s.cfg.TTL, s.hadTrouble()), gone: map[string]time.Time{}}
	s.setCoordinates(true)
	defer s.setCoordinates(false)
	s.log.Info("it coordinates", keyGroup, s.cfg.Group, keyTerm, c.term)
	defer s.log.Info("it coordinates no more", keyGroup, s.cfg.Group, keyTerm, c.term)
	defer c.calls.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for {
		next := time.Now().Add(s.cfg.Every)
		c.ask(ctx)
		err := c.round(ctx)
		switch {
		case errors.Is(err, errSuperseded):
			s.failed(err)
			return
		case err != nil && ctx.Err() == nil:
			s.failed(fmt.Errorf("coordinate %s: %w", s.cfg.Group, err))
			next = time.Now().Add(s.cfg.Every / 4)
		}
		if !wait(ctx, time.Until(next)) {
			return
		}
	}
}

// round reads the members, and writes a plan if another one is due.
func (c *coordinator) round(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.s.cfg.TTL/2)
	defer cancel()
	group := c.s.cfg.Group
	sent := time.Now()
	members, now, err := c.s.cfg.Board.Members(ctx, group)
	if err != nil {
		return err
	}
	v := &view{members: members, dead: c.watch.look(members, now, sent, time.Now()), now: now}
	if err := c.read(ctx); err != nil {
		return err
	}
	if v.partitions, err = c.list(ctx); err != nil {
		return err
	}
	if len(c.plan.Assignments) == 0 && time.Since(c.since) < 2*c.s.cfg.Every-time.Millisecond {
		return nil // members that started together get their parts at once
	}
	// Members that have seen a plan which is lost must see this one, also if the plan before that is as it should be.
	seen := max(c.plan.Version, c.newest, c.s.seen())
	next := &Plan{Version: seen + 1, Term: c.term, Coordinator: c.s.cfg.Member, Assignments: v.replan(c.plan.Assignments)}
	next.Deputies = v.deputize(c.plan.Deputies, c.s.cfg.Member)
	if c.plan.Term != c.term || c.missing || c.plan.Version < seen || !slices.Equal(next.Deputies, c.plan.Deputies) || !slices.Equal(next.Assignments, c.plan.Assignments) {
		if err := c.propose(ctx, next); err != nil {
			return err
		}
	}
	return c.tidy(ctx, v)
}

// noMember is a name that no member has: a plan has no partitions for it.
var noMember = strings.Repeat("-", maxName+1)

// read reads the plan that is on the board. If the board has lost one that members follow, its assignments stay.
func (c *coordinator) read(ctx context.Context) error {
	board, group := c.s.cfg.Board, c.s.cfg.Group
	c.missing = false
	if c.plan != nil && c.plan.Version > 0 { // is it still the last one?
		last, err := board.Plan(ctx, group, noMember, c.plan.Version-1)
		switch {
		case err != nil:
			return err
		case last == nil:
			c.missing = true
		case last.Version != c.plan.Version || last.Term != c.plan.Term:
			c.plan = nil
		}
	}
	if c.plan == nil || c.plan.Version == 0 {
		plan, err := board.Plan(ctx, group, "", 0)
		if err != nil {
			return err
		}
		c.plan = cmp.Or(plan, &Plan{})
		c.newest = max(c.newest, c.plan.Version)
		if l := c.lost; l != nil && c.plan.Version < l.Version {
			c.plan.Deputies, c.plan.Assignments = l.Deputies, l.Assignments
		}
	}
	if c.plan.Term > c.term {
		return fmt.Errorf("coordinate %s in term %d: %w: %d, of %s", group, c.term, errSuperseded, c.plan.Term, c.plan.Coordinator)
	}
	return nil
}

// ask calls the function that lists the partitions, unless a call is under way. It may take longer than a round.
func (c *coordinator) ask(ctx context.Context) {
	if old := c.listing; old != nil && (!old.ended() || time.Since(old.began) < 2*c.s.cfg.TTL) {
		return
	}
	l := &listing{began: time.Now(), done: make(chan struct{})}
	c.listing = l
	c.calls.Go(func() {
		defer close(l.done)
		limited, cancel := context.WithTimeout(ctx, c.s.cfg.TTL)
		defer cancel()
		l.list, l.err = c.s.cfg.Partitions(limited)
	})
}

// list returns the partitions that there are now, sorted: those of before if that cannot be
// found out, or not within Every.
func (c *coordinator) list(ctx context.Context) ([]string, error) {
	l := c.listing
	timer := time.NewTimer(time.Until(l.began.Add(c.s.cfg.Every)))
	defer timer.Stop()
	select {
	case <-l.done:
	case <-timer.C:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if !l.ended() {
		return c.known(), nil
	}
	c.listing = nil
	list, err := l.list, l.err
	if err == nil {
		list = slices.Compact(slices.Sorted(slices.Values(list)))
		err = checkPartitions(list)
	}
	if err == nil {
		c.partitions = list
		return list, nil
	}
	if ctx.Err() != nil {
		return nil, err
	}
	c.s.failed(fmt.Errorf("list the partitions of %s: %w; those that are known stay", c.s.cfg.Group, err))
	return c.known(), nil
}

// known returns the partitions of the last list, those of the plan before there is one.
func (c *coordinator) known() []string {
	if c.partitions == nil {
		for _, a := range c.plan.Assignments {
			c.partitions = append(c.partitions, a.Partition)
		}
	}
	return c.partitions
}

func checkPartitions(list []string) error {
	if len(list) > MaxPartitions {
		return fmt.Errorf("%d partitions; a group can have %d: make several groups", len(list), MaxPartitions)
	}
	for _, p := range list {
		if p == "" || len(p) > maxPartition {
			return fmt.Errorf("the partition %q: a name has 1 to %d bytes", p, maxPartition)
		}
	}
	return nil
}

// propose writes a plan.
func (c *coordinator) propose(ctx context.Context, next *Plan) error {
	if err := locks.Check(ctx); err != nil { // it was suspended
		return err
	}
	done, err := c.s.cfg.Board.Propose(ctx, c.s.cfg.Group, c.plan.Version, next)
	if err != nil {
		c.plan = nil // the stored plan is not known
		return err
	}
	if !done {
		if c.missing {
			c.lost = c.plan
		}
		c.plan = nil
		return fmt.Errorf("write the assignment of version %d: the board has another one", next.Version)
	}
	c.s.log.Info("assigned", keyGroup, c.s.cfg.Group, keyVersion, next.Version, keyMoved, changes(c.plan.Assignments, next.Assignments), keyPartitions, len(next.Assignments))
	c.plan, c.lost, c.newest = next, nil, next.Version
	return nil
}

// changes returns how many partitions have another member.
func changes(old, next []Assignment) (n int) {
	had := make(map[string]string, len(old))
	for _, a := range old {
		had[a.Partition] = a.Member
	}
	for _, a := range next {
		if member, ok := had[a.Partition]; !ok || member != a.Member {
			n++
		}
	}
	return n
}

// forgetAfter is how long a dead member is shown.
const forgetAfter = 10 * time.Minute

// tidy removes members from the board that are dead for long.
func (c *coordinator) tidy(ctx context.Context, v *view) error {
	for i := range v.members {
		m := &v.members[i]
		if _, dead := v.dead[m.Name]; !dead || m.Process == "" {
			delete(c.gone, m.Name)
			continue
		}
		since, ok := c.gone[m.Name]
		if !ok {
			c.gone[m.Name] = time.Now()
			continue
		}
		if time.Since(since) > forgetAfter {
			if err := c.s.cfg.Board.Leave(ctx, c.s.cfg.Group, m.Name, m.Process); err != nil {
				return err
			}
			delete(c.gone, m.Name)
		}
	}
	return nil
}
