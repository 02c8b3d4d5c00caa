package locks

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// sighting is the last observation of a lock that another process has: since when, by the
// store's clock and by this process's, neither its ID nor the ping of its process has moved.
type sighting struct {
	id       bson.ObjectID
	ping     time.Time
	election string
	since    time.Time
	here     time.Time
	// looked is when the ping was last read.
	looked time.Time
}

// isDead reports whether the process that has a lock has shown no sign of life for the whole
// expiry. The store's clock is asked before and after the ping is read: a process that is
// suspended in between must not take the time for that of the holder.
func (m *Manager) isDead(ctx context.Context, now Record) (bool, error) {
	if !now.IsLocked() || now.TTL > 0 {
		return false, nil
	}
	m.mu.Lock()
	was := m.seen[now.Name]
	m.mu.Unlock()
	if was.id == now.ID && time.Since(was.looked) < m.cfg.Ping {
		return false, nil
	}
	before, err := m.cfg.Store.Clock(ctx)
	if err != nil {
		return false, fmt.Errorf("look whether %s is alive: %w", now.Process, err)
	}
	ping, err := m.cfg.Store.Pinged(ctx, now.Process)
	if err != nil {
		return false, fmt.Errorf("look whether %s is alive: %w", now.Process, err)
	}
	after, err := m.cfg.Store.Clock(ctx)
	if err != nil {
		return false, fmt.Errorf("look whether %s is alive: %w", now.Process, err)
	}
	// A clock that was set back would not reach the end for as long.
	same := was.id == now.ID && was.ping.Equal(ping) && was.election == before.Election && was.election == after.Election && !before.Time.Before(was.since)
	if !same {
		was = sighting{id: now.ID, ping: ping, election: after.Election, since: after.Time, here: time.Now()}
	}
	was.looked = time.Now()
	m.mu.Lock()
	m.seen[now.Name] = was
	m.mu.Unlock()
	// This process's clock counts, too: the store's may have been set.
	return same && before.Time.Sub(was.since) > m.cfg.Expiry && time.Since(was.here) > m.cfg.Expiry, nil
}

// beAlive pings if the process is not alive for others: at first, or when it could not ping
// for long.
func (m *Manager) beAlive(ctx context.Context) (*deadline, error) {
	m.mu.Lock()
	alive := m.alive
	m.mu.Unlock()
	if alive != nil && !alive.passed() {
		return alive, nil
	}
	if err := m.ping(ctx); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.alive, nil
}

func (m *Manager) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Ping)
	defer cancel()
	select {
	case m.pinging <- struct{}{}:
		defer func() { <-m.pinging }()
	case <-ctx.Done():
		return fmt.Errorf("ping: %w: %w", ErrUnavailable, context.Cause(ctx))
	}
	m.mu.Lock()
	m.pinged = true
	m.mu.Unlock()
	sent := time.Now()
	err := m.cfg.Store.Ping(ctx, m.cfg.Process)
	m.metrics.sign(sent, err)
	if err != nil {
		return fmt.Errorf("ping: %w", err)
	}
	until := sent.Add(m.cfg.Expiry - m.cfg.Margin)
	m.mu.Lock()
	alive := m.alive
	m.mu.Unlock()
	if alive != nil && alive.extend(until) {
		return nil
	}
	// The locks of before are over.
	m.expire(alive)
	next := &deadline{}
	next.over = func() { m.expire(next) }
	if !next.extend(until) {
		return fmt.Errorf("ping: it took too long: %w", ErrUnavailable)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.alive = next
	return nil
}

// expire ends the locks that were taken while the process was alive until then, because they
// may be overtaken from now on.
func (m *Manager) expire(alive *deadline) {
	m.endIf(func(l *Lock) bool { return l.alive == alive }, ErrExpired)
}

// endIf ends the contexts of some locks.
func (m *Manager) endIf(chosen func(*Lock) bool, why error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, l := range m.held {
		if chosen(l) {
			delete(m.held, id)
			l.end(why)
			m.metrics.ended(why)
		}
	}
}

// Run pings, unlocks what could not be unlocked, and compares the locks of the process in
// the store with those that it has, until ctx is done.
func (m *Manager) Run(ctx context.Context) {
	tick := time.NewTicker(m.cfg.Ping)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-m.wake:
			if wait(ctx, m.cfg.Retry) != nil {
				return
			}
		case <-ctx.Done():
			return
		}
		if err := m.round(ctx); err != nil && ctx.Err() == nil {
			m.cfg.Failed(err)
		}
	}
}

func (m *Manager) round(ctx context.Context) error {
	m.mu.Lock()
	began := m.alive != nil
	for name, at := range m.freed {
		if time.Since(at) > m.cfg.Retry*3/2 {
			delete(m.freed, name)
		}
	}
	m.mu.Unlock()
	if !began {
		return nil // It has never wanted a lock.
	}
	return errors.Join(m.ping(ctx), m.unlockAll(ctx), m.audit(ctx), m.sweep(ctx))
}

