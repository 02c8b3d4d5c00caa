package locks

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// term is one acquisition of a lock that ends unless it is renewed.
type term struct {
	e      *Elect
	record Record
	ctx    context.Context //nolint:containedctx // See Lock for its meaning.
	end    context.CancelCauseFunc
	limit  *deadline
	// lost is closed when the lock is lost, released when it is released.
	once           sync.Once
	lost, released chan struct{}
	// leave says to the terms around it that it is over.
	leave func()

	mu       sync.Mutex // guards returned
	returned bool
	// inner counts the functions that were begun within this one, with locks of their own.
	inner sync.WaitGroup
}

// scope is a function with a lock: its term, and the scope in which it was run. One term has
// more than one if its lock was taken again.
type scope struct {
	term  *term
	outer *scope
}

// scopeKey is the key of the innermost scope in a context.
type scopeKey struct{}

func scopeOf(ctx context.Context) *scope {
	s, _ := ctx.Value(scopeKey{}).(*scope)
	return s
}

// join makes all terms around wait for the caller, until it calls leave, unless a function of
// theirs has returned.
func join(s *scope) (leave func(), err error) {
	var joined []*term
	leave = func() {
		for _, t := range joined {
			t.inner.Done()
		}
	}
	for ; s != nil; s = s.outer {
		if !s.term.enter() {
			leave()
			return nil, ErrUnlocked
		}
		joined = append(joined, s.term)
	}
	return leave, nil
}

func (t *term) enter() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.returned {
		t.inner.Add(1)
	}
	return !t.returned
}

// Token returns the fencing token of the lock that a function of an Elect or a Role has, from
// the function's context; 0 if there is none. What the lock protects must refuse smaller ones.
// In a function within another one it is that of the inner one's lock.
func Token(ctx context.Context) int64 {
	if s := scopeOf(ctx); s != nil {
		return s.term.record.Term
	}
	return 0
}

