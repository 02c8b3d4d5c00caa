package locks

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/lease"
)

var (
	// ErrBusy is wrapped by a *BusyError.
	ErrBusy = errors.New("the lock is taken")
	// ErrExpired ends the context of a lock: the process could not tell the store for too
	// long that it is alive.
	ErrExpired = errors.New("the lock has ended: it was not renewed in time")
	// ErrUnlocked ends the context of a lock that the process itself has unlocked.
	ErrUnlocked = errors.New("the lock was unlocked")
)

// BusyError reports that a lock was not acquired.
type BusyError struct {
	// Record is that of the process that has the lock.
	Record Record
	// Waited is for how long the caller waited.
	Waited time.Duration
}

func (e *BusyError) Error() string {
	if e.Waited == 0 {
		return e.Record.String()
	}
	return fmt.Sprintf("timed out after %s waiting for %s: %s", e.Waited.Round(time.Millisecond), e.Record.Name, e.Record)
}

// Is makes it an ErrBusy.
func (e *BusyError) Is(target error) bool { return target == ErrBusy }

// Config says how a Manager takes slow locks.
type Config struct {
	Store Store
	// Process is unique to this process, and fixed for its life. Default: that of
	// [lease.NewProcess].
	Process string
	// Expiry is for how long another process must not have shown any sign of life before its
	// lock is overtaken. Default 15 min. All processes must have the same.
	Expiry time.Duration
	// Ping is the time between two signs of life. Default 30 s.
	Ping time.Duration
	// Margin is how long before others may overtake them the process stops using its locks.
	// Default Ping.
	Margin time.Duration
	// Retry is the time between two tries, on average. Default 500 ms.
	Retry time.Duration
	// Failed, if not nil, is called with each error that is retried.
	Failed func(error)
	// Registry, if not nil, gets the metrics of all Managers together.
	Registry prometheus.Registerer
}

func (c *Config) setDefaults() {
	if c.Process == "" {
		c.Process = lease.NewProcess("")
	}
	for of, by := range map[*time.Duration]time.Duration{&c.Expiry: 15 * time.Minute, &c.Ping: 30 * time.Second, &c.Retry: 500 * time.Millisecond} {
		if *of == 0 {
			*of = by
		}
	}
	if c.Margin == 0 {
		c.Margin = c.Ping
	}
	if c.Failed == nil {
		c.Failed = func(error) {}
	}
}

// Manager takes slow locks for one process. Run must run while it is used. Its methods are
// safe for concurrent use.
type Manager struct {
	cfg     Config
	metrics *metrics
	// pinging has room for one: one ping at a time.
	pinging chan struct{}

	mu sync.Mutex // guards the rest
	// alive is when the process is no longer alive for others, unless it pings.
	alive *deadline
	// pinged is whether the store may have a ping of the process.
	pinged bool
	// mine are the IDs of this process: of locks that it has, wants, or is to unlock.
	mine map[bson.ObjectID]bool
	held map[bson.ObjectID]*Lock
	// unlocks are the names of the locks that are to be unlocked, by their ID.
	unlocks map[bson.ObjectID]string
	// seen has the sightings of locks that other processes have, freed when this process unlocked
	// one; by name.
	seen  map[string]sighting
	freed map[string]time.Time
	// wake makes the pinger begin a round.
	wake chan struct{}
	// swept is when old pings were removed last. It belongs to Run.
	swept time.Time
}

// NewManager returns a Manager. It does no I/O.
func NewManager(cfg Config) *Manager {
	cfg.setDefaults()
	return &Manager{
		cfg: cfg, metrics: newMetrics(cfg.Registry, kindSlow), mine: map[bson.ObjectID]bool{}, held: map[bson.ObjectID]*Lock{}, unlocks: map[bson.ObjectID]string{},
		seen: map[string]sighting{}, freed: map[string]time.Time{}, wake: make(chan struct{}, 1), pinging: make(chan struct{}, 1),
	}
}

// Lock is a lock that this process has.
type Lock struct {
	m      *Manager
	record Record
	// alive is until when others take the process for alive, by pings without a break since
	// before the lock was asked for.
	alive *deadline
	ctx   context.Context //nolint:containedctx // It is what a lock is.
	end   context.CancelCauseFunc
}

