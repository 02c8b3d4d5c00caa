package pipeline

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/oplog"
)

// A collection that is copied again goes its own way for a while: the link leaves
// it out, and a link of its own copies it and follows it. Once that one has caught
// up, both are brought to the same entry, and the link has it again from there.
//
//	link   ──────┬ without NS ───────────────────────┬── with NS
//	             │                                   │ both at one entry
//	resync       └ copy ─ replay ─ follow ───────────┘

// resync is one collection that is copied again, by a pipeline of its own.
type resync struct {
	request checkpoint.ResyncRequest
	link    string
	p       *Pipeline
	drain   context.CancelCauseFunc
	// done is closed once err is what its Run returned.
	done chan struct{}
	err  error
}

// resyncs are those of a link. They belong to the goroutine of attempts, but for
// what mu guards.
type resyncs struct {
	group sync.WaitGroup
	// out are the collections that the link leaves out at present.
	out     map[oplog.Namespace]checkpoint.ResyncRequest
	running map[oplog.Namespace]*resync
	// joining tells that what runs is to come to a certain entry, and no more.
	joining bool
	// copies is the number of the link's copy, 0 for none. A collection that was
	// being copied again beside an older one is begun anew.
	copies int64

	// mu guards regroup, which ends the reading of the present attempt.
	mu      sync.Mutex
	regroup context.CancelCauseFunc
}

// onRegroup says what ends the present attempt in order.
func (r *resyncs) onRegroup(end context.CancelCauseFunc) {
	r.mu.Lock()
	r.regroup = end
	r.mu.Unlock()
}

// again ends the present attempt in order: the next one may leave out something
// else.
func (r *resyncs) again() {
	r.mu.Lock()
	end := r.regroup
	r.mu.Unlock()
	if end != nil {
		end(errDrain)
	}
}

// isOpen tells whether something is still to be done about a request.
func isOpen(w checkpoint.ResyncRequest) bool {
	return w.State == checkpoint.ResyncAsked || w.State == checkpoint.ResyncCopying || w.State == checkpoint.ResyncJoining
}

// startResyncs runs what copies the collections that are left out. It is called
// under a term of the lease: everything that was written to them before is over.
func (p *Pipeline) startResyncs(ctx context.Context) error {
	for _, request := range slices.SortedFunc(maps.Values(p.resyncs.out), checkpoint.ResyncRequest.Compare) {
		ns := request.NS
		if p.resyncs.running[ns] != nil || request.State == checkpoint.ResyncFailed {
			continue
		}
		if len(p.resyncs.running) >= maxResyncs {
			break // The others are left out until it is their turn.
		}
		r, err := p.newResync(request, oplog.OpTime{})
		if err != nil {
			return err
		}
		if p.resyncs.running == nil {
			p.resyncs.running = map[oplog.Namespace]*resync{}
		}
		p.resyncs.running[ns] = r
		soft, drain := context.WithCancelCause(context.WithoutCancel(ctx))
		r.drain = drain
		p.cfg.Observer.Tell(ResyncBegan{NS: ns})
		p.resyncs.group.Go(func() {
			defer p.resyncs.again()
			defer close(r.done)
			r.err = r.p.Run(ctx, soft)
		})
	}
	return nil
}

// resyncLink is the name of the link of one collection.
func (p *Pipeline) resyncLink(request checkpoint.ResyncRequest) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s\x00%d", p.cfg.Link, request.NS, request.Asked.UTC().Format(time.RFC3339Nano), p.resyncs.copies))
	return resyncPrefix + hex.EncodeToString(sum[:8])
}

