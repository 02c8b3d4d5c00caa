package resync

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/lease/locks"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/request"
)

// Merge is called between two attempts. It merges the parts that are ready into the
// link: it stops them and advances them to the link's position. If the link has to
// advance for that, Merge returns the entry at which its next attempt has to end, and
// continues when it is called again after that attempt. Merge also handles parts that
// have ended with an error.
func (m *Manager) Merge(ctx, soft context.Context) (until oplog.OpTime, err error) {
	select {
	case <-m.ended: // pick notices it.
	default:
	}
	for soft.Err() == nil {
		if m.merging == nil {
			if err := m.pick(ctx, soft); err != nil || m.merging == nil {
				return oplog.OpTime{}, err
			}
		}
		if until, err = m.step(ctx, soft); err != nil || !until.IsNull() {
			return until, err
		}
	}
	return oplog.OpTime{}, nil
}

// pick selects a part that is ready to be merged, and stops it.
func (m *Manager) pick(ctx, soft context.Context) error {
	at := m.cfg.Position()
	if at.Copying || at.Paused {
		return nil
	}
	for ns, r := range m.running {
		if !r.ready(at) {
			continue
		}
		if err := r.stop(ctx); err != nil {
			return err
		}
		switch {
		case r.err == nil:
			return m.beginMerge(ctx, r)
		case ctx.Err() != nil || soft.Err() != nil:
			return nil //nolint:nilerr // Everything ends; the next start continues.
		}
		// The next attempt starts it again, unless it has failed.
		delete(m.running, ns)
		if err := m.fail(ctx, r, r.err); err != nil {
			return err
		}
	}
	return nil
}

// beginMerge writes to the request of a part that it is being merged.
func (m *Manager) beginMerge(ctx context.Context, r *run) error {
	link, err := m.cfg.Acquire(ctx)
	if err != nil {
		return err
	}
	m.merging = r
	return m.cfg.Requests.Answer(ctx, link, r.part.NS, request.Joining, "")
}

// step compares the positions of the link and of the part that is being merged. If they
// are equal, the link gets the collection back. Otherwise the earlier one advances: the
// part here, the link in its next attempt, up to until.
func (m *Manager) step(ctx, soft context.Context) (until oplog.OpTime, err error) {
	r := m.merging
	// If another process acquires the lease after this, giveBack fails.
	link, err := m.cfg.Acquire(ctx)
	if err != nil {
		return oplog.OpTime{}, err
	}
	here := link.State()
	if len(here.KeptBack) > 0 {
		// The link would reach that entry after the build only. The part runs on until then.
		m.merging = nil
		delete(m.running, r.part.NS)
		return oplog.OpTime{}, nil
	}
	there, err := m.load(ctx, r.part)
	if err != nil {
		return oplog.OpTime{}, err
	}
	// A lane that is after its checkpoint would skip entries of the collection that the
	// other link has not applied. So both advance to an entry that no lane is after.
	at := here.Furthest()
	if other := there.Furthest(); other.After(at) {
		at = other
	}
	if here.Applied.Equal(at) && there.Applied.Equal(at) {
		if err := m.confirmLock(ctx, r); err != nil || m.merging == nil {
			return oplog.OpTime{}, err
		}
		return oplog.OpTime{}, m.giveBack(ctx, link, r, &here)
	}
	if there.Applied.Before(at) {
		if err := m.advance(ctx, soft, r, at); err != nil {
			return oplog.OpTime{}, err
		}
	}
	if here.Applied.Before(at) && m.merging != nil {
		return at, nil
	}
	return oplog.OpTime{}, nil
}

// load reads the state of a part. An older one than the newest could be that of the link, although the collection is further.
func (m *Manager) load(ctx context.Context, part Part) (checkpoint.State, error) {
	store, err := m.store(part.Link)
	if err != nil {
		return checkpoint.State{}, err
	}
	st, found, err := store.Newest(ctx)
	if err == nil && !found {
		err = fmt.Errorf("link %q: %w", part.Link, checkpoint.ErrNoLink)
	}
	return st, err
}