// Context ends with the lock, or with the context that Lock was called with.
func (l *Lock) Context() context.Context { return l.ctx }

// Record returns the lock's record, as it was acquired. Its Term is the fencing token.
func (l *Lock) Record() Record { return l.record }

// Err returns why the lock is over, nil if it is not. It also notices it before the
// context has ended: call it right before what must not happen without the lock.
func (l *Lock) Err() error {
	if l.alive.passed() {
		l.m.expire(l.alive)
	}
	return context.Cause(l.ctx)
}

// Wants says how Lock takes a lock.
type Wants struct {
	// Wait limits how long Lock waits, but for a last try. 0: it tries once. Negative: until ctx
	// is done. A try takes at most an interval of the pings.
	Wait time.Duration
	// Again, if not nil, reports that the lock of another process, or of an earlier
	// acquisition, is the caller's own, which it takes up again. Only exactly that
	// acquisition is overtaken.
	Again func(Record) bool
	// Who is the part of the process that wants it, for others to see.
	Who string
}

// Lock takes a lock, for a reason that others are shown. If another process has it, and is
// alive, it returns a *BusyError.
func (m *Manager) Lock(ctx context.Context, name, why string, w Wants) (*Lock, error) {
	began := time.Now()
	l, err := m.lock(ctx, name, why, w)
	m.metrics.tried(began, err)
	return l, err
}

func (m *Manager) lock(ctx context.Context, name, why string, w Wants) (*Lock, error) {
	a := &attempt{Claim: Claim{Name: name, Process: m.cfg.Process, Who: w.Who, Why: why}}
	began := time.Now()
	err := m.giveWay(ctx, name, w.Wait)
	for err == nil {
		var now Record
		now, err = m.tryFor(ctx, w.Wait-time.Since(began), w, a)
		if err == nil && now.ID == a.ID && ctx.Err() != nil {
			a.uncertain, err = true, context.Cause(ctx)
			break
		}
		if err == nil && now.ID == a.ID {
			var l *Lock
			if l, err = m.hold(ctx, now, a.alive); err == nil {
				return l, nil
			}
		}
		if a.uncertain = a.uncertain || err != nil && a.alive != nil; err != nil && !mayPass(err) {
			break
		}
		left := w.Wait - time.Since(began)
		if w.Wait >= 0 && left <= 0 {
			if err == nil {
				err = &BusyError{Record: now, Waited: min(w.Wait, time.Since(began))}
			}
			break
		}
		if err != nil {
			m.cfg.Failed(err)
		}
		if w.Wait < 0 {
			left = m.cfg.Retry
		}
		err = pause(ctx, min(m.cfg.Retry, left))
	}
	m.abandon(a)
	return nil, fmt.Errorf("lock %s: %w", name, err)
}

// attempt is a claim that is sent again and again. As other processes may overtake a lock that it has got
// once the pings of the process had a break, it is another one from then on.
type attempt struct {
	Claim
	alive *deadline
	// uncertain is whether it may have got the lock though no reply said so.
	uncertain bool
}

// abandon releases the lock that an attempt may have got.
func (m *Manager) abandon(a *attempt) {
	if a.uncertain {
		m.unlock(a.Name, a.ID)
	} else {
		m.disown(a.ID)
	}
}

// giveWay waits after this process has unlocked the same lock, so that each process that
// waits for it tries before.
func (m *Manager) giveWay(ctx context.Context, name string, limit time.Duration) error {
	m.mu.Lock()
	freed, ok := m.freed[name]
	m.mu.Unlock()
	left := m.cfg.Retry*3/2 - time.Since(freed)
	if !ok || left <= 0 || limit == 0 {
		return nil
	}
	if limit > 0 {
		left = min(left, limit/2)
	}
	return wait(ctx, left)
}

