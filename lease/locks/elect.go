package locks

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/lease"
)

// ErrClosed reports that an Elect was closed.
var ErrClosed = errors.New("the locks of this process are closed")

// ElectConfig says how an Elect takes locks. All processes should have the same times.
type ElectConfig struct {
	Store Store
	// Process is unique to this process, and fixed for its life. Default: that of
	// [lease.NewProcess].
	Process string
	// Who is the part of the process that takes locks, for others to see.
	Who string
	// TTL is how long a lock lasts after it was acquired or renewed. Default 10 s.
	TTL time.Duration
	// Every is the time between two renewals, and the longest between two tries. Default a
	// fifth of the TTL.
	Every time.Duration
	// Margin is how long before its end a lock is no longer used. Default a fifth of the TTL.
	Margin time.Duration
	// Failed, if not nil, is called with each error that is retried.
	Failed func(error)
	// Registry, if not nil, gets the metrics of all Elects together.
	Registry prometheus.Registerer
}

// Elect runs functions while this process has a lock. It has no goroutines but those of its
// locks. Its methods are safe for concurrent use.
type Elect struct {
	cfg     ElectConfig
	metrics *metrics
	// closed is closed by Close, running counts the calls of Lock, and functions of TryLock.
	closed  chan struct{}
	running sync.WaitGroup

	mu    sync.Mutex // guards the rest
	shut  bool
	terms map[string]*term
	// freed is when this process last released a lock.
	freed map[string]time.Time
	// seen are the locks that other processes had when this one wanted them last.
	seen map[string]standstill
}

// NewElect returns an Elect. It does no I/O.
func NewElect(cfg ElectConfig) *Elect {
	if cfg.Process == "" {
		cfg.Process = lease.NewProcess("")
	}
	if cfg.TTL == 0 {
		cfg.TTL = lease.DefaultTTL
	}
	if cfg.Every == 0 {
		cfg.Every = cfg.TTL / 5
	}
	if cfg.Margin == 0 {
		cfg.Margin = cfg.TTL / 5
	}
	if cfg.Failed == nil {
		cfg.Failed = func(error) {}
	}
	return &Elect{cfg: cfg, metrics: newMetrics(cfg.Registry, kindEnding), closed: make(chan struct{}), terms: map[string]*term{}, freed: map[string]time.Time{}, seen: map[string]standstill{}}
}

// Lock waits until it has the lock, and runs a function with it. The context of the function
// ends with the lock, with ctx, and with Unlock and Close; the lock is released when the
// function has returned, and all functions that it has begun to run with locks. Lock returns nil
// if the function had the lock until then, otherwise why not. A function that ignores its
// context runs on without the lock.
//
// Lock is re-entrant: with the context of a function that has the lock it runs the other one
// at once. Without, it waits, also for another function of the same Elect.
func (e *Elect) Lock(ctx context.Context, key, why string, f func(context.Context)) error {
	for s := scopeOf(ctx); s != nil; s = s.outer {
		if s.term.e == e && s.term.record.Name == key {
			return s.term.again(ctx, f)
		}
	}
	if err := e.enter(); err != nil {
		return fmt.Errorf("lock %s: %w", key, err)
	}
	defer e.running.Done()
	t, _, err := e.acquire(ctx, key, why, true)
	if err != nil {
		return fmt.Errorf("lock %s: %w", key, err)
	}
	return t.run(f) //nolint:contextcheck // a term has a context of its own
}

// TryLock tries once to get the lock, and if it does runs a function with it, as Lock does, in
// a goroutine of its own. It returns whether it does; otherwise another one has the lock.
func (e *Elect) TryLock(ctx context.Context, key, why string, f func(context.Context)) (bool, error) {
	if err := e.enter(); err != nil {
		return false, fmt.Errorf("try to lock %s: %w", key, err)
	}
	defer e.running.Done()
	t, _, err := e.acquire(ctx, key, why, false)
	if err != nil {
		return false, fmt.Errorf("try to lock %s: %w", key, err)
	}
	if t == nil {
		return false, nil
	}
	e.running.Go(func() { //nolint:contextcheck // a term has a context of its own
		if err := t.run(f); err != nil {
			e.cfg.Failed(fmt.Errorf("the lock %s was lost: %w", key, err))
		}
	})
	return true, nil
}

func (e *Elect) enter() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.shut {
		return ErrClosed
	}
	e.running.Add(1)
	return nil
}

// Unlock ends the context of the function that has the lock, and waits until it has returned
// and the lock is released. The function itself, and those of locks within it, must return
// instead. It reports whether this Elect had the lock.
func (e *Elect) Unlock(key string) bool {
	e.mu.Lock()
	t := e.terms[key]
	e.mu.Unlock()
	if t == nil {
		return false
	}
	t.end(ErrUnlocked)
	<-t.released
	return true
}

