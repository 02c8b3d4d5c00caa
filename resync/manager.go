package resync

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/request"
)

// maxRunning is how many parts run at a time.
const maxRunning = 2

// Config says whose collections a Manager copies again, and by what means.
type Config struct {
	// Link is the link's name, MetaDB its metadata database on Target.
	Link   string
	MetaDB string
	Target mongo.Caller
	// Store has the link, and Requests what operators ask of it.
	Store    *checkpoint.Store
	Requests *request.Store
	// Scope is what the link mirrors.
	Scope Scope
	// Off makes a Manager that leaves nothing out: that of a part.
	Off bool
	// Unable, if not nil, is why this process cannot copy.
	Unable error
	// Acquire acquires the link's lease, in the next term.
	Acquire func(context.Context) (*checkpoint.Link, error)
	// Position returns where the link is. Watch calls it while an attempt runs.
	Position func() Position
	// Runner makes what copies and follows a part.
	Runner   func(Part) (Runner, error)
	Observer event.Observer
}

// Position is where the link is.
type Position struct {
	Applied oplog.OpTime
	// Copying reports that the link's own copy is not consistent yet.
	Copying bool
	// Spooled reports that the oplog comes from the spool. It cannot be cut at an entry.
	Spooled bool
}

// Manager copies collections of one link again. Watch is for an attempt,
// Postponed for all; the other methods are for the goroutine that runs the attempts.
type Manager struct {
	cfg Config
	// leftOut are the collections that the present attempt leaves out.
	leftOut map[oplog.Namespace]request.Resync
	running map[oplog.Namespace]*run
	// merging is the part that has been drained to be merged, nil if there is none.
	merging *run
	// copies is the number of the link's copy, 0 for none. A part that was begun during
	// an older one begins anew.
	copies int64
	group  sync.WaitGroup
	// ended gets a value when a part ends.
	ended chan struct{}
	// postponed are the collections that are requested and cannot be copied.
	postponed atomic.Pointer[[]string]
}

// New returns a Manager. It does no I/O and starts nothing.
func New(cfg Config) *Manager {
	return &Manager{cfg: cfg, running: map[oplog.Namespace]*run{}, ended: make(chan struct{}, 1)}
}

// Begin is called once an attempt has the lease: everything that the link wrote before
// has ended. It chooses which collections the attempt leaves out, removes what ended
// parts left in the metadata, and starts the parts that do not run yet. They run until
// they are merged or ctx is done.
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
	return m.start(ctx)
}

func (m *Manager) start(ctx context.Context) error {
	for _, req := range slices.SortedFunc(maps.Values(m.leftOut), request.Resync.Compare) {
		if m.running[req.NS] != nil || req.State == request.Failed {
			continue
		}
		if len(m.running) >= maxRunning {
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
		m.group.Go(func() {
			r.err = r.runner.Run(ctx, soft)
			close(r.done)
			select {
			case m.ended <- struct{}{}:
			default:
			}
		})
	}
	return nil
}

// Close drains the parts and waits until they have ended.
func (m *Manager) Close() {
	for _, r := range m.running {
		r.drain(nil)
	}
	m.group.Wait()
}

// Stop ends all parts and waits for them: all collections are about to be copied with
// the link. Remove removes their metadata once that is certain.
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

// Remove removes the metadata of the parts of all collections that are left out, those
// that another process ran included. None may run.
func (m *Manager) Remove(ctx context.Context) error {
	for _, req := range m.leftOut {
		if err := m.remove(ctx, m.partName(req)); err != nil {
			return err
		}
	}
	return nil
}

// LeftOut returns the collections that the present attempt leaves out, by name.
func (m *Manager) LeftOut() []oplog.Namespace { return slices.Sorted(maps.Keys(m.leftOut)) }

// Parts returns the names of the parts that run, or will.
func (m *Manager) Parts() map[string]bool {
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

// sweep removes what is left in the metadata of parts of a process that ended after it
// had noted the end of one, and before it had removed it. What is found while the link
// is still led is not what the next leader has made.
func (m *Manager) sweep(ctx context.Context, link interface{ Check(context.Context) error }) error {
	found, err := m.cfg.Store.Parts(ctx)
	if err != nil {
		return err
	}
	keep := m.Parts()
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

// remove removes the metadata of a part.
func (m *Manager) remove(ctx context.Context, name string) error {
	store, err := m.store(name)
	if err == nil {
		err = store.Remove(ctx)
	}
	if err != nil {
		return fmt.Errorf("remove what is left of a collection that was copied again: %w", err)
	}
	return nil
}

func (m *Manager) store(part string) (*checkpoint.Store, error) {
	return checkpoint.New(checkpoint.Config{Target: m.cfg.Target, DB: m.cfg.MetaDB, Link: part, Of: m.cfg.Link})
}