// newResync makes the pipeline of one collection. It ends at until if that is not
// null.
func (p *Pipeline) newResync(request checkpoint.ResyncRequest, until oplog.OpTime) (*resync, error) {
	r := &resync{request: request, link: p.resyncLink(request), done: make(chan struct{})}
	cfg := p.cfg
	cfg.Link, cfg.parentLink, cfg.part, cfg.until = r.link, p.cfg.Link, true, until
	cfg.allNames = p.cfg.Scope
	cfg.Scope = part{Scope: p.cfg.Scope, in: func(ns oplog.Namespace) bool { return ns == request.NS }, db: request.NS.DB()}
	cfg.Copy.Wanted, cfg.Copy.DropExisting = true, true
	cfg.Copy.SpoolDir = filepath.Join(p.spoolDir, r.link)
	cfg.CopiedUntil, cfg.StartAt, cfg.Delay = oplog.OpTime{}, StartAt{}, 0
	cfg.Feedback, cfg.Registry = 0, nil
	cfg.BufferBytes = min(cfg.BufferBytes, resyncBuffer)
	cfg.Observer = func(e event.Event) { p.cfg.Observer.Tell(ResyncEvent{NS: request.NS, Event: e}) }
	var err error
	if r.p, err = New(cfg, p.source, p.target); err != nil {
		return nil, fmt.Errorf("copy %s again: %w", request.NS, err)
	}
	return r, nil
}

const (
	// resyncPrefix is what the names of links for one collection begin with.
	resyncPrefix = "resync-"
	// resyncBuffer is the most that one of them may hold, in bytes.
	resyncBuffer = 128 << 20
	// maxResyncs is how many of them run at a time.
	maxResyncs = 2
	// resyncEvery is how often it is looked how they are.
	resyncEvery = time.Second
)

// IsResync tells whether a link is one that another link made for a collection that
// it copies again.
func IsResync(link string) bool {
	return strings.HasPrefix(link, resyncPrefix) && len(link) == len(resyncPrefix)+16
}

// resyncLoop looks, beside an attempt, for requests that it does not know, and for
// collections that can be taken back.
func (p *Pipeline) resyncLoop(ctx context.Context, link *checkpoint.Link) error {
	if p.cfg.Copy.SpoolDir == "" || p.cfg.part || p.resyncs.joining {
		return nil
	}
	tick := time.NewTicker(resyncEvery)
	defer tick.Stop()
	said := map[oplog.Namespace]string{}
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		w, err := p.requests.ReadRequests(ctx)
		if err != nil {
			continue // the attempt itself notices what is wrong
		}
		for _, request := range w.Resync {
			// One that is left out is asked for anew where it could not be copied.
			if _, out := p.resyncs.out[request.NS]; isOpen(request) && (!out || request.State == checkpoint.ResyncAsked) && !p.isCopying() {
				p.resyncs.again()
			}
		}
		for ns, r := range p.resyncs.running {
			says := r.says()
			switch {
			case p.shownSpool() == nil && r.ready(p.progress().Applied):
				p.resyncs.again()
			case said[ns] != says:
				err := link.TellResync(ctx, ns, checkpoint.ResyncCopying, says)
				if errors.Is(err, checkpoint.ErrFenced) {
					return err
				}
				if err == nil { // it is for people; the next time may succeed
					said[ns] = says
				}
			}
		}
	}
}

// shownSpool returns the spool that is in use, nil if none is.
func (p *Pipeline) shownSpool() *spool.Spool {
	if c := p.shown.Load(); c != nil {
		return c.spool
	}
	return nil
}

// ready tells whether the collection can be taken back by the link, which is at
// applied, or cannot be copied.
func (r *resync) ready(applied oplog.OpTime) bool {
	select {
	case <-r.done:
		return true
	default:
	}
	s := r.p.Snapshot()
	if s.Copy == nil || s.Copy.Phase != checkpoint.Copied || s.Copy.Spool != nil {
		return false
	}
	return s.State == Steady || !s.Progress.Applied.Before(applied)
}

// says is how far it is, for people.
func (r *resync) says() string {
	s := r.p.Snapshot()
	if s.Copy == nil {
		return string(s.State)
	}
	if c := s.Copy.Progress; c != nil {
		return fmt.Sprintf("%s: %d of about %d documents", c.Step, c.Docs, c.TotalDocs)
	}
	return string(s.State) + ", " + string(s.Copy.Phase)
}

