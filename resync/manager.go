package resync

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/jobs"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/request"
)

// Config has the link of a Manager, and its means to copy collections.
type Config struct {
	// Link is the link's name, MetaDB its metadata database on Target.
	Link   string
	MetaDB string
	Target mongo.Caller
	// Store is the link's, and Requests are the requests of operators to it.
	Store    *checkpoint.Store
	Requests *request.Store
	// Scope decides which collections the link mirrors.
	Scope Scope
	// Off makes a Manager that leaves nothing out, for the link of a part.
	Off bool
	// Unable, if not nil, is the reason why this process cannot copy.
	Unable error
	// Locks are the named locks of the link's resyncs.
	Locks *jobs.Locks
	// Acquire acquires the link's lease, in the next term.
	Acquire func(context.Context) (*checkpoint.Link, error)
	// Position returns the position of the link. Watch calls it while an attempt runs.
	Position func() Position
	// Runner returns the Runner of a part.
	Runner func(Part) (Runner, error)
	// Parallel is how many parts run concurrently. Zero means 1.
	Parallel int
	// Has reports whether the target has a collection, given by its name at the source. May be nil.
	Has      func(ctx context.Context, ns oplog.Namespace) (bool, error)
	Observer event.Observer
}

// Position is the position of the link.
type Position struct {
	Applied oplog.OpTime
	// Copying reports that the link's own copy is not consistent yet.
	Copying bool
	// Spooled reports that the oplog is read from the spool, because the link is not near the
	// source's newest entry. Kept is how long the source keeps its entries: a quarter of that, or
	// ten minutes, is how far a part may then be ahead of the link. It stands there until the link
	// has come to the same entry.
	Spooled bool
	Kept    time.Duration
	// Overflows reports that the attempt reads no more, and that what follows is spooled. It
	// must not be ended before it has applied what it has read: no other process may have that.
	Overflows bool
	// Paused reports that the link applies nothing, as operators have asked for.
	Paused bool
	// KeptBack reports that collections wait for an index build: the position does not advance.
	KeptBack bool
}

// Manager copies collections of one link again. Watch runs concurrently with an attempt,
// and Postponed is safe for concurrent use; the other methods are for the goroutine that
// runs the attempts.
type Manager struct {
	cfg Config
	// leftOut are the collections that the current attempt leaves out.
	leftOut map[oplog.Namespace]request.Resync
	running map[oplog.Namespace]*run
	// since has the entries for which collections have to be copied.
	since map[oplog.Namespace]oplog.OpTime
	// merging is the part that has been drained to be merged, nil if there is none.
	merging *run
	// copies is the number of the link's copy, 0 for none. A part that began during an
	// older one starts over.
	copies int64
	group  sync.WaitGroup
	// ended receives a value when a part ends.
	ended chan struct{}
	// postponed are the collections that are requested and cannot be copied.
	postponed atomic.Pointer[[]string]
	// damaged is the error for requests that are damaged, empty for none.
	damaged string
	// waits has the collections whose lock another process has, with its holder. Waiting is that
	// for operators.
	waits   map[oplog.Namespace]string
	waiting atomic.Pointer[string]
}

// New returns a Manager. It does no I/O and starts nothing.
func New(cfg Config) *Manager {
	return &Manager{cfg: cfg, running: map[oplog.Namespace]*run{}, since: map[oplog.Namespace]oplog.OpTime{}, ended: make(chan struct{}, 1)}
}

// Begin is called once an attempt has the lease, when no earlier write of the link is in
// flight. It chooses the collections that the attempt leaves out, removes the metadata of
// parts that have ended, and starts the parts that do not run yet. They run until they
// are merged or ctx is done.
func (m *Manager) Begin(ctx context.Context, link *checkpoint.Link) error {
	if m.cfg.Off {
		return nil
	}
	if err := m.choose(ctx, link); err != nil {
		return err
	}
	if err := m.sweep(ctx, link); err != nil {
		return err
	}
	m.keepLocks(link.Term())
	return m.start(ctx)
}

func (m *Manager) start(ctx context.Context) error {
	for _, req := range slices.SortedFunc(maps.Values(m.leftOut), request.Resync.Compare) {
		if m.running[req.NS] != nil || req.State == request.Failed || m.waits[req.NS] != "" {
			continue
		}
		if len(m.running) >= max(1, m.cfg.Parallel) {
			break // The others are left out until one of these has ended.
		}
		r, err := m.newRun(req)
		if err != nil {
			return err
		}
		m.running[req.NS] = r
		soft, drain := context.WithCancelCause(context.WithoutCancel(ctx))
		r.drain = drain
		m.cfg.Observer.Tell(Began{NS: req.NS})
		lock := m.cfg.Locks.Held(m.lockName(req.NS))
		m.group.Go(func() {
			r.err = underLock(ctx, lock, func(ctx context.Context) error { return r.runner.Run(ctx, soft) })
			close(r.done)
			select {
			case m.ended <- struct{}{}:
			default:
			}
		})
	}
	return nil
}

