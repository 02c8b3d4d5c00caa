package sharetest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/oplogrep/replicator/lease/locks"
	"github.com/oplogrep/replicator/lease/share"
)

// The calls of a board, as Memory.Fail names them.
const (
	Beat     = "beat"
	Leave    = "leave"
	Members  = "members"
	SetDrain = "setDrain"
	Plan     = "plan"
	Propose  = "propose"
)

// Memory is a board in memory.
type Memory struct {
	mu      sync.Mutex // guards the rest
	members map[string]map[string]share.Member
	plans   map[string]share.Plan
	// before are the plans before those; lags means that the last of them are read in their place.
	before map[string][]share.Plan
	lags   bool
	skew   time.Duration
	fault  func(ctx context.Context, call string) (executed bool, err error)
	calls  map[string]int
}

// NewMemory returns an empty board.
func NewMemory() *Memory {
	return &Memory{members: map[string]map[string]share.Member{}, plans: map[string]share.Plan{}, before: map[string][]share.Plan{}, calls: map[string]int{}}
}

// Skew sets how far the store's clock is ahead.
func (m *Memory) Skew(by time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.skew = by
}

// Fail sets a function that is called with each call, before the board executes it. It
// returns whether the board does, and the error in place of its result. Nil: no faults.
func (m *Memory) Fail(fault func(ctx context.Context, call string) (executed bool, err error)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault = fault
}

// Lag makes the plan before the last one be read until the next one is written, or that ends, as of a primary that was just elected
// and does not know yet that a majority has the last one.
func (m *Memory) Lag(lags bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lags = lags
}

// Undo takes the last n plans of a group back, as a store does that has lost them.
func (m *Memory) Undo(group string, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for range min(n, len(m.before[group])) {
		m.plans[group] = m.last(group)
		m.before[group] = m.before[group][:len(m.before[group])-1]
	}
}

// last returns the plan before the present one. mu is held.
func (m *Memory) last(group string) share.Plan {
	if n := len(m.before[group]); n > 0 {
		return m.before[group][n-1]
	}
	return share.Plan{}
}

// Calls returns how often a call was made.
func (m *Memory) Calls(call string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls[call]
}

// now is the time of the store, in milliseconds. mu is held.
func (m *Memory) now() time.Time { return time.UnixMilli(time.Now().Add(m.skew).UnixMilli()).UTC() }

// do executes a call.
func (m *Memory) do(ctx context.Context, call string, execute func()) error {
	m.mu.Lock()
	m.calls[call]++
	fault := m.fault
	m.mu.Unlock()
	executed, lost := true, error(nil)
	if fault != nil {
		executed, lost = fault(ctx, call)
	}
	if err := context.Cause(ctx); err != nil && lost == nil {
		return fmt.Errorf("%s: %w: %w", call, locks.ErrUnavailable, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if executed {
		execute()
	}
	return lost
}

// Beat implements share.Board.
func (m *Memory) Beat(ctx context.Context, group string, who share.Member, taken time.Duration) (now share.Member, err error) {
	err = m.do(ctx, Beat, func() {
		if m.members[group] == nil {
			m.members[group] = map[string]share.Member{}
		}
		was := m.members[group][who.Name]
		who.Drained, who.Beat, who.Joined = was.Drained, m.now(), was.Joined
		who.Refuses = slices.Clone(who.Refuses)
		age := who.Beat.Sub(was.Beat)
		if was.Process != "" && was.Process != who.Process && age < taken && age > -taken {
			now = was
			return
		}
		if was.Process != who.Process {
			who.Joined = who.Beat
		}
		m.members[group][who.Name] = who
		now = who
	})
	return now, err
}

// Leave implements share.Board.
func (m *Memory) Leave(ctx context.Context, group, member, process string) error {
	return m.do(ctx, Leave, func() {
		was, ok := m.members[group][member]
		if !ok || was.Process != process {
			return
		}
		m.members[group][member] = share.Member{Name: member, Drained: was.Drained}
		m.drop(group, member)
	})
}

// drop removes a member of which nothing is known. mu is held.
func (m *Memory) drop(group, member string) {
	if was := m.members[group][member]; was.Process == "" && !was.Drained {
		delete(m.members[group], member)
	}
}

// Members implements share.Board.
func (m *Memory) Members(ctx context.Context, group string) (list []share.Member, now time.Time, err error) {
	err = m.do(ctx, Members, func() {
		for _, member := range m.members[group] {
			list = append(list, member)
		}
		slices.SortFunc(list, func(a, b share.Member) int { return cmp.Compare(a.Name, b.Name) })
		now = m.now()
	})
	return list, now, err
}

// SetDrain implements share.Board.
func (m *Memory) SetDrain(ctx context.Context, group, member string, drained bool) error {
	return m.do(ctx, SetDrain, func() {
		if m.members[group] == nil {
			m.members[group] = map[string]share.Member{}
		}
		was := m.members[group][member]
		was.Name, was.Drained = member, drained
		m.members[group][member] = was
		m.drop(group, member)
	})
}

// Plan implements share.Board.
func (m *Memory) Plan(ctx context.Context, group, member string, seen int64) (plan *share.Plan, err error) {
	err = m.do(ctx, Plan, func() {
		was, ok := m.plans[group]
		if m.lags {
			was = m.last(group)
		}
		if !ok || was.Version <= seen {
			return
		}
		was.Deputies = slices.Clone(was.Deputies)
		var list []share.Assignment
		for _, a := range was.Assignments {
			if member == "" || a.Member == member {
				list = append(list, a)
			}
		}
		was.Assignments = list
		plan = &was
	})
	return plan, err
}

// Propose implements share.Board.
func (m *Memory) Propose(ctx context.Context, group string, version int64, p *share.Plan) (done bool, err error) {
	err = m.do(ctx, Propose, func() {
		was := m.plans[group]
		if was.Version != version || was.Term > p.Term {
			return
		}
		next := *p
		next.Deputies, next.Assignments = slices.Clone(p.Deputies), slices.Clone(p.Assignments)
		m.before[group], m.plans[group], m.lags = append(m.before[group], was), next, false
		done = true
	})
	return done, err
}
