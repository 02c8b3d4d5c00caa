package pipeline

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/resync"
)

// spooler reads the log of the member that is copied and puts it on disk, for as
// long as there is a copy. It belongs to no attempt: a target that is away for hours
// must not make the source's oplog pass the copy by.
type spooler struct {
	upstream *upstream
	stop     context.CancelCauseFunc
	// done is closed once err is why it ended; nil is because it was told to.
	done chan struct{}
	err  error
}

// spooled is what a spooler was started with. The state's FetchFrom goes on with each
// checkpoint.
type spooled struct {
	source checkpoint.Source
	state  checkpoint.State
}

// watch waits until the spooler ends, and returns why; or until ctx is done.
func (s *spooler) watch(ctx context.Context) error {
	select {
	case <-s.done:
		if s.err != nil {
			return s.err
		}
	case <-ctx.Done():
	}
	return nil
}

// startSpooler opens the spool where the state wants to read from, and runs what
// fills it, until ctx or soft is done, or stopSpooler is called. What runs already
// goes on.
func (p *Pipeline) startSpooler(ctx, soft context.Context, src checkpoint.Source, st checkpoint.State) (*spooler, error) {
	if _, err := p.openSpool(st.Copy); err != nil {
		return nil, err
	}
	from := p.readFrom(st)
	err := p.spool.Start(from)
	if errors.Is(err, spool.ErrMissing) {
		// The spool is another machine's, or begins too late: all of it is read again.
		if err := p.removeSpool(); err != nil {
			return nil, err
		}
		if _, err := p.openSpool(st.Copy); err != nil {
			return nil, err
		}
		err = p.spool.Start(from)
	}
	if err != nil {
		return nil, fmt.Errorf("begin to read the spool at %s: %w", from, err)
	}
	if p.spooler != nil {
		select {
		case <-p.spooler.done: // with an error that an attempt has reported
		default:
			if st.Copy.Phase == checkpoint.Copied {
				// Who found out may not have been told that it was written.
				p.spooler.upstream.free.Store(true)
			}
			return p.spooler, nil
		}
	}
	if _, last, ok := p.spool.Bounds(); ok {
		from = last
	}
	u, err := p.newUpstream(src, from, oplog.OpTime{})
	if err != nil {
		return nil, err
	}
	if st.Copy.Phase != checkpoint.Copied {
		u.origin = p.pinned(st.Copy)
		if u.resolver, err = p.pinnedTo(st.Copy.Host); err != nil {
			return nil, err
		}
	}
	p.spooled = spooled{src, st}
	s := &spooler{upstream: u, done: make(chan struct{})}
	ctx, s.stop = context.WithCancelCause(ctx)
	to := p.spool
	p.spooler = s
	p.spooling.Go(func() {
		defer close(s.done)
		defer s.stop(nil)
		defer context.AfterFunc(soft, func() { s.stop(errDrain) })()
		s.err = s.run(ctx, to)
	})
	return s, nil
}

func (s *spooler) run(ctx context.Context, to *spool.Spool) error {
	g, ctx := errgroup.WithContext(ctx)
	fetched := make(chan oplog.Reply)
	g.Go(named("upstream", func() error { return s.upstream.run(ctx, fetched) }))
	g.Go(named("spool", func() error { return to.Store(ctx, fetched) }))
	err := g.Wait()
	if errors.Is(context.Cause(ctx), errDrain) {
		return nil
	}
	return err
}

// spoolFailed lets go a spool that was found damaged, or is gone: what was in it is
// read again, from the source. Where the attempt did not end for that, the next one
// may not come as far for long: then it is read from now on. It returns the error of
// what fills the spool if that will not go by itself.
func (p *Pipeline) spoolFailed(ctx, soft context.Context, err error) error {
	if damaged, ok := errors.AsType[*spool.DamagedError](err); ok && p.spool != nil {
		return p.discardSpool(damaged)
	}
	if p.spooler == nil {
		return nil
	}
	select {
	case <-p.spooler.done:
	default:
		return nil
	}
	broken := p.spooler.err
	if damaged, ok := errors.AsType[*spool.DamagedError](broken); ok {
		if err := p.discardSpool(damaged); err != nil {
			return err
		}
		_, err := p.startSpooler(ctx, soft, p.spooled.source, p.spooled.state)
		return err
	}
	if Classify(broken).Action == Retry {
		return nil
	}
	return broken
}

