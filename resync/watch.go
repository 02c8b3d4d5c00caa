package resync

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/request"
)

// watchEvery is the interval at which requests and parts are checked.
const watchEvery = time.Second

// Watch runs concurrently with an attempt. It returns true once the attempt should be
// drained, because the next one leaves out other collections: there is a new request, or
// a part can be merged or has ended. Meanwhile it writes the progress of the parts to
// their requests. It returns false when ctx is done.
//
// A write may wait for other writes of the link's document, such as that of a command that the
// target does not execute. Watch checks the parts meanwhile.
func (m *Manager) Watch(ctx context.Context, link *checkpoint.Link) (bool, error) {
	if m.cfg.Off || m.merging != nil {
		return false, nil // A merge ends the attempt at a certain entry.
	}
	ctx, stop := context.WithCancelCause(ctx)
	type outcome struct {
		changed bool
		err     error
	}
	looked := make(chan outcome, 1)
	var looking sync.WaitGroup
	looking.Go(func() {
		changed, err := m.lookLoop(ctx, link)
		looked <- outcome{changed, err}
	})
	defer looking.Wait()
	defer stop(nil)
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if at := m.cfg.Position(); m.mayMerge(at) && m.anyReady(at) {
				return true, nil
			}
		case <-m.ended:
			return true, nil
		case o := <-looked:
			return o.changed, o.err
		case <-ctx.Done():
			return false, nil
		}
	}
}

// lookLoop looks until something has changed, or ctx is done.
func (m *Manager) lookLoop(ctx context.Context, link *checkpoint.Link) (bool, error) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	texts := map[oplog.Namespace]string{}
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false, nil
		}
		if changed, err := m.look(ctx, link, texts); changed || err != nil {
			return changed, err
		}
	}
}

// look checks once. Texts are those that it has written to the requests before.
func (m *Manager) look(ctx context.Context, link *checkpoint.Link, texts map[oplog.Namespace]string) (changed bool, err error) {
	requests, err := m.readRequests(ctx)
	if err != nil {
		return false, nil //nolint:nilerr // The attempt itself notices the cause.
	}
	at := m.cfg.Position()
	switch {
	case !m.able():
		return false, onlyFenced(m.postpone(ctx, link, requests.Resync))
	case at.Overflows:
	case m.mayMerge(at) && m.anyReady(at):
		return true, nil
	case !at.Copying:
		if changed, err := m.anyNew(ctx, link, requests.Resync); changed || err != nil {
			return changed, err
		}
	}
	return false, m.writeProgress(ctx, link, at, texts)
}

// anyNew reports whether there is a request that the current attempt does not serve, and the
// next one will: its lock is taken, or it is to be refused. A collection that could not be
// copied is left out, and can be requested again.
func (m *Manager) anyNew(ctx context.Context, link *checkpoint.Link, requests []request.Resync) (found bool, err error) {
	had := m.waits
	m.waits = map[oplog.Namespace]string{}
	defer m.tellWaiting()
	for _, req := range requests {
		_, out := m.leftOut[req.NS]
		switch {
		case !req.Open(), out && req.State != request.Asked && had[req.NS] == "":
			continue
		case m.refusal(req.NS) != "":
			found = true
			continue
		}
		got, err := m.lock(ctx, link, req)
		if err := onlyFenced(err); err != nil {
			return false, err
		}
		found = found || got
	}
	return found, nil
}

// mayMerge reports whether an attempt of a link at this position may be ended for a part.
func (m *Manager) mayMerge(at Position) bool { return m.able() && !at.Overflows && !at.Paused }

func (m *Manager) anyReady(at Position) bool {
	for _, r := range m.running {
		if r.ready(at) {
			return true
		}
	}
	return false
}

// writeProgress writes the progress of the parts to their requests if it differs from
// texts.
func (m *Manager) writeProgress(ctx context.Context, link *checkpoint.Link, at Position, texts map[oplog.Namespace]string) error {
	for ns, r := range m.running {
		text := r.progress(at)
		if texts[ns] == text {
			continue
		}
		err := m.cfg.Requests.Answer(ctx, link, ns, request.Copying, text)
		if err := onlyFenced(err); err != nil {
			return err
		}
		if err == nil {
			texts[ns] = text
		}
	}
	return nil
}

// onlyFenced returns the error of a write to a request if the lease is lost. Otherwise it
// returns nil, because the next write may succeed.
func onlyFenced(err error) error {
	if errors.Is(err, lease.ErrFenced) {
		return err
	}
	return nil
}
