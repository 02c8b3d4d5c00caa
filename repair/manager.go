package repair

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

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
	// NewestCut returns the newest one, and what is in the way of the next one.
	NewestCut() (newest checkpoint.Cut, why string)
}

// Locks are the named locks of the link's repairs: *jobs.Locks. The Manager uses them between Begin
// and End of a leadership, from one goroutine.
type Locks interface {
	// Take takes a lock, once, or takes up that of an earlier leader.
	Take(term int64, w jobs.Want) (*locks.Lock, error)
	// Release unlocks.
	Release(name string)
}

// Config says what a Manager repairs.
type Config struct {
	// Source and Target run commands on the primaries.
	Source, Target mongo.Caller
	Scope          Scope
	Cuts           Cuts
	Locks          Locks
	// Patience is for how long a group is tried that cannot be written now, and for how long a
	// cut is waited for. Zero means ten minutes.
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
	// cutAgain is the time after which a cut is asked for again.
	cutAgain = 5 * time.Second
)

// Manager carries out the repairs of one link. Create one with New. Run is called for each
// leadership; Groups and Follow are safe for concurrent use.
type Manager struct {
	cfg    Config
	groups chan *applier.Repair

	mu    sync.Mutex // guards the rest
	jobs  map[string]*job
	queue []*job
	wake  chan struct{}
}

// New returns a Manager. It does no I/O.
func New(cfg Config) *Manager {
	cfg.Patience = cmp.Or(cfg.Patience, defaultPatience)
	return &Manager{cfg: cfg, groups: make(chan *applier.Repair), jobs: map[string]*job{}, wake: make(chan struct{}, 1)}
}

// Groups are the groups for the applier of each attempt.
func (m *Manager) Groups() <-chan *applier.Repair { return m.groups }

// Follow begins a repair under the term of a lease, unless it is begun, and returns what has become
// of it until now. One that has ended is forgotten with Forget.
func (m *Manager) Follow(term int64, id string, args request.RepairArgs, why string) (state, outcome string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	j := m.jobs[id]
	if j == nil {
		j = &job{m: m, term: term, args: args, why: why, state: request.Working, outcome: "waits for its turn"}
		m.jobs[id], m.queue = j, append(m.queue, j)
		select {
		case m.wake <- struct{}{}:
		default:
		}
	}
	return j.state, j.outcome
}

// Forget forgets a repair that has been answered.
func (m *Manager) Forget(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.jobs, id)
}

// Run carries out repairs, one after the other, until ctx is done. What it has not ended then is
// forgotten: the next leader finds its request.
func (m *Manager) Run(ctx context.Context) {
	m.clear() // what was followed after the end of the last leadership has its term
	defer m.clear()
	for {
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

// say sets what has become of a repair.
func (j *job) say(state, format string, args ...any) {
	j.m.mu.Lock()
	defer j.m.mu.Unlock()
	j.state, j.outcome = state, fmt.Sprintf(format, args...)
}

// lock waits for the lock of the collection.
func (j *job) lock(ctx context.Context, name, db string) error {
	for until := time.Now().Add(j.m.cfg.Patience); ; {
		_, err := j.m.cfg.Locks.Take(j.term, jobs.Want{
			Name: name, Under: jobs.Database(db),
			Why: fmt.Sprintf("repair documents of %s%s", j.args.Namespace, j.reason()),
		})
		switch busy, isBusy := errors.AsType[*locks.BusyError](err); {
		case err == nil:
			return nil
		case isBusy:
			if time.Now().After(until) { // other repairs wait behind this one
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