// Check returns why the function with that context does not have its lock any more, or a
// function around it its own; nil if they have. It finds that before the context has ended, after a suspension: call it right before
// what must not happen without the lock.
func Check(ctx context.Context) error {
	for s := scopeOf(ctx); s != nil; s = s.outer {
		if err := s.term.err(); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// Lost returns a channel that is closed when the lock of a function's context is lost, nil if
// there is none. It is for a function that takes its time after its context has ended for
// another reason: the lock is kept meanwhile, unless it is lost.
func Lost(ctx context.Context) <-chan struct{} {
	if s := scopeOf(ctx); s != nil {
		return s.term.lost
	}
	return nil
}

// begin makes a term of a record that was acquired by a claim sent then.
func (e *Elect) begin(ctx context.Context, end context.CancelCauseFunc, now Record, sent time.Time) (*term, error) {
	leave, err := join(scopeOf(ctx))
	if err != nil {
		return nil, err
	}
	t := &term{e: e, record: now, end: end, leave: leave, lost: make(chan struct{}), released: make(chan struct{})}
	t.limit = &deadline{over: func() { t.lose(ErrExpired) }}
	t.ctx = context.WithValue(ctx, scopeKey{}, &scope{term: t, outer: scopeOf(ctx)})
	if !t.limit.extend(sent.Add(e.cfg.TTL - e.cfg.Margin)) {
		leave()
		return nil, fmt.Errorf("%w: it took too long to acquire it", ErrExpired)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.shut {
		end(ErrClosed)
	}
	e.terms[now.Name] = t
	delete(e.seen, now.Name)
	return t, nil
}

func (t *term) lose(why error) {
	t.end(why)
	t.once.Do(func() { close(t.lost) })
}

// err returns why the term is over, nil if it is not.
func (t *term) err() error {
	if t.limit.passed() {
		t.lose(ErrExpired)
	}
	return context.Cause(t.ctx)
}

// run runs the function, renews the lock until it has returned, and releases it. The context
// ends before that, also for what the function has left running.
func (t *term) run(f func(context.Context)) error {
	renewing, stop := context.WithCancelCause(context.WithoutCancel(t.ctx))
	var keeper sync.WaitGroup
	keeper.Go(func() { t.keep(renewing) })
	defer func() { // also if f panics
		t.end(ErrUnlocked)
		t.mu.Lock()
		t.returned = true
		t.mu.Unlock()
		t.inner.Wait()
		stop(nil)
		keeper.Wait()
		t.limit.stop()
		t.release()
		t.e.metrics.ended(context.Cause(t.ctx))
		t.leave()
	}()
	f(t.ctx)
	return Check(t.ctx)
}

// again runs another function within the first one.
func (t *term) again(ctx context.Context, f func(context.Context)) error {
	around := scopeOf(ctx)
	leave, err := join(around)
	if err != nil {
		return fmt.Errorf("lock %s: %w", t.record.Name, err)
	}
	defer leave()
	if err := Check(ctx); err != nil {
		return fmt.Errorf("lock %s: %w", t.record.Name, err)
	}
	ctx = context.WithValue(ctx, scopeKey{}, &scope{term: t, outer: around})
	f(ctx)
	return Check(ctx)
}

// keep renews the lock until it is lost or ctx is done. It continues when the function's
// context has ended, until the function has returned. It does not wait for a reply before it
// sends the next renewal, as a store may answer each of them slowly, or one may hang.
func (t *term) keep(ctx context.Context) {
	var renewals sync.WaitGroup
	defer renewals.Wait()
	every := t.e.cfg.Every
	failed := make(chan struct{}, 1)
	due := time.Now().Add(every)
	next := time.NewTimer(every)
	defer next.Stop()
	for {
		select {
		case <-next.C:
			renewals.Go(func() {
				if t.renew(ctx) {
					return
				}
				select {
				case failed <- struct{}{}:
				default:
				}
			})
			due = time.Now().Add(every)
		case <-failed:
			if again := time.Now().Add(every / 4); again.Before(due) {
				due = again
			}
		case <-t.lost:
			return
		case <-ctx.Done():
			return
		}
		next.Reset(time.Until(due))
	}
}

// renew renews the lock once. It reports whether that need not be tried again soon.
func (t *term) renew(ctx context.Context) bool {
	err := ErrExpired
	if !t.limit.passed() {
		err = t.send(ctx)
	}
	switch {
	case err == nil, ctx.Err() != nil:
		return true
	case errors.Is(err, ErrLost), errors.Is(err, ErrExpired):
		t.lose(err)
		return true
	default:
		t.e.cfg.Failed(err)
		return false
	}
}

// send sends a renewal. The lock may last longer than it does now, by another one; not by
// this one.
func (t *term) send(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, t.e.cfg.TTL-t.e.cfg.Margin)
	defer cancel()
	sent := time.Now()
	_, err := t.e.cfg.Store.Renew(ctx, t.record.Name, t.record.ID)
	t.e.metrics.sign(sent, err)
	if err != nil {
		return fmt.Errorf("renew it: %w", err)
	}
	if !t.limit.extend(sent.Add(t.e.cfg.TTL - t.e.cfg.Margin)) {
		return ErrExpired
	}
	return nil
}

// release gives the lock back. If that fails, its TTL ends it.
func (t *term) release() {
	defer close(t.released)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), t.e.cfg.Every)
	defer cancel()
	if err := t.e.cfg.Store.Release(ctx, t.record.Name, t.record.ID); err != nil {
		t.e.cfg.Failed(fmt.Errorf("release %s: %w", t.record.Name, err))
	}
	t.e.mu.Lock()
	defer t.e.mu.Unlock()
	if t.e.terms[t.record.Name] == t { // a later one may have it, if this one was lost
		delete(t.e.terms, t.record.Name)
	}
	t.e.freed[t.record.Name] = time.Now()
}