// Holding returns the locks that functions of this Elect have, sorted.
func (e *Elect) Holding() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Sorted(maps.Keys(e.terms))
}

// Locked returns the locks that any process has, sorted by name.
func (e *Elect) Locked(ctx context.Context) ([]Record, error) {
	list, err := e.cfg.Store.List(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("list the locks: %w", err)
	}
	return slices.DeleteFunc(list, func(r Record) bool { return !r.IsLocked() }), nil
}

// Close ends the contexts of all functions and waits until they have returned and their locks
// are released. From then on no lock is taken.
func (e *Elect) Close() {
	e.mu.Lock()
	if !e.shut {
		e.shut = true
		close(e.closed)
	}
	for _, t := range e.terms {
		t.end(ErrClosed)
	}
	e.mu.Unlock()
	e.running.Wait()
}

// acquire acquires a lock: until it has it, or, if it is not to wait, once. The record is of
// the one that has it.
func (e *Elect) acquire(ctx context.Context, key, why string, waits bool) (*term, Record, error) {
	began := time.Now()
	t, now, err := e.claim(ctx, key, why, waits)
	result := err
	if t == nil && err == nil {
		result = ErrBusy
	}
	e.metrics.tried(began, result)
	return t, now, err
}

func (e *Elect) claim(ctx context.Context, key, why string, waits bool) (*term, Record, error) {
	ctx, cancel, stop := e.untilClosed(ctx)
	defer stop()
	c := Claim{Name: key, Process: e.cfg.Process, ID: bson.NewObjectID(), TTL: e.cfg.TTL, Who: e.cfg.Who, Why: why}
	uncertain := false
	err := e.giveWay(ctx, key, waits)
	for err == nil {
		var now Record
		sent := time.Now()
		now, err = e.ask(&c, func(c Claim) (Record, error) { return e.send(ctx, c) })
		if err == nil && now.ID == c.ID {
			var t *term
			if t, err = e.begin(ctx, cancel, now, sent); err == nil {
				return t, now, nil
			}
		}
		uncertain = uncertain || err != nil
		if waits && ctx.Err() != nil && mayPass(err) { // a store that could not be asked any more says that it is not available
			err = context.Cause(ctx)
			break
		}
		if err == nil && !waits {
			cancel(nil)
			e.forget(ctx, c, uncertain)
			return nil, now, nil
		}
		if err != nil && (!waits || !mayPass(err)) {
			break
		}
		if err != nil {
			e.cfg.Failed(fmt.Errorf("lock %s: %w", key, err))
		}
		err = pause(ctx, e.cfg.Every*2/3) // at most Every
	}
	cancel(nil)
	e.forget(ctx, c, uncertain)
	return nil, Record{}, err
}

// untilClosed returns a context that Close ends, until stop is called.
func (e *Elect) untilClosed(ctx context.Context) (_ context.Context, cancel context.CancelCauseFunc, stop func()) {
	ctx, cancel = context.WithCancelCause(ctx)
	stopped := make(chan struct{})
	var watcher sync.WaitGroup
	watcher.Go(func() {
		select {
		case <-e.closed:
			cancel(ErrClosed)
		case <-stopped:
		}
	})
	return ctx, cancel, func() {
		close(stopped)
		watcher.Wait()
	}
}

// send sends a claim.
func (e *Elect) send(ctx context.Context, c Claim) (Record, error) {
	ctx, cancel := context.WithTimeout(ctx, e.cfg.TTL-e.cfg.Margin)
	defer cancel()
	return e.cfg.Store.Acquire(ctx, c)
}

// forget releases the lock that a claim may have got. If that fails, its TTL ends it.
func (e *Elect) forget(ctx context.Context, c Claim, uncertain bool) {
	if !uncertain {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.cfg.Every)
	defer cancel()
	// The caller gets the lasting error.
	if err := e.cfg.Store.Release(ctx, c.Name, c.ID); mayPass(err) {
		e.cfg.Failed(err)
	}
}

// giveWay waits after this process has released the same lock, so that each process that
// waits for it tries before.
func (e *Elect) giveWay(ctx context.Context, key string, waits bool) error {
	e.mu.Lock()
	for k, at := range e.freed {
		if time.Since(at) > e.cfg.Every {
			delete(e.freed, k)
		}
	}
	freed, ok := e.freed[key]
	e.mu.Unlock()
	if !ok || !waits {
		return context.Cause(ctx)
	}
	return wait(ctx, e.cfg.Every-time.Since(freed))
}
