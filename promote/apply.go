package promote

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/pipeline/stages"
	"github.com/oplogrep/replicator/resync"
)

// lead applies the relay log under the lease, and ends the link. It retries transient errors, but not that of a relay log
// that another process has not released in time: such a process is suspended, and an operator has to end it.
func (pr *promotion) lead(ctx context.Context) error {
	wait := pr.settings.RetryMin
	for {
		err := pr.once(ctx)
		if err == nil || ctx.Err() != nil || errors.Is(err, spool.ErrInUse) || !failure.Transient(err) {
			return err
		}
		pr.say("%v: trying again", err)
		if mongo.Pause(ctx, wait) != nil {
			return context.Cause(ctx)
		}
		wait = min(2*wait, pr.settings.RetryMax)
	}
}

// revert defers the options again that a cutover has begun to convert: indexes that are unique already
// may refuse operations that are right.
func (pr *promotion) revert(ctx context.Context, link *checkpoint.Link) error {
	c := pr.state.Converting
	if c == nil {
		return nil
	}
	pr.say("%s has begun a cutover of the link, which is taken back: options are deferred again", c.By)
	cfg := &pr.settings
	gate := &guard.Gate{Target: pr.target, DB: cfg.MetaDB, Link: cfg.Link}
	converter, err := ddl.NewConverter(ctx, gate, link, cfg.MetaDB, cfg.Link)
	if err != nil {
		return err
	}
	if err := converter.Revert(ctx, func(ddl.Converted) {}); err != nil {
		return err
	}
	return link.Reverted(ctx)
}

// once is one attempt.
func (pr *promotion) once(ctx context.Context) error {
	link, err := pr.acquire(ctx)
	if err != nil {
		return pr.ended(ctx, err)
	}
	pr.adopt(link.State())
	if err := pr.may(); err != nil {
		return err
	}
	if err := pr.revert(ctx, link); err != nil {
		return err
	}
	st := pr.state
	found, ok, err := pr.open(ctx, link.Instance(), st, true)
	if err != nil {
		return err
	}
	if ok && st.Back != nil {
		pr.say("the relay log is not applied: which of its entries came from the target itself is recorded in the source alone")
		ok = false
	}
	if ok && !found.Last.Before(st.Applied) {
		if !applier.KnowsRouting(st.Routing) {
			if err := link.SetRouting(ctx, applier.Routing); err != nil {
				return err
			}
			st = link.State()
		}
		pr.say("applying what the relay log has, from %s to %s", st.FetchFrom, found.Last)
		// A lane may have announced operations after the end of the log: its position says so.
		if err := pr.apply(ctx, link, st, found.Last); err != nil && !errors.Is(err, applier.ErrLogIncomplete) {
			return err
		}
		// Under another term nothing of this one can be in flight, and all lanes are read with majority.
		if link, err = pr.acquire(ctx); err != nil {
			return pr.ended(ctx, err)
		}
		st = link.State()
	}
	pr.state = st
	if err := pr.finish(ctx, st); err != nil {
		return err
	}
	o := pr.rec.over(pr.cfg.By, time.Now().UTC().Truncate(time.Millisecond))
	if err := link.End(ctx, o); err != nil {
		return err
	}
	pr.rec.Over = &o
	return nil
}

// adopt makes a state that was acquired that of the promotion. The one that was found may be older: a process that led may have left out
// a collection since.
func (pr *promotion) adopt(st checkpoint.State) {
	pr.state, pr.rec.LeftOut = st, leftOut(st.LeftOut)
	pr.settings.Writers = st.Writers
	pr.settings.Scope = resync.Without(pr.cfg.Pipeline.Scope, pr.rec.LeftOut)
}

// ended reports the end of a link that this run, or another one, has recorded.
func (pr *promotion) ended(ctx context.Context, err error) error {
	over, is := errors.AsType[*checkpoint.OverError](err)
	if !is || over.Over.Promoted == nil {
		return err
	}
	pr.recorded(ctx, &over.Over)
	return nil
}

// open opens the relay log, once the process that has lost the lease has released it.
func (pr *promotion) open(ctx context.Context, instance string, st checkpoint.State, lock bool) (initialsync.Salvaged, bool, error) {
	log := pr.log
	for begun := time.Now(); ; {
		found, ok, err := log.Salvage(instance, st.Copy, st.FetchFrom, lock)
		pr.rec.Log, pr.rec.Dir = found, cmp.Or(found.Dir, log.Dir())
		switch {
		case !errors.Is(err, spool.ErrInUse) || time.Since(begun) > pr.cfg.SpoolWait:
			return found, ok, err
		case time.Since(begun) < waitsAgain:
			pr.say("waiting for another process to release the relay log: %v", err)
		}
		if mongo.Pause(ctx, waitsAgain) != nil {
			return found, false, context.Cause(ctx)
		}
	}
}

// waitsAgain is the time between two tries to open the relay log.
const waitsAgain = 200 * time.Millisecond

// apply applies the relay log up to an entry, and returns once the checkpoint covers it.
func (pr *promotion) apply(ctx context.Context, link *checkpoint.Link, st checkpoint.State, until oplog.OpTime) error {
	cfg := pr.settings.Stages(link, pr.target, pr.settings.Scope, pr.memory())
	cfg.Start = st.Progress()
	cfg.Batcher.Release = pr.log.Spool().Release
	cfg.Applier.Release = pr.log.Spool().Release
	resyncs := resync.New(resync.Config{Link: pr.settings.Link, Scope: pr.settings.Scope, Requests: pr.requests, Observer: pr.settings.Observer})
	cfg.Commands.Late = func(ctx context.Context, e *ddl.LateError) { resyncs.Late(ctx, e.Hit, e) }
	cfg.Checkpoint.Moved = func(checkpoint.Progress) {}
	cfg.Checkpoint.Advanced = func(context.Context, checkpoint.Progress) error { return nil }
	cfg.Checkpoint.Source = func() checkpoint.Source { return st.Source }
	s, err := stages.New(ctx, cfg)
	if err != nil {
		return err
	}
	read := func(ctx context.Context, out chan<- oplog.Reply) error { return pr.log.Read(ctx, ctx, until, out) }
	return stages.Alongside(ctx, func(ctx context.Context) error { return s.Run(ctx, read) }, link.TouchLoop)
}
