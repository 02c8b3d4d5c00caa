package resync

import (
	"context"
	"errors"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/request"
)

// watchEvery is how often requests and parts are looked at.
const watchEvery = time.Second

// Watch runs concurrently with an attempt. It returns true once the attempt
// should end in order, because the next one leaves out something else: there is a new
// request, or a part can be merged or has ended. Meanwhile it writes the progress of the
// parts to their requests. It returns false when ctx is done.
func (m *Manager) Watch(ctx context.Context, link *checkpoint.Link) (bool, error) {
	if m.cfg.Off || !m.able() {
		return false, nil
	}
	if m.merging != nil {
		return false, nil // The attempt ends at a certain entry.
	}
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	texts := map[oplog.Namespace]string{}
	for {
		select {
		case <-tick.C:
		case <-m.ended:
			return true, nil
		case <-ctx.Done():
			return false, nil
		}
		at := m.cfg.Position()
		requests, err := m.cfg.Requests.Read(ctx)
		if err != nil {
			continue // The attempt itself notices the cause.
		}
		if m.isNew(requests.Resync) && !at.Copying {
			return true, nil
		}
		if !at.Spooled && m.anyReady(at.Applied) {
			return true, nil
		}
		if err := m.writeProgress(ctx, link, texts); err != nil {
			return false, err
		}
	}
}

// isNew reports whether there is a request that the present attempt does not serve. A
// collection that could not be copied is left out, and can be requested again.
func (m *Manager) isNew(requests []request.Resync) bool {
	for _, req := range requests {
		if _, out := m.leftOut[req.NS]; req.Open() && (!out || req.State == request.Asked) {
			return true
		}
	}
	return false
}

func (m *Manager) anyReady(applied oplog.OpTime) bool {
	for _, r := range m.running {
		if r.ready(applied) {
			return true
		}
	}
	return false
}

// writeProgress writes what the parts do to their requests, where that has changed since
// texts. Only a lost lease is an error: the next time the rest may succeed.
func (m *Manager) writeProgress(ctx context.Context, link *checkpoint.Link, texts map[oplog.Namespace]string) error {
	for ns, r := range m.running {
		text := r.runner.Status().Text
		if texts[ns] == text {
			continue
		}
		err := m.cfg.Requests.Answer(ctx, link, ns, request.Copying, text)
		if errors.Is(err, lease.ErrFenced) {
			return err
		}
		if err == nil {
			texts[ns] = text
		}
	}
	return nil
}