func (p *Pipeline) discardSpool(why *spool.DamagedError) error {
	p.logSpoolDamaged(why)
	return p.removeSpool()
}

// hasSpooled tells whether there is something on disk that is not applied.
func (p *Pipeline) hasSpooled() bool {
	if p.spool == nil {
		return false
	}
	_, last, ok := p.spool.Bounds()
	return p.isCopying() || ok && last.After(p.progress().Applied)
}

// stopSpooler ends what fills the spool.
func (p *Pipeline) stopSpooler() {
	if s := p.spooler; s != nil {
		s.stop(errDrain)
		<-s.done
		p.spooler = nil
	}
}

// openSpool opens the spool of a copy. It stays open for all attempts.
func (p *Pipeline) openSpool(c *checkpoint.Copy) (*spool.Spool, error) {
	id := fmt.Sprintf("%s/%d/%s/%d", p.cfg.Link, c.Number, c.Begin, c.Started.UnixMilli())
	if p.spool != nil && p.spoolID == id {
		return p.spool, nil
	}
	if err := p.closeSpool(); err != nil {
		return nil, err
	}
	s, err := p.tryOpenSpool(id)
	if damaged, ok := errors.AsType[*spool.DamagedError](err); ok {
		// What is in it is at the source too, or the copy is void.
		p.logSpoolDamaged(damaged)
		if err := spool.Clear(p.spoolDir); err != nil {
			return nil, fmt.Errorf("remove the damaged spool in %s: %w", p.spoolDir, err)
		}
		s, err = p.tryOpenSpool(id)
	}
	if err != nil {
		return nil, fmt.Errorf("open the spool in %s: %w", p.spoolDir, err)
	}
	p.spool, p.spoolID = s, id
	return s, nil
}

func (p *Pipeline) tryOpenSpool(id string) (*spool.Spool, error) {
	if p.cfg.Copy.SpoolDir == "" {
		return nil, ErrNoSpool
	}
	return spool.Open(spool.Config{
		Dir: p.spoolDir, ID: id, Limit: p.cfg.Copy.SpoolBytes, MinFree: p.cfg.Copy.SpoolFree,
		Memory: p.cfg.BufferBytes, Observer: p.cfg.Observer, Registry: p.cfg.Registry,
	})
}

// ErrNoSpool is a link in the middle of its copy, and no folder for its log.
var ErrNoSpool = errors.New("the link is making its copy, and no folder for the log is given (--spool-dir)")

func (p *Pipeline) closeSpool() error {
	p.stopSpooler()
	s := p.spool
	p.spool, p.spoolID = nil, ""
	if s == nil {
		return nil
	}
	if err := s.Close(); err != nil {
		return fmt.Errorf("close the spool: %w", err)
	}
	return nil
}

// removeSpool lets the spool go: nothing in it is needed any more.
func (p *Pipeline) removeSpool() error {
	p.stopSpooler()
	s := p.spool
	p.spool, p.spoolID = nil, ""
	if s == nil {
		return nil
	}
	if err := s.Remove(); err != nil {
		return fmt.Errorf("remove the spool: %w", err)
	}
	return nil
}

// sweepSpools removes what is left on disk of collections that were copied again, or
// were going to be: those of the present attempt are kept. What cannot be removed
// does no harm, and is tried again with the next attempt.
func (p *Pipeline) sweepSpools(keep map[string]bool) {
	if p.cfg.Copy.SpoolDir == "" {
		return
	}
	found, _ := os.ReadDir(p.spoolDir) // there may be none
	for _, f := range found {
		if resync.IsPart(f.Name()) && !keep[f.Name()] {
			_ = spool.Clear(filepath.Join(p.spoolDir, f.Name()))
		}
	}
}