const (
	// pingsKept is how old a ping must be to be removed, sweepEvery the time between two looks
	// of a process for such pings.
	pingsKept  = 7 * 24 * time.Hour
	sweepEvery = 24 * time.Hour
)

// sweep removes pings that processes have left that ended without Close, rarely.
func (m *Manager) sweep(ctx context.Context) error {
	store, ok := m.cfg.Store.(Sweeper)
	if !ok || !m.swept.IsZero() && time.Since(m.swept) < sweepEvery {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Ping)
	defer cancel()
	if err := store.SweepPings(ctx, pingsKept); err != nil {
		return fmt.Errorf("remove old pings: %w", err)
	}
	m.swept = time.Now()
	return nil
}

// unlockAll retries the unlocks that have failed.
func (m *Manager) unlockAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Ping)
	defer cancel()
	m.mu.Lock()
	todo := maps.Clone(m.unlocks)
	m.mu.Unlock()
	var errs []error
	for id, name := range todo {
		if err := m.cfg.Store.Release(ctx, name, id); err != nil {
			errs = append(errs, fmt.Errorf("unlock %s: %w", name, err))
			continue
		}
		m.disown(id)
	}
	return errors.Join(errs...)
}

// audit compares the locks of the process in the store with those that it has. A lock that
// the store does not have any more is lost: an operator has released it. A lock that the
// process does not know is that of a command that was executed late, after it had been
// unlocked: it is unlocked again.
func (m *Manager) audit(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Ping)
	defer cancel()
	m.mu.Lock()
	held := maps.Clone(m.held)
	m.mu.Unlock()
	list, err := m.cfg.Store.List(ctx, m.cfg.Process)
	if err != nil {
		return fmt.Errorf("compare the locks: %w", err)
	}
	for _, r := range list {
		if !r.IsLocked() || r.TTL > 0 {
			continue
		}
		delete(held, r.ID)
		m.mu.Lock()
		known := m.mine[r.ID]
		m.mu.Unlock()
		if !known {
			m.unlock(r.Name, r.ID)
		}
	}
	return m.confirm(ctx, held)
}

// confirm ends locks if the store does not have them any more. That List does not show
// them is not proof: a new primary may return the state before the lock was acquired.
func (m *Manager) confirm(ctx context.Context, missing map[bson.ObjectID]*Lock) error {
	var errs []error
	for id, l := range missing {
		switch _, err := m.cfg.Store.Renew(ctx, l.record.Name, id); {
		case errors.Is(err, ErrLost):
			m.endIf(func(other *Lock) bool { return other == l }, fmt.Errorf("%s: %w", l.record.Name, ErrLost))
		case err != nil:
			errs = append(errs, fmt.Errorf("compare the locks: %w", err))
		}
	}
	return errors.Join(errs...)
}

// Close unlocks all locks, and removes the ping of the process, until ctx is done. Nothing
// may use the locks any more, and Run must have returned.
func (m *Manager) Close(ctx context.Context) error {
	m.mu.Lock()
	for id, l := range m.held {
		m.unlocks[id] = l.record.Name
	}
	m.mu.Unlock()
	if !m.endAll() {
		return nil
	}
	for {
		err := m.unlockAll(ctx)
		if err == nil {
			err = m.removePing(ctx)
		}
		if err == nil || !mayPass(err) {
			return err
		}
		if pause(ctx, m.cfg.Retry) != nil {
			return fmt.Errorf("unlock all: %w", err)
		}
	}
}

// Leave ends the contexts of all locks without unlocking them, and removes the ping of the
// process, until ctx is done: the process that continues their work takes them up with
// [Wants.Again]; for everybody else they are those of a process that has died. Unlocks
// that have failed are tried once more. The locks must not be used any more, and Run must have returned.
func (m *Manager) Leave(ctx context.Context) error {
	if !m.endAll() {
		return nil
	}
	return errors.Join(m.unlockAll(ctx), m.removePing(ctx))
}

// endAll ends the contexts of all locks, and reports whether the process has a ping to be removed. Without one it has no locks.
func (m *Manager) endAll() (pinged bool) {
	m.mu.Lock()
	alive, pinged := m.alive, m.pinged
	m.mu.Unlock()
	if !pinged {
		return false
	}
	if alive != nil {
		alive.stop()
	}
	m.endIf(func(*Lock) bool { return true }, ErrUnlocked)
	return true
}

func (m *Manager) removePing(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Ping)
	defer cancel()
	return m.cfg.Store.RemovePing(ctx, m.cfg.Process)
}