// advance applies the oplog to a part, up to an entry.
func (m *Manager) advance(ctx, soft context.Context, r *run, until oplog.OpTime) error {
	part := r.part
	part.Until = until
	runner, err := m.cfg.Runner(part)
	if err == nil {
		err = underLock(ctx, m.cfg.Locks.Held(m.lockName(part.NS)), func(ctx context.Context) error { return runner.Run(ctx, soft) })
	}
	if err == nil {
		return nil
	}
	err = fmt.Errorf("copy %s again: apply the oplog to it up to %s: %w", part.NS, until, err)
	if ctx.Err() != nil || soft.Err() != nil {
		return err
	}
	// This is an error of the part, not of the link.
	m.merging = nil
	delete(m.running, part.NS)
	return m.fail(ctx, r, err)
}

// giveBack returns a collection to the link, which must have the part's position.
func (m *Manager) giveBack(ctx context.Context, link *checkpoint.Link, r *run, here *checkpoint.State) error {
	answered, err := m.isAnswered(ctx, r, here)
	if err == nil && !answered {
		err = m.cfg.Requests.Answer(ctx, link, r.part.NS, request.Done, m.outcome(ctx, r.part.NS))
	}
	if err != nil {
		return err
	}
	m.merging = nil
	delete(m.running, r.part.NS)
	delete(m.since, r.part.NS)
	m.unlock(r.part.NS)
	m.cfg.Observer.Tell(Ended{NS: r.part.NS})
	return m.remove(ctx, r.part.Link)
}

// outcome is what there is to say of a collection that is exact: the source has none of that name if the target has none. It may have been
// dropped there, or an operator has asked for another name than intended.
func (m *Manager) outcome(ctx context.Context, ns oplog.Namespace) string {
	if m.cfg.Has == nil {
		return ""
	}
	if has, err := m.cfg.Has(ctx, ns); has || err != nil { // informational only
		return ""
	}
	return "the source has no such collection"
}

// isAnswered reports whether the answer to a request was stored before, and its reply was lost: the link has the collection again, or a
// request for another copy has followed, which must not be answered as well.
func (m *Manager) isAnswered(ctx context.Context, r *run, here *checkpoint.State) (bool, error) {
	if !slices.ContainsFunc(here.LeftOut, func(out checkpoint.LeftOut) bool { return out.NS == r.part.NS }) {
		return true, nil
	}
	all, err := m.readRequests(ctx)
	asked := slices.ContainsFunc(all.Resync, func(req request.Resync) bool { return req.NS == r.part.NS && req.State == request.Asked })
	return asked, err
}

// fail handles the error of a part. The link continues without it.
func (m *Manager) fail(ctx context.Context, r *run, why error) error {
	switch {
	case errors.Is(why, ErrInterrupted), errors.Is(why, locks.ErrExpired):
		return nil // The next attempt takes the lock up again, and continues.
	case errors.Is(why, lease.ErrFenced):
		// The part was fenced by the present leader of the link, in which case the next
		// line fails, or by a former leader that has not noticed its loss.
		_, err := m.cfg.Acquire(ctx)
		return err
	}
	m.cfg.Observer.Tell(Ended{NS: r.part.NS, Err: why})
	link, err := m.cfg.Acquire(ctx)
	if err != nil {
		return err
	}
	if replaced, ok := errors.AsType[*ReplacedError](why); ok {
		m.since[r.part.NS] = replaced.At
	}
	if errors.Is(why, ErrRestart) {
		err = m.restart(ctx, link, r, why)
	} else {
		// The error is permanent. The collection stays left out, and the link's reported
		// position stays where it is, until it is requested again.
		err = m.answerFailed(ctx, link, r.part.NS, why)
	}
	if err != nil {
		return err
	}
	return m.remove(ctx, r.part.Link)
}

// restart makes the copy of a collection start over. The part gets another name, so that
// a late removal here does not affect a part that the next leader of the link starts.
func (m *Manager) restart(ctx context.Context, link *checkpoint.Link, r *run, why error) error {
	again := request.Resync{NS: r.part.NS, Asked: time.Now().UTC()}
	if earliest := r.asked.Add(time.Millisecond); again.Asked.Before(earliest) {
		again.Asked = earliest
	}
	if err := m.cfg.Requests.LeaveOut(ctx, link, again); err != nil {
		return err
	}
	return m.cfg.Requests.Answer(ctx, link, r.part.NS, request.Copying, "it starts over: "+why.Error())
}
