package repair

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/jobs"
	"github.com/oplogrep/replicator/lease/locks"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/request"
)

// Scope says which namespaces are mirrored: *scope.Scope.
type Scope interface {
	// Target returns the target's name of a namespace of the source, false if it is not
	// mirrored.
	Target(ns oplog.Namespace) (oplog.Namespace, bool)
}

// Cuts are the consistent cuts of the link: see control.Cuts.
type Cuts interface {
	// Cut asks for a cut. It does not block.
	Cut()
	// NewestCut returns the newest cut, and the reason why there is no newer one.
	NewestCut() (newest checkpoint.Cut, why string)
}

// Locks are the named locks of the link's repairs: *jobs.Locks. The Manager uses them from one
// goroutine.
type Locks interface {
	// Begin begins a leadership: locks can be taken until ctx is done, or End.
	Begin(ctx context.Context)
	// End unlocks all locks, unless ctx is done.
	End(ctx context.Context)
	// Take takes a lock, once, or takes up that of an earlier leader.
	Take(term int64, w jobs.Want) (*locks.Lock, error)
	// Release unlocks.
	Release(name string)
	// Keep unlocks all but the locks with these names: also those that earlier leaders have left.
	Keep(term int64, names map[string]bool)
}

// Config has the settings of a Manager.
type Config struct {
	// Source and Target run commands on the primaries.
	Source, Target mongo.Caller
	Scope          Scope
	Cuts           Cuts
	Locks          Locks
	// Held reports whether the link applies nothing at present on purpose, as it is paused. May be nil.
	Held func() bool
	// Delay is how long after the source the link applies entries.
	Delay time.Duration
	// Proved is called with documents that are the same on both sides at a cut, and were not before;
	// its error is told, and the repair done all the same. May be nil.
	Proved func(ctx context.Context, ns oplog.Namespace, ids []bson.RawValue, cut *checkpoint.Cut) error
	// Patience is for how long a group is tried that cannot be written now, and for how long a
	// cut is waited for, while the link is not held. Zero means ten minutes.
	Patience time.Duration
}

const (
	defaultPatience = 10 * time.Minute
	// groupDocs is how many documents a group has at most: lanes wait for one while it is written.
	groupDocs = 100
	// idleShare limits the part of the time (1/n) that lanes are idle for repairs.
	idleShare = 10
	// mostInRange is how many documents a range may have.
	mostInRange = 20_000
	// firstPause and longestPause are between two tries.
	firstPause, longestPause = 100 * time.Millisecond, 5 * time.Second
	// heldPoll is how often it is looked whether the link is held.
	heldPoll = time.Second
	// cutAgain is the time after which a cut is asked for again.
	cutAgain = 5 * time.Second
)

// Manager carries out the repairs of one link. Create one with New. Run is called for each
// leadership; Groups and Follow are safe for concurrent use.
type Manager struct {
	cfg    Config
	groups chan *applier.Repair

	wake chan struct{}

	mu    sync.Mutex // guards the rest
	jobs  map[string]*job
	queue []*job
	// term is that of the lease, 0 while it is not known.
	term int64
}

// New returns a Manager. It does no I/O.
func New(cfg Config) *Manager {
	cfg.Patience = cmp.Or(cfg.Patience, defaultPatience)
	return &Manager{cfg: cfg, groups: make(chan *applier.Repair), jobs: map[string]*job{}, wake: make(chan struct{}, 1)}
}

// Groups are the groups for the applier of each attempt, nil for those of a nil Manager.
func (m *Manager) Groups() <-chan *applier.Repair {
	if m == nil {
		return nil
	}
	return m.groups
}

// Follow begins a repair under the term of a lease, unless it is begun, and returns its state
// and outcome so far. One that has ended is forgotten with Forget.
func (m *Manager) Follow(term int64, id string, args request.RepairArgs, why string) (state, outcome string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	j := m.jobs[id]
	if j == nil {
		j = &job{m: m, term: term, args: args, why: why, state: request.Working, outcome: "waits for its turn"}
		m.jobs[id], m.queue = j, append(m.queue, j)
		m.wakeUp()
	}
	return j.state, j.outcome
}

// Leads records the term in which this process leads. It does not block.
func (m *Manager) Leads(term int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.term = term
	m.wakeUp()
}

func (m *Manager) wakeUp() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Forget forgets a repair that has been answered.
func (m *Manager) Forget(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.jobs, id)
}

// run carries out repairs, one after the other, until ctx is done. What it has not ended then is
// forgotten: the next leader finds its request.
func (m *Manager) run(ctx context.Context) {
	m.clear() // jobs begun after the end of the last leadership have its term
	defer m.Leads(0)
	defer m.clear()
	for {
		m.sweep()
		j := m.next()
		if j == nil {
			select {
			case <-m.wake:
				continue
			case <-ctx.Done():
				return
			}
		}
		j.run(ctx)
		if ctx.Err() != nil {
			return
		}
	}
}

// sweep unlocks what earlier leaders have left, which were killed. Nothing of theirs can be written
// any more, and what they have not ended takes its lock again.
func (m *Manager) sweep() {
	m.mu.Lock()
	term := m.term
	m.mu.Unlock()
	if term > 0 {
		m.cfg.Locks.Keep(term, nil)
	}
}

func (m *Manager) next() *job {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.queue) == 0 {
		return nil
	}
	j := m.queue[0]
	m.queue = m.queue[1:]
	return j
}

func (m *Manager) clear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.jobs, m.queue = map[string]*job{}, nil
}

// say sets the outcome of a repair.
func (j *job) say(state, format string, args ...any) {
	j.m.mu.Lock()
	defer j.m.mu.Unlock()
	j.state, j.outcome = state, fmt.Sprintf(format, args...)
}

// lock waits for the lock of the collection.
func (j *job) lock(ctx context.Context, name, db string) error {
	for left := j.patience(); ; {
		_, err := j.m.cfg.Locks.Take(j.term, jobs.Want{
			Name: name, Under: jobs.Database(db),
			Why: fmt.Sprintf("repair documents of %s%s", j.args.Namespace, j.reason()),
		})
		switch busy, isBusy := errors.AsType[*locks.BusyError](err); {
		case err == nil:
			return nil
		case isBusy:
			if left.over() { // other repairs wait behind this one
				return &failure{fmt.Sprintf("its collection was not free within %s: %s", j.m.cfg.Patience, busy.Record.String())}
			}
			j.say(request.Working, "waits: %s", busy.Record.String())
		default:
			j.say(request.Working, "waits, as its lock cannot be taken: %v", err)
		}
		if err := mongo.Pause(ctx, time.Second); err != nil {
			return err
		}
	}
}

func (j *job) reason() string {
	if j.why == "" {
		return ""
	}
	return ": " + j.why
}
