package resync

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/jobs"
	"github.com/oplogrep/replicator/lease/locks"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/request"
)

// A collection has its lock from before it is left out until its request is done or has
// failed, over all parts that copy it, in this process and in those that lead the link later.

// lockName returns the name of the lock of a collection of the source.
func (m *Manager) lockName(ns oplog.Namespace) string {
	if to, in := m.cfg.Scope.Target(ns); in {
		ns = to
	}
	return jobs.Namespace(ns)
}

// lock takes the lock of the collection of a request, or records its holder in the request.
func (m *Manager) lock(ctx context.Context, link *checkpoint.Link, req request.Resync) (bool, error) {
	target, _ := m.cfg.Scope.Target(req.NS)
	_, err := m.cfg.Locks.Take(link.Term(), jobs.Want{
		Name: m.lockName(req.NS), Under: jobs.Database(target.DB()),
		Why: fmt.Sprintf("copy %s again, as requested at %s UTC", req.NS, req.Asked.UTC().Format(time.DateTime)),
	})
	switch busy, isBusy := errors.AsType[*locks.BusyError](err); {
	case err == nil:
		return true, nil
	case ctx.Err() != nil:
		return false, context.Cause(ctx)
	case errors.Is(err, locks.ErrLost):
		return false, m.answerFailed(ctx, link, req.NS, lostLock(err))
	case isBusy:
		m.waits[req.NS] = "waits: " + busy.Record.String()
	default:
		// That the target cannot be reached the attempt notices by itself.
		m.waits[req.NS] = "waits, as its lock cannot be taken: " + err.Error()
	}
	state := request.Asked
	if out, known := m.leftOut[req.NS]; known && out.State == request.Copying && req.State != request.Asked {
		state = request.Copying
	}
	if req.Why == m.waits[req.NS] {
		return false, nil
	}
	return false, m.cfg.Requests.Answer(ctx, link, req.NS, state, m.waits[req.NS])
}

// lockLeftOut takes up the locks of the collections that are left out already. One whose lock another one
// has is not copied meanwhile.
func (m *Manager) lockLeftOut(ctx context.Context, link *checkpoint.Link, requests []request.Resync) error {
	for _, ns := range m.LeftOut() {
		out := m.leftOut[ns]
		if out.State == request.Failed || m.waits[ns] != "" {
			continue
		}
		if i := slices.IndexFunc(requests, func(r request.Resync) bool { return r.NS == ns }); i >= 0 {
			out.Why = requests[i].Why
		}
		if _, err := m.lock(ctx, link, out); err != nil {
			return err
		}
	}
	return nil
}

// keepLocks unlocks the locks that no request needs any more.
func (m *Manager) keepLocks(term int64) {
	names := map[string]bool{}
	for ns, req := range m.leftOut {
		if req.State != request.Failed {
			names[m.lockName(ns)] = true
		}
	}
	m.cfg.Locks.Keep(term, names)
}

func (m *Manager) unlock(ns oplog.Namespace) { m.cfg.Locks.Release(m.lockName(ns)) }

// answerFailed makes a request fail. Its collection stays left out, if it is.
func (m *Manager) answerFailed(ctx context.Context, link *checkpoint.Link, ns oplog.Namespace, why error) error {
	if err := m.cfg.Requests.Answer(ctx, link, ns, request.Failed, why.Error()); err != nil {
		return err
	}
	if out, known := m.leftOut[ns]; known {
		out.State, out.Why = request.Failed, why.Error()
		m.leftOut[ns] = out
	}
	m.unlock(ns)
	return nil
}

// underLock runs a part, until its lock is lost.
//
//nolint:contextcheck // a lock has a context of its own
func underLock(ctx context.Context, lock *locks.Lock, run func(context.Context) error) error {
	if lock == nil {
		return fmt.Errorf("%w: its lock was not taken", ErrInterrupted)
	}
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	has := lock.Context()
	defer context.AfterFunc(has, func() { stop(context.Cause(has)) })()
	err := run(running)
	if over := lock.Err(); err != nil && over != nil && ctx.Err() == nil {
		return lostLock(over)
	}
	return err
}

// lostLock explains why a copy has ended.
func lostLock(err error) error {
	if errors.Is(err, locks.ErrLost) {
		return fmt.Errorf("the copy was stopped, as its lock was released by hand: %w", err)
	}
	return fmt.Errorf("the copy was stopped: its lock: %w", err)
}

// confirmLock asks whether the link still has the lock of the part that is being merged. If
// it was released by hand, another link may be copying the collection.
func (m *Manager) confirmLock(ctx context.Context, r *run) error {
	err := m.cfg.Locks.Confirm(ctx, m.lockName(r.part.NS))
	if !errors.Is(err, locks.ErrLost) && !errors.Is(err, locks.ErrExpired) {
		return err
	}
	m.merging = nil
	delete(m.running, r.part.NS)
	return m.fail(ctx, r, lostLock(err))
}

// tellWaiting makes Postponed say which collections wait for a lock.
func (m *Manager) tellWaiting() {
	texts := make([]string, 0, len(m.waits))
	for _, ns := range slices.Sorted(maps.Keys(m.waits)) {
		texts = append(texts, "copying "+string(ns)+" again "+m.waits[ns])
	}
	text := strings.Join(texts, "; ")
	m.waiting.Store(&text)
}
