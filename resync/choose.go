package resync

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/request"
)

// able reports whether this process can copy.
func (m *Manager) able() bool { return m.cfg.Unable == nil }

// choose determines which collections the next attempt leaves out, and records them in
// the link's document. Those in the document stay left out, whatever the state of their
// requests. While the link itself copies documents nothing is left out.
func (m *Manager) choose(ctx context.Context, link *checkpoint.Link) error {
	st := link.State()
	m.leftOut, m.copies, m.waits = map[oplog.Namespace]request.Resync{}, 0, map[oplog.Namespace]string{}
	defer m.tellWaiting()
	if st.Copy != nil {
		m.copies = st.Copy.Number
		if st.Copy.Phase == checkpoint.Copying {
			return nil
		}
	}
	requests, err := m.readRequests(ctx)
	if err != nil {
		return fmt.Errorf("read the requests for collections to be copied again: %w", err)
	}
	if err := m.postpone(ctx, link, requests.Resync); err != nil {
		return err
	}
	for _, out := range st.LeftOut {
		state := request.Copying
		if out.Failed != "" {
			state = request.Failed
		}
		m.leftOut[out.NS] = request.Resync{NS: out.NS, Asked: out.Asked, State: state, Why: out.Failed}
	}
	for _, req := range requests.Resync {
		if req.Open() && !m.isPostponed(req) {
			if err := m.admit(ctx, link, req); err != nil {
				return err
			}
		}
	}
	if err := m.checkAble(); err != nil {
		return err
	}
	return m.lockLeftOut(ctx, link, requests.Resync)
}

// readRequests reads the requests. Those that are damaged are left out, and logged once: they must not keep the link from
// the others, nor from the oplog.
func (m *Manager) readRequests(ctx context.Context) (request.Requests, error) {
	all, err := m.cfg.Requests.Read(ctx)
	text := ""
	if request.Damaged(err) {
		if text = err.Error(); text != m.damaged {
			m.cfg.Observer.Log(slog.LevelError, "a request of operators is damaged: it has no effect until somebody removes it", slog.String(keyError, text))
		}
		err = nil
	}
	if err == nil {
		m.damaged = text
	}
	return all, err
}

// isPostponed reports whether a request waits for a process that can copy.
func (m *Manager) isPostponed(r request.Resync) bool {
	return !m.able() && r.State == request.Asked
}

// postpone writes to the requests that this process does not serve the reason for it.
func (m *Manager) postpone(ctx context.Context, link *checkpoint.Link, requests []request.Resync) error {
	var names []string
	for _, req := range requests {
		if !m.isPostponed(req) {
			continue
		}
		names = append(names, string(req.NS))
		if why := m.cfg.Unable.Error(); req.Why != why {
			if err := m.cfg.Requests.Answer(ctx, link, req.NS, request.Asked, why); err != nil {
				return err
			}
		}
	}
	m.postponed.Store(&names)
	return nil
}

// Postponed describes which collections are requested and cannot be copied by this
// process, and why; it is empty if there are none. It is safe for concurrent use.
func (m *Manager) Postponed() string {
	var texts []string
	if names := m.postponed.Load(); names != nil && len(*names) > 0 {
		texts = append(texts, fmt.Sprintf("%s cannot be copied again now: %v", strings.Join(*names, ", "), m.cfg.Unable))
	}
	if waiting := m.waiting.Load(); waiting != nil && *waiting != "" {
		texts = append(texts, *waiting)
	}
	return strings.Join(texts, "; ")
}

// admit takes the lock of a request and leaves out its collection, or writes the reason why
// not to the request.
func (m *Manager) admit(ctx context.Context, link *checkpoint.Link, req request.Resync) error {
	known, out := m.leftOut[req.NS]
	if why := m.refusal(req.NS); why != "" {
		return m.cfg.Requests.Answer(ctx, link, req.NS, request.Failed, why)
	}
	if out && req.State != request.Asked && known.State != request.Failed {
		return nil // The part may have a later time than the request: see restart.
	}
	if got, err := m.lock(ctx, link, req); !got {
		return err
	}
	if err := m.cfg.Requests.LeaveOut(ctx, link, req); err != nil {
		return err
	}
	req.State = request.Copying
	m.leftOut[req.NS] = req
	return nil
}

// refusal returns the reason why a collection cannot be copied alone, empty if it can.
func (m *Manager) refusal(ns oplog.Namespace) string {
	switch _, in := m.cfg.Scope.Target(ns); {
	case !in || ns.IsSystemViews():
		return "the link does not mirror it"
	case ns.IsBuckets():
		return "it has the buckets of " + string(ns.Series()) + ": request a resync of that collection"
	}
	return ""
}

// checkAble returns an error if a collection is being copied again and this process
// cannot copy: the target has an incomplete copy, to which the oplog cannot be applied.
func (m *Manager) checkAble() error {
	if m.able() {
		return nil
	}
	for _, ns := range m.LeftOut() {
		if m.leftOut[ns].State != request.Failed {
			return fmt.Errorf("%s is being copied again: %w", ns, m.cfg.Unable)
		}
	}
	return nil
}

// Request requests that ns be copied again, because applying an entry is not sufficient,
// and reports whether that was possible. Why is the reason.
func (m *Manager) Request(ctx context.Context, ns oplog.Namespace, at oplog.OpTime, why error) (bool, error) {
	if m.cfg.Off || !m.able() {
		return false, nil
	}
	ns = ns.Series() // Buckets are copied with their time series.
	if _, in := m.Scope().Target(ns); !in || ns.IsSystemViews() {
		return false, nil // It would not be left out.
	}
	if err := m.cfg.Requests.Resync(ctx, ns); err != nil {
		return false, err
	}
	m.since[ns] = at
	m.cfg.Observer.Log(slog.LevelWarn, "a collection has to be copied", slog.String(keyNS, string(ns)), slog.String(keyReason, why.Error()))
	return true, nil
}

// Late requests that the process that has the link now copies again the collections of
// the target that a late command of this process may have changed, for the reason why. It
// logs that in any case.
func (m *Manager) Late(ctx context.Context, hit []oplog.Namespace, why error) {
	for _, ns := range hit {
		message := "a late command may have changed a collection: compare it with the source"
		attrs := []slog.Attr{slog.String(keyNS, string(ns)), slog.String(keyReason, why.Error())}
		if source, in := m.cfg.Scope.Source(ns); in {
			// A collection that is being copied now may be affected.
			if err := m.cfg.Requests.ResyncAgain(ctx, source); err != nil {
				attrs = append(attrs, slog.Any(keyError, err))
			} else {
				message = "a late command may have changed a collection: it is to be copied again"
			}
		}
		m.cfg.Observer.Log(slog.LevelError, message, attrs...)
	}
}

// Describe lists the collections that are left out, first those that need an operator.
func Describe(list []checkpoint.LeftOut) string {
	var texts, copied []string
	for i := range list {
		if out := &list[i]; out.Failed != "" {
			texts = append(texts, fmt.Sprintf("%s could not be copied again and is left out until it is requested again (replicator resync): %s", out.NS, out.Failed))
		} else {
			copied = append(copied, string(out.NS))
		}
	}
	if len(copied) > 0 {
		texts = append(texts, "left out while it is copied again: "+strings.Join(copied, ", "))
	}
	return strings.Join(texts, "; ")
}
