package pipeline

import (
	"context"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/buffer"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/initialsync/overflow"
	"github.com/oplogrep/replicator/oplog"
)

// openQueue creates the stage that the oplog comes from. That is the spool as long as
// the copy is not consistent, or much of the oplog is still on disk.
func (a *attempt) openQueue(soft context.Context, src checkpoint.Source, st checkpoint.State, until oplog.OpTime) error {
	p := a.p
	p.overflow.End()
	spooled, err := p.log.Serves(st.Copy, p.readFrom(st))
	if err != nil {
		return err
	}
	spooled = spooled || soft.Err() == nil && p.overflow.Relays(st.Copy)
	fetch := p.fetchConfig(src, st)
	if spooled {
		if err := p.log.Start(p.run, soft, st.Copy, fetch); err != nil {
			return err
		}
		a.until, a.log, a.spool, a.release = until, p.log, p.log.Spool(), p.log.Spool().Release
		if a.copy == nil { // otherwise, fetching starts again by itself
			a.mayOverflow(soft, st)
		}
		return nil
	}
	p.log.Leave() // It is removed once the source has shown which entries it has.
	p.monitor.Spools(nil, "")
	fetch.Until = until
	if a.fetcher, err = fetcher.New(fetch); err != nil {
		return err
	}
	if a.queue, err = buffer.New(buffer.Config{Limit: p.memory().Buffer, Registry: p.cfg.Registry}); err != nil {
		return err
	}
	a.release = a.queue.Release
	a.overflow = a.mayOverflow(soft, st)
	return nil
}

// mayOverflow begins what spools the oplog if the target does not keep up. It returns nil if there
// is no folder for a spool.
func (a *attempt) mayOverflow(soft context.Context, st checkpoint.State) *overflow.Attempt {
	p := a.p
	if p.cfg.Copy.SpoolDir == "" {
		return nil
	}
	return p.overflow.Begin(overflow.AttemptConfig{
		Source: a.source, State: st, Queue: a.queue, Fetcher: a.fetcher, Read: a.read,
		Start: func(from fetcher.Config) error { return p.log.Start(p.run, soft, st.Copy, from) },
		Told:  func() bool { return soft.Err() != nil },
		End:   func() { a.end(errDrain) },
		Leave: a.leave,
	})
}

// commands configures what carries out commands on the target.
func (p *Pipeline) commands() ddl.Config {
	cfg := p.cfg.commands(p.resyncs.Scope())
	cfg.Late = func(ctx context.Context, e *ddl.LateError) { p.resyncs.Late(ctx, e.Hit, e) }
	cfg.Shared = p.cfg.part != nil || len(p.resyncs.LeftOut()) > 0
	return cfg
}

// advanced is called with each checkpoint.
func (a *attempt) advanced(ctx context.Context, cp checkpoint.Progress) error {
	if err := a.tryFinish(ctx, cp.Applied); err != nil {
		return err
	}
	a.p.overflow.Advanced(cp)
	if a.log == nil {
		return nil
	}
	return a.log.Forget(cp.FetchFrom)
}

// drainedLoop ends the attempt in order once the next one needs no spool.
func (a *attempt) drainedLoop(ctx context.Context) error {
	drained, err := a.log.Drained(ctx, a.p.cfg.Delay, func() (checkpoint.Progress, bool) {
		return a.p.monitor.Progress(), a.p.monitor.Gaps().Copying
	})
	if drained {
		a.leave()
		a.end(errDrain)
	}
	return err
}

// tryFinish declares the target consistent if the oplog has been applied far enough.
func (a *attempt) tryFinish(ctx context.Context, applied oplog.OpTime) error {
	if a.copy == nil || applied.Before(a.copy.Stop) {
		return nil
	}
	done, err := a.log.Finish(ctx, a.link)
	if err != nil {
		return err
	}
	a.p.monitor.Consistent(done)
	a.copy = nil
	return nil
}

// newOverflow creates what spools the oplog of the link while its target does not keep up.
func (p *Pipeline) newOverflow() *overflow.Overflow {
	return overflow.New(overflow.Config{
		Source: p.source, Reaches: p.resolver.Reaches, Fetch: p.fetchConfig,
		Delay: p.cfg.Delay, Relay: p.cfg.RelayBytes > 0, Paused: p.isPaused, Observer: p.cfg.Observer,
		Show: overflow.Show{
			MostLag: p.monitor.MostLag, Oldest: p.monitor.Oldest, RunsShort: p.monitor.RunsShort, Spools: p.monitor.Spools, Relays: p.monitor.Relays,
		},
	}, p.log)
}