// takeBack brings collections that are ready to where the link is, or the link to
// where they are, and gives them back to it.
func (p *Pipeline) takeBack(ctx, soft context.Context) error {
	if p.isCopying() || p.spool != nil {
		return nil // what is in the spool cannot be cut at an entry
	}
	for ns, r := range p.resyncs.running {
		if !r.ready(p.progress().Applied) {
			continue
		}
		r.drain(nil)
		select {
		case <-r.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if r.err != nil && (ctx.Err() != nil || soft.Err() != nil) {
			return nil //nolint:nilerr // Everything is to end; the next start goes on.
		}
		err := r.err
		if err == nil {
			err = p.join(ctx, soft, r)
		}
		if r.err != nil {
			err = p.resyncEnded(ctx, r)
		}
		// Where it is not done the next attempt makes it again, from where it is.
		delete(p.resyncs.running, ns)
		if err != nil || soft.Err() != nil {
			return err
		}
	}
	return nil
}

// resyncEnded says what to do about a collection whose own pipeline ended with an
// error: the link goes on without it.
func (p *Pipeline) resyncEnded(ctx context.Context, r *resync) error {
	switch {
	case errors.Is(r.err, ErrStopped):
		return nil // it was not at rest any more when it was told to end
	case errors.Is(r.err, checkpoint.ErrFenced):
		// By who has the link now, or by who had it before and does not know yet.
		_, err := p.acquire(ctx)
		return err
	}
	p.cfg.Observer.Tell(ResyncEnded{NS: r.request.NS, Err: r.err})
	link, err := p.acquire(ctx)
	if err != nil {
		return err
	}
	if _, renamed := errors.AsType[*ddl.ResyncError](r.err); renamed {
		// It was renamed into place meanwhile, and is copied anew.
		err = link.TellResync(ctx, r.request.NS, checkpoint.ResyncCopying, "it is begun anew: "+r.err.Error())
	} else {
		// What keeps it from being copied does not go by itself. It stays left out,
		// and the link's position where it was left out, until it is asked for again.
		err = link.TellResync(ctx, r.request.NS, checkpoint.ResyncFailed, r.err.Error())
	}
	if err != nil {
		return err
	}
	return r.p.store.Remove(ctx)
}

// join brings the link and a collection's own to one entry.
func (p *Pipeline) join(ctx, soft context.Context, r *resync) error {
	if err := p.requests.TellResync(ctx, r.request.NS, checkpoint.ResyncJoining, ""); err != nil {
		return err
	}
	p.resyncs.joining = true
	defer func() { p.resyncs.joining = false }()
	for {
		// Whoever takes the link over from here on is noticed by joined.
		link, err := p.acquire(ctx)
		if err != nil {
			return err
		}
		here := link.State()
		there, found, err := r.p.store.Load(ctx)
		if err != nil || !found {
			return errors.Join(err, notFound(found, r.link))
		}
		// A lane that is ahead of its checkpoint would pass over what the other one has
		// not done there. So both go on to where neither has one.
		at := furthest(here)
		if other := furthest(there); other.After(at) {
			at = other
		}
		if here.Applied.Equal(at) && there.Applied.Equal(at) {
			return p.joined(ctx, link, r)
		}
		if there.Applied.Before(at) {
			if err := p.bring(ctx, soft, r, at); err != nil {
				if ctx.Err() == nil && soft.Err() == nil {
					r.err = err // It is the collection's own, and not the link's.
				}
				return err
			}
		}
		if here.Applied.Before(at) && soft.Err() == nil {
			p.until = at
			err := p.attempt(ctx, soft)
			p.until = oplog.OpTime{}
			if err != nil && !errors.Is(err, checkpoint.ErrSpent) {
				return err
			}
		}
		if soft.Err() != nil {
			return nil
		}
	}
}

// bring applies the log to a collection, up to an entry.
func (p *Pipeline) bring(ctx, soft context.Context, r *resync, until oplog.OpTime) error {
	next, err := p.newResync(r.request, until)
	if err != nil {
		return err
	}
	if err := next.p.Run(ctx, soft); err != nil {
		return fmt.Errorf("copy %s again: bring it to %s: %w", r.request.NS, until, err)
	}
	return nil
}

func notFound(found bool, link string) error {
	if found {
		return nil
	}
	return fmt.Errorf("link %q: %w", link, checkpoint.ErrNoLink)
}

// joined gives a collection back to the link, which is where it is.
func (p *Pipeline) joined(ctx context.Context, link *checkpoint.Link, r *resync) error {
	if err := link.TellResync(ctx, r.request.NS, checkpoint.ResyncDone, ""); err != nil {
		return err
	}
	p.cfg.Observer.Tell(ResyncEnded{NS: r.request.NS})
	// From here on its own link is of no use to anybody.
	return r.p.store.Remove(ctx)
}

// voidResyncs ends what runs beside the link and waits for it: the collections are
// going to be copied with all others. What it leaves in the metadata, also where it
// was a process before this one that ran it, is returned.
func (p *Pipeline) voidResyncs(ctx context.Context) ([]*checkpoint.Store, error) {
	for ns, r := range p.resyncs.running {
		r.drain(nil)
		select {
		case <-r.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		delete(p.resyncs.running, ns)
	}
	var left []*checkpoint.Store
	for _, request := range p.resyncs.out {
		r, err := p.newResync(request, oplog.OpTime{})
		if err != nil {
			return nil, err
		}
		left = append(left, r.p.store)
	}
	return left, nil
}

// keptResyncs are the links of collections that are copied again in this attempt, or
// will be.
func (p *Pipeline) keptResyncs() map[string]bool {
	keep := map[string]bool{}
	for _, request := range p.resyncs.out {
		if request.State != checkpoint.ResyncFailed {
			keep[p.resyncLink(request)] = true
		}
	}
	for _, r := range p.resyncs.running {
		keep[r.link] = true
	}
	return keep
}

// sweepParts removes from the metadata what is left of links of collections that were
// copied again: of a process that ended after it had noted what became of one, and
// before it had removed its link. What was there while the link was still held is not
// what its next holder has made.
func (p *Pipeline) sweepParts(ctx context.Context, fence ddl.Fence, keep map[string]bool) error {
	parts, err := p.store.Parts(ctx)
	if err == nil && slices.ContainsFunc(parts, func(name string) bool { return !keep[name] }) {
		err = fence.Check(ctx)
	}
	if err != nil {
		return err
	}
	for _, name := range parts {
		if keep[name] {
			continue
		}
		store, err := checkpoint.New(checkpoint.Config{Target: p.target, DB: p.cfg.MetaDB, Link: name, Of: p.cfg.Link})
		if err == nil {
			err = store.Remove(ctx)
		}
		if err != nil {
			return fmt.Errorf("remove what is left of a collection that was copied again: %w", err)
		}
	}
	return nil
}

// endResyncs ends what runs beside the link, and waits for it.
func (p *Pipeline) endResyncs() {
	for _, r := range p.resyncs.running {
		r.drain(nil)
	}
	p.resyncs.group.Wait()
}

// asksForCopy turns the need for a collection that only a copy can give into a
// request for it, and tells whether that was done.
func (p *Pipeline) asksForCopy(ctx context.Context, err error) (bool, error) {
	need, ok := errors.AsType[*ddl.ResyncError](err)
	if !ok || p.cfg.Copy.SpoolDir == "" || p.cfg.part {
		return false, nil
	}
	ns := need.NS.Series() // buckets are copied with what they are of
	if _, in := p.names().Target(ns); !in || ns.IsSystemViews() {
		return false, nil // It would not be left out.
	}
	if err := p.requests.RequestResync(ctx, ns); err != nil {
		return false, err
	}
	p.cfg.Observer.Tell(ResyncNeeded{NS: ns, Err: need})
	return true, nil
}
