package pipeline

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/oplog"
)

// leaveOut finds out what the next attempt leaves out, and notes it in the link's
// document: what is there counts, whatever has become of a request since. As long as
// the link itself copies documents it leaves out nothing.
func (p *Pipeline) leaveOut(ctx context.Context, link *checkpoint.Link) error {
	defer func() { p.showGaps(link.Gaps()) }()
	if err := p.chooseLeftOut(ctx, link); err != nil {
		return err
	}
	if p.cfg.part {
		return nil
	}
	// Only now it is known what is still of use.
	keep := p.keptResyncs()
	p.sweepSpools(keep)
	return p.sweepParts(ctx, link, keep)
}

func (p *Pipeline) chooseLeftOut(ctx context.Context, link *checkpoint.Link) error {
	st := link.State()
	p.resyncs.out = map[oplog.Namespace]checkpoint.ResyncRequest{}
	p.resyncs.copies = 0
	if st.Copy != nil {
		p.resyncs.copies = st.Copy.Number
	}
	if p.cfg.part || st.Copy != nil && st.Copy.Phase == checkpoint.Copying {
		return nil
	}
	w, err := p.requests.ReadRequests(ctx)
	if err != nil {
		return fmt.Errorf("read what operators want of the link: %w", err)
	}
	for _, out := range st.LeftOut {
		state := checkpoint.ResyncCopying
		if out.Failed != "" {
			state = checkpoint.ResyncFailed
		}
		p.resyncs.out[out.NS] = checkpoint.ResyncRequest{NS: out.NS, Asked: out.Asked, State: state, Why: out.Failed}
	}
	for _, request := range w.Resync {
		if isOpen(request) {
			if err := p.leaveOutFor(ctx, link, request); err != nil {
				return err
			}
		}
	}
	return p.checkSpoolFor(p.resyncs.out)
}

// leaveOutFor leaves out the collection of a request, or says why it does not.
func (p *Pipeline) leaveOutFor(ctx context.Context, link *checkpoint.Link, request checkpoint.ResyncRequest) error {
	known, out := p.resyncs.out[request.NS]
	switch _, in := p.cfg.Scope.Target(request.NS); {
	case p.cfg.Copy.SpoolDir == "" && request.State == checkpoint.ResyncAsked:
		return nil // It waits for a process that can.
	case !in || request.NS.IsSystemViews():
		return link.TellResync(ctx, request.NS, checkpoint.ResyncFailed, "the link does not mirror it")
	case request.NS.IsBuckets():
		return link.TellResync(ctx, request.NS, checkpoint.ResyncFailed,
			"it has the buckets of "+string(request.NS.Series())+", which is to be asked for")
	}
	if !out || request.State == checkpoint.ResyncAsked || known.State == checkpoint.ResyncFailed {
		if err := link.LeaveOut(ctx, request); err != nil {
			return err
		}
		request.State = checkpoint.ResyncCopying
	}
	p.resyncs.out[request.NS] = request
	return nil
}

// checkSpoolFor refuses to go on without a folder for what is being copied again:
// what the target has of it is half a copy, to which the log does not fit.
func (p *Pipeline) checkSpoolFor(out map[oplog.Namespace]checkpoint.ResyncRequest) error {
	if p.cfg.Copy.SpoolDir != "" {
		return nil
	}
	for _, ns := range slices.Sorted(maps.Keys(out)) {
		if out[ns].State != checkpoint.ResyncFailed {
			return fmt.Errorf("%s is being copied again: %w", ns, ErrNoSpool)
		}
	}
	return nil
}

// showGaps notes what the target lacks at the link's position.
func (p *Pipeline) showGaps(gaps checkpoint.Gaps) {
	p.mu.Lock()
	p.live.gaps = gaps
	p.mu.Unlock()
}

// reached is what may be reported of progress, to whomever: see checkpoint.Gaps.
func (p *Pipeline) reached(progress checkpoint.Progress) checkpoint.Progress {
	p.mu.Lock()
	gaps := p.live.gaps
	p.mu.Unlock()
	return gaps.Reached(progress)
}

// leftOut returns the collections that are left out.
func (p *Pipeline) leftOut() []checkpoint.LeftOut {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.live.gaps.LeftOut
}

// leftOutText says which collections a link leaves out, those first that need
// somebody.
func leftOutText(list []checkpoint.LeftOut) string {
	var failed, copied []string
	for i := range list {
		if out := &list[i]; out.Failed != "" {
			failed = append(failed, fmt.Sprintf("%s could not be copied again and is left out until it is asked for again (replicator resync): %s", out.NS, out.Failed))
		} else {
			copied = append(copied, string(out.NS))
		}
	}
	if len(copied) > 0 {
		failed = append(failed, "left out while it is copied again: "+strings.Join(copied, ", "))
	}
	return strings.Join(failed, "; ")
}

// names returns the scope of the present attempt.
func (p *Pipeline) names() Scope {
	if len(p.resyncs.out) == 0 {
		return p.cfg.Scope
	}
	return part{Scope: p.cfg.Scope, in: func(ns oplog.Namespace) bool {
		_, out := p.resyncs.out[ns]
		return !out
	}}
}

// part is a part of a Scope.
type part struct {
	Scope
	in func(ns oplog.Namespace) bool
	// db, if not empty, is the only database that it has something of.
	db string
}

// Target implements Scope.
func (s part) Target(ns oplog.Namespace) (oplog.Namespace, bool) {
	if !s.in(ns.Series()) {
		return "", false
	}
	return s.Scope.Target(ns)
}

// Source implements Scope.
func (s part) Source(target oplog.Namespace) (oplog.Namespace, bool) {
	ns, ok := s.Scope.Source(target)
	if !ok || !s.in(ns.Series()) {
		return "", false
	}
	return ns, true
}

// TargetDBs implements Scope.
func (s part) TargetDBs(db string) []string {
	if s.db != "" && db != s.db {
		return nil
	}
	return s.Scope.TargetDBs(db)
}