// tryFor tries once, for no longer than an interval of the pings, and than the caller waits:
// the store may be up without a majority that confirms a write.
func (m *Manager) tryFor(ctx context.Context, left time.Duration, w Wants, a *attempt) (Record, error) {
	limit := m.cfg.Ping
	if w.Wait > 0 {
		limit = min(limit, max(left, m.cfg.Retry))
	}
	sent, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	// A claim that is on its way as the caller gives up is answered before the lock is unlocked: it could arrive
	// after that.
	defer context.AfterFunc(ctx, func() {
		late := time.AfterFunc(replyWithin, cancel)
		context.AfterFunc(sent, func() { late.Stop() })
	})()
	return m.try(sent, a, w.Again)
}

// replyWithin is how long the reply to a claim is waited for once the caller has given up.
const replyWithin = 2 * time.Second

// try tries once.
func (m *Manager) try(ctx context.Context, a *attempt, again func(Record) bool) (Record, error) {
	alive, err := m.beAlive(ctx)
	if err != nil {
		return Record{}, err
	}
	if a.alive != alive {
		if a.alive != nil {
			m.abandon(a)
		}
		a.alive, a.uncertain, a.ID = alive, false, bson.NewObjectID()
		m.own(a.ID)
	}
	c := a.Claim
	now, err := m.cfg.Store.Acquire(ctx, c)
	if err != nil || now.ID == c.ID {
		return now, err
	}
	overtake := again != nil && again(now)
	if !overtake {
		if overtake, err = m.isDead(ctx, now); err != nil {
			// It does not matter for this try whether it is.
			m.cfg.Failed(err)
			return now, nil
		}
	}
	if !overtake {
		return now, nil
	}
	m.endIf(func(l *Lock) bool { return l.record.ID == now.ID }, fmt.Errorf("%s: %w", now.Name, ErrLost))
	c.Overtake, c.Renewals = now.ID, now.Renewals
	return m.cfg.Store.Acquire(ctx, c)
}

// hold makes a lock of a record that this process has got, by a claim that was sent while it
// was alive until then. The reply may have come so late that others have overtaken it.
func (m *Manager) hold(ctx context.Context, now Record, alive *deadline) (*Lock, error) {
	l := &Lock{m: m, record: now, alive: alive}
	l.ctx, l.end = context.WithCancelCause(ctx)
	// An acquisition of this process may have overtaken another one of it.
	m.endIf(func(l *Lock) bool { return l.record.Name == now.Name && l.record.Term < now.Term }, fmt.Errorf("%s: %w", now.Name, ErrLost))
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.seen, now.Name)
	if m.alive != alive || alive.passed() {
		l.end(ErrExpired)
		return nil, fmt.Errorf("it took too long to acquire it: %w", ErrExpired)
	}
	for _, other := range m.held {
		if other.record.Name == now.Name {
			l.end(ErrLost)
			return nil, fmt.Errorf("%w: this process has taken it again", ErrLost)
		}
	}
	m.held[now.ID] = l
	return l, nil
}

// Unlock ends the context of the lock, and unlocks it. If that fails, or ctx is done, the
// Manager tries again until it is confirmed. Nothing may use the lock any more.
func (l *Lock) Unlock(ctx context.Context) {
	l.end(ErrUnlocked)
	m, id := l.m, l.record.ID
	m.mu.Lock()
	if m.held[id] == l {
		delete(m.held, id)
		m.metrics.ended(ErrUnlocked)
	}
	known := m.mine[id]
	m.freed[l.record.Name] = time.Now()
	m.mu.Unlock()
	if !known {
		return // unlocked before
	}
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Ping)
	defer cancel()
	if err := m.cfg.Store.Release(ctx, l.record.Name, id); err != nil {
		m.cfg.Failed(fmt.Errorf("unlock %s: %w", l.record.Name, err))
		m.unlock(l.record.Name, id)
		return
	}
	m.disown(id)
}

func (m *Manager) own(id bson.ObjectID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mine[id] = true
}

func (m *Manager) disown(id bson.ObjectID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.mine, id)
	delete(m.unlocks, id)
}

// unlock adds a lock to those that are to be unlocked.
func (m *Manager) unlock(name string, id bson.ObjectID) {
	m.mu.Lock()
	m.mine[id] = true
	m.unlocks[id] = name
	m.mu.Unlock()
	select {
	case m.wake <- struct{}{}:
	default:
	}
}