// releaseWithin limits how long unlocking the named locks may take.
const releaseWithin = 2 * time.Second

// Lead begins a leadership, in which attempts run. The result ends it, once they have ended: it
// ends the parts, too, and unlocks the named locks.
func (m *Manager) Lead(ctx context.Context) (end func()) {
	if m.cfg.Off {
		return func() {}
	}
	m.cfg.Locks.Begin(ctx)
	return func() {
		m.close()
		ctx, cancel := context.WithTimeout(ctx, releaseWithin)
		defer cancel()
		m.cfg.Locks.End(ctx)
	}
}

// close drains the parts and waits until they have ended.
func (m *Manager) close() {
	for _, r := range m.running {
		r.drain(nil)
	}
	m.group.Wait()
}

// Reset forgets all parts, after the end of a leadership: another process may run them now.
func (m *Manager) Reset() {
	m.leftOut, m.running, m.merging, m.copies = nil, map[oplog.Namespace]*run{}, nil, 0
	clear(m.since)
	m.postponed.Store(nil)
	m.waits = nil
	m.tellWaiting()
}

// Stop stops all parts and waits until they have ended, because the link is about to copy
// all collections. Remove removes their metadata once that is certain.
func (m *Manager) Stop(ctx context.Context) error {
	m.merging = nil
	for ns, r := range m.running {
		if err := r.stop(ctx); err != nil {
			return err
		}
		delete(m.running, ns)
	}
	return nil
}

// Remove removes the metadata of the parts of all collections that are left out,
// including those that another process ran. No part may be running.
func (m *Manager) Remove(ctx context.Context) error {
	for _, req := range m.leftOut {
		if err := m.remove(ctx, m.partName(req)); err != nil {
			return err
		}
	}
	return nil
}

// Running returns how many parts run.
func (m *Manager) Running() int { return len(m.running) }

// LeftOut returns the collections that the current attempt leaves out, sorted by name.
func (m *Manager) LeftOut() []oplog.Namespace { return slices.Sorted(maps.Keys(m.leftOut)) }

// Parts returns the names of the parts that run or will run.
func (m *Manager) parts() map[string]bool {
	names := map[string]bool{}
	for _, req := range m.leftOut {
		if req.State != request.Failed {
			names[m.partName(req)] = true
		}
	}
	for _, r := range m.running {
		names[r.part.Link] = true
	}
	return names
}

// sweep removes the metadata of parts that have ended, which remain if a process ended
// before it could remove them. It checks the lease after it has listed them, so that the
// list has no part of the next leader.
func (m *Manager) sweep(ctx context.Context, link interface{ Check(context.Context) error }) error {
	found, err := m.cfg.Store.Parts(ctx)
	if err != nil {
		return err
	}
	keep := m.parts()
	found = slices.DeleteFunc(found, func(name string) bool { return keep[name] })
	if len(found) == 0 {
		return nil
	}
	if err := link.Check(ctx); err != nil {
		return err
	}
	for _, name := range found {
		if err := m.remove(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// SweepSpools removes from the folder of the link's spools those of parts that have ended.
// One that cannot be removed does no harm, and is tried again before the next attempt.
func (m *Manager) SweepSpools(dir string) {
	if m.cfg.Off || !m.able() {
		return
	}
	keep := m.parts()
	found, _ := os.ReadDir(dir) // the folder may not exist
	for _, f := range found {
		if IsPart(f.Name()) && !keep[f.Name()] {
			clearSpools(filepath.Join(dir, f.Name()))
		}
	}
}

// clearSpools removes the spools of a part, and its folder: each instance of its link has had a folder of its own in that.
func clearSpools(dir string) {
	found, _ := os.ReadDir(dir)
	for _, f := range found {
		if f.IsDir() {
			_ = spool.Clear(filepath.Join(dir, f.Name()))
		}
	}
	_ = spool.Clear(dir)
}

// remove removes the metadata of a part.
func (m *Manager) remove(ctx context.Context, name string) error {
	store, err := m.store(name)
	if err == nil {
		err = store.Remove(ctx)
	}
	if err != nil {
		return fmt.Errorf("remove the metadata of a collection that was copied again: %w", err)
	}
	return nil
}

func (m *Manager) store(part string) (*checkpoint.Store, error) {
	return checkpoint.New(checkpoint.Config{Target: m.cfg.Target, DB: m.cfg.MetaDB, Link: part, Of: m.cfg.Link})
}
