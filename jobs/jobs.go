package jobs

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/lease/locks"
	"github.com/oplogrep/replicator/oplog"
)

// prefixDB and prefixNS are the beginnings of names, and prefixLink is reserved for the
// locks of links.
const (
	prefixDB   = "database/"
	prefixNS   = "namespace/"
	prefixLink = "operation/"
)

// Database returns the name of the lock of a database of the target.
func Database(db string) string { return prefixDB + db }

// Namespace returns the name of the lock of a collection of the target.
func Namespace(ns oplog.Namespace) string { return prefixNS + string(ns) }

// Link returns the name of the lock of a link as a whole.
func Link(link string) string { return prefixLink + link }

// ErrNotLeading reports that a lock was asked for outside of a leadership.
var ErrNotLeading = errors.New("this process does not lead the link")

// Config says whose locks they are.
type Config struct {
	// Job is the kind of work, Link the link.
	Job, Link string
	// Locks is for the locks.Manager of each leadership. Process is that of this process. New
	// adds the job and the link: a process may run several links, each with Managers of its own.
	// Each leadership after the first one adds its number.
	Locks locks.Config
}

// Locks are the locks of one kind of job of a link, in one process. Begin, Take, Keep, Release,
// Confirm and End are for one goroutine at a time.
type Locks struct {
	cfg     Config
	led     int
	manager *locks.Manager
	// ctx is that of the leadership.
	ctx   context.Context //nolint:containedctx // The locks that are taken in a call outlast it.
	stop  context.CancelCauseFunc
	group sync.WaitGroup
	held  map[string]*locks.Lock
	// kept is whether the locks of earlier leaders have been handled.
	kept bool
}

// New returns the locks of a link. It does no I/O.
func New(cfg Config) *Locks {
	if cfg.Locks.Process == "" {
		cfg.Locks.Process = lease.NewProcess("")
	}
	// A Manager unlocks what it finds under its name and does not know.
	cfg.Locks.Process += ":" + cfg.Job + ":" + cfg.Link
	if cfg.Locks.Failed == nil {
		cfg.Locks.Failed = func(error) {}
	}
	return &Locks{cfg: cfg}
}

// Begin begins a leadership. It does no I/O: a process without a lock does not ping.
func (l *Locks) Begin(ctx context.Context) { //nolint:contextcheck // locks end with their deadlines, too
	cfg := l.cfg.Locks
	if l.led > 0 {
		// The locks of the leadership before are not those of this one until it takes them up:
		// a Manager unlocks what it finds under its name and does not know.
		cfg.Process += ":" + strconv.Itoa(l.led)
	}
	l.led++
	l.manager, l.held, l.kept = locks.NewManager(cfg), map[string]*locks.Lock{}, false
	l.ctx, l.stop = context.WithCancelCause(ctx)
	manager, running := l.manager, l.ctx
	l.group.Go(func() { manager.Run(running) })
}

// End ends the leadership. The link keeps its locks, for its next leader. What they were
// taken for must have ended. Its ping is removed, until ctx is done; that is not needed.
func (l *Locks) End(ctx context.Context) {
	if l.manager == nil {
		return
	}
	l.stop(ErrNotLeading)
	l.group.Wait()
	if ctx.Err() == nil {
		if err := l.manager.Leave(ctx); err != nil {
			l.cfg.Locks.Failed(err)
		}
	}
	l.manager, l.held = nil, nil
}

// Want is a lock that a job needs.
type Want struct {
	Name string
	// Under, if not empty, is a lock that is had while the other one is taken.
	Under string
	// Why is the reason, for operators.
	Why string
}

