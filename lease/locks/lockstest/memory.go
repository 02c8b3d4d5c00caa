package lockstest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/lease/locks"
)

// The calls of a store, as Memory.Fail names them.
const (
	Acquire    = "acquire"
	Renew      = "renew"
	Release    = "release"
	List       = "list"
	Clock      = "clock"
	Ping       = "ping"
	Pinged     = "pinged"
	RemovePing = "removePing"
	SweepPings = "sweepPings"
)

// Memory is a store in memory.
type Memory struct {
	mu       sync.Mutex // guards the rest
	records  map[string]locks.Record
	pings    map[string]time.Time
	skew     time.Duration
	election int
	fault    func(ctx context.Context, call string) (executed bool, err error)
	calls    map[string]int
}

// NewMemory returns an empty store.
func NewMemory() *Memory {
	return &Memory{records: map[string]locks.Record{}, pings: map[string]time.Time{}, calls: map[string]int{}}
}

// Skew sets how far the store's clock is ahead.
func (m *Memory) Skew(by time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.skew = by
}

// Elect makes another server answer, whose clock is ahead by skew.
func (m *Memory) Elect(skew time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.skew = skew
	m.election++
}

// Fail sets a function that is called with each call, before the store executes it. It
// returns whether the store does, and the error in place of its result. Nil: no faults.
func (m *Memory) Fail(fault func(ctx context.Context, call string) (executed bool, err error)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault = fault
}

// Calls returns how often a call was made.
func (m *Memory) Calls(call string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls[call]
}

// Record returns a record, zero if there is none.
func (m *Memory) Record(name string) locks.Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.records[name]
}

// HasPing reports whether there is a ping of a process.
func (m *Memory) HasPing(process string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.pings[process]
	return ok
}

// now is the time of the store, in milliseconds as every store has it. mu is held.
func (m *Memory) now() time.Time { return time.UnixMilli(time.Now().Add(m.skew).UnixMilli()).UTC() }

// do executes a call.
func (m *Memory) do(ctx context.Context, call string, execute func() error) error {
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
		if err := execute(); err != nil {
			return cmp.Or(lost, err)
		}
	}
	return lost
}

// Acquire implements locks.Store.
func (m *Memory) Acquire(ctx context.Context, c locks.Claim) (record locks.Record, err error) {
	err = m.do(ctx, Acquire, func() error {
		was, now := m.records[c.Name], m.now()
		switch ended := isOver(was, now); {
		case was.IsLocked() && !ended && was.ID == c.ID:
			m.records[c.Name] = renewed(was, now)
		case !was.IsLocked(), ended, !c.Overtake.IsZero() && was.ID == c.Overtake && was.Renewals == c.Renewals:
			m.records[c.Name] = locks.Record{
				Name: c.Name, State: locks.Locked, Process: c.Process, ID: c.ID, Term: was.Term + 1,
				TTL: c.TTL, Expires: until(now, c.TTL), When: now, Modified: now, Who: c.Who, Why: c.Why,
			}
		}
		record = m.records[c.Name]
		return nil
	})
	return record, err
}

func isOver(r locks.Record, now time.Time) bool { return r.TTL > 0 && !r.Expires.After(now) }

func until(now time.Time, ttl time.Duration) time.Time {
	if ttl == 0 {
		return time.Time{}
	}
	return now.Add(ttl)
}

func renewed(r locks.Record, now time.Time) locks.Record {
	r.Renewals, r.Modified = r.Renewals+1, now
	if next := until(now, r.TTL); next.After(r.Expires) {
		r.Expires = next
	}
	return r
}

// Renew implements locks.Store.
func (m *Memory) Renew(ctx context.Context, name string, id bson.ObjectID) (record locks.Record, err error) {
	err = m.do(ctx, Renew, func() error {
		was, now := m.records[name], m.now()
		if !was.IsLocked() || was.ID != id || isOver(was, now) {
			return fmt.Errorf("renew %s: %w", name, locks.ErrLost)
		}
		record = renewed(was, now)
		m.records[name] = record
		return nil
	})
	return record, err
}

// Release implements locks.Store.
func (m *Memory) Release(ctx context.Context, name string, id bson.ObjectID) error {
	return m.do(ctx, Release, func() error {
		if was, ok := m.records[name]; ok && was.ID == id && was.IsLocked() {
			was.State, was.Modified = locks.Unlocked, m.now()
			m.records[name] = was
		}
		return nil
	})
}

// List implements locks.Store.
func (m *Memory) List(ctx context.Context, process string) (list []locks.Record, err error) {
	err = m.do(ctx, List, func() error {
		for r := range maps.Values(m.records) {
			if isOver(r, m.now()) {
				r.State = locks.Unlocked
			}
			if process == "" || r.Process == process {
				list = append(list, r)
			}
		}
		slices.SortFunc(list, func(a, b locks.Record) int { return cmp.Compare(a.Name, b.Name) })
		return nil
	})
	return list, err
}

// Clock implements locks.Store.
func (m *Memory) Clock(ctx context.Context) (now locks.Moment, err error) {
	err = m.do(ctx, Clock, func() error {
		now = locks.Moment{Time: m.now(), Election: strconv.Itoa(m.election)}
		return nil
	})
	return now, err
}

// Ping implements locks.Store.
func (m *Memory) Ping(ctx context.Context, process string) error {
	return m.do(ctx, Ping, func() error {
		m.pings[process] = m.now()
		return nil
	})
}

// Pinged implements locks.Store.
func (m *Memory) Pinged(ctx context.Context, process string) (at time.Time, err error) {
	err = m.do(ctx, Pinged, func() error {
		at = m.pings[process]
		return nil
	})
	return at, err
}

// SweepPings implements locks.Sweeper.
func (m *Memory) SweepPings(ctx context.Context, older time.Duration) error {
	return m.do(ctx, SweepPings, func() error {
		named := map[string]bool{}
		for _, r := range m.records {
			named[r.Process] = named[r.Process] || r.IsLocked() && !isOver(r, m.now())
		}
		maps.DeleteFunc(m.pings, func(p string, at time.Time) bool { return !named[p] && at.Before(m.now().Add(-older)) })
		return nil
	})
}

// RemovePing implements locks.Store.
func (m *Memory) RemovePing(ctx context.Context, process string) error {
	return m.do(ctx, RemovePing, func() error {
		delete(m.pings, process)
		return nil
	})
}