// Take takes a lock for the link, led in this term, or takes it up that an earlier leader has left. It tries
// once. If another job has it, the error is a [locks.BusyError]. If this process had it and it was taken
// from it by hand, Take returns locks.ErrLost, once.
func (l *Locks) Take(term int64, w Want) (*locks.Lock, error) {
	if l.manager == nil {
		return nil, ErrNotLeading
	}
	if had := l.held[w.Name]; had != nil {
		err := had.Err()
		if err == nil {
			return had, nil
		}
		delete(l.held, w.Name)
		if errors.Is(err, locks.ErrLost) {
			return nil, err
		}
	}
	wants := locks.Wants{Who: l.who(term), Again: func(r locks.Record) bool {
		of, ok := l.termOf(r)
		return ok && of <= term
	}}
	if w.Under != "" {
		under, err := l.manager.Lock(l.ctx, w.Under, w.Why, wants)
		switch {
		case err == nil:
			defer under.Unlock(l.ctx)
		case errors.Is(err, locks.ErrBusy) && l.hasLeft(w.Name, term):
			// It began before the holder of the other lock, which waits for it now.
		default:
			return nil, err
		}
	}
	got, err := l.manager.Lock(l.ctx, w.Name, w.Why, wants)
	if err != nil {
		return nil, err
	}
	l.held[w.Name] = got
	return got, nil
}

// hasLeft reports whether an earlier leader of the link has left a lock locked.
func (l *Locks) hasLeft(name string, term int64) bool {
	list, err := l.cfg.Locks.Store.List(l.ctx, "")
	if err != nil {
		l.cfg.Locks.Failed(err)
	}
	for _, r := range list {
		if of, ok := l.termOf(r); r.Name == name && r.IsLocked() && ok && of <= term {
			return true
		}
	}
	return false
}

// Held returns a lock that was taken, nil if it was not.
func (l *Locks) Held(name string) *locks.Lock { return l.held[name] }

// Release unlocks a lock that was taken. If that fails, it is tried again until it is confirmed.
func (l *Locks) Release(name string) {
	if had := l.held[name]; had != nil {
		delete(l.held, name)
		had.Unlock(l.ctx)
	}
}

// Confirm asks the store whether the link still has a lock that was taken: locks.ErrLost if not.
// It finds out before the context of the lock has ended.
func (l *Locks) Confirm(ctx context.Context, name string) error {
	had := l.held[name]
	if had == nil {
		return fmt.Errorf("%s: %w", name, locks.ErrLost)
	}
	if err := had.Err(); err != nil {
		return err
	}
	_, err := l.cfg.Locks.Store.Renew(ctx, name, had.Record().ID)
	return err
}

// Keep unlocks all locks but those with these names: what this process has taken and, once in
// a leadership, what earlier leaders have left.
func (l *Locks) Keep(term int64, names map[string]bool) {
	if l.manager == nil {
		return
	}
	for name := range l.held {
		if !names[name] {
			l.Release(name)
		}
	}
	if l.kept {
		return
	}
	if err := l.sweep(term, names); err != nil {
		l.cfg.Locks.Failed(fmt.Errorf("unlock what earlier leaders of the link have left: %w", err))
		return
	}
	l.kept = true
}

func (l *Locks) sweep(term int64, keep map[string]bool) error {
	list, err := l.cfg.Locks.Store.List(l.ctx, "")
	if err != nil {
		return err
	}
	for _, r := range list {
		if of, ok := l.termOf(r); !ok || of >= term || !r.IsLocked() || keep[r.Name] {
			continue
		}
		if err := l.cfg.Locks.Store.Release(l.ctx, r.Name, r.ID); err != nil {
			return err
		}
	}
	return nil
}

// who describes the holder of a lock that is taken in a term of the link.
func (l *Locks) who(term int64) string {
	return l.owner() + strconv.FormatInt(term, 10)
}

func (l *Locks) owner() string { return fmt.Sprintf("%s of link %s, term ", l.cfg.Job, l.cfg.Link) }

// termOf returns the term of the link in which a lock was taken for the same job, false for
// the locks of others.
func (l *Locks) termOf(r locks.Record) (int64, bool) {
	text, ok := strings.CutPrefix(r.Who, l.owner())
	if !ok {
		return 0, false
	}
	term, err := strconv.ParseInt(text, 10, 64)
	return term, err == nil
}
