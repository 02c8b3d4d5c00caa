package pipeline

import (
	"context"
	"log/slog"
	"time"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/buffer"
	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/oplog"
)

// openQueue creates the stage that the oplog comes from. That is the spool as long as
// the copy is not consistent, or much of the oplog is still on disk.
func (a *attempt) openQueue(ctx, soft context.Context, src checkpoint.Source, st checkpoint.State, until oplog.OpTime) error {
	p := a.p
	spooled, err := p.isSpooled(st)
	if err != nil {
		return err
	}
	if spooled {
		if err := p.startLog(ctx, soft, src, st); err != nil {
			return err
		}
		a.until, a.log, a.spool = until, p.log, p.log.Spool()
		return nil
	}
	if err := p.log.Remove(); err != nil {
		return err
	}
	if a.fetcher, err = p.newFetcher(src, p.readFrom(st), until, nil); err != nil {
		return err
	}
	a.queue, err = buffer.New(buffer.Config{Limit: p.cfg.BufferBytes, Registry: p.cfg.Registry})
	return err
}

// release releases bytes of fetched entries.
func (a *attempt) release(bytes int64) {
	if a.log != nil {
		a.spool.Release(bytes)
		return
	}
	a.queue.Release(bytes)
}

// isSpooled reports whether the oplog comes through the spool. After the copy, it does
// for as long as the spool has the position and the target is far behind.
func (p *Pipeline) isSpooled(st checkpoint.State) (bool, error) {
	switch {
	case st.Copy == nil:
		return false, nil
	case st.Copy.Phase != checkpoint.Copied:
		return true, nil
	case p.cfg.Copy.SpoolDir == "" || p.drained.Load():
		return false, nil
	}
	if err := p.log.Open(p.spoolDir, st.Copy); err != nil {
		return false, err
	}
	first, last, ok := p.log.Spool().Bounds()
	from := p.readFrom(st)
	return ok && !from.Before(first) && from.Before(last), nil
}

// commands creates an executor for commands on the target. placed means that the
// target's collections have the names that the oplog expects, whatever their contents
// are.
func (p *Pipeline) commands(link *checkpoint.Link, cat *catalog.Catalog, placed bool) (*ddl.Executor, error) {
	whole := p.cfg.whole()
	return ddl.New(ddl.Config{
		Target: p.target, Fence: link, Catalog: cat, Scope: p.resyncs.Scope(), Names: whole.scope, MetaDB: p.cfg.MetaDB, Link: whole.link, Own: p.cfg.Link,
		UniqueIndexes: p.cfg.UniqueIndexes, Placed: placed, Observer: p.cfg.Observer, Late: p.late,
		Shared: p.cfg.part != nil || len(p.resyncs.LeftOut()) > 0,
	})
}

// late requests that the process that now has the link copies again the collections
// that a command of this process may have changed. It logs that in any case.
func (p *Pipeline) late(ctx context.Context, e *ddl.LateError) {
	for _, ns := range e.Hit {
		message := "a late command may have changed a collection: compare it with the source"
		attrs := []slog.Attr{slog.String(keyNS, string(ns)), slog.String(keyReason, e.Error())}
		if source, in := p.cfg.Scope.Source(ns); in {
			// A collection that is being copied now may be affected.
			if err := p.requests.ResyncAgain(ctx, source); err != nil {
				attrs = append(attrs, slog.Any(keyError, err))
			} else {
				message = "a late command may have changed a collection: it is to be copied again"
			}
		}
		p.cfg.Observer.Log(slog.LevelError, message, attrs...)
	}
}

// nearlyDrained is how far the target may be behind the end of the spool when the rest
// is read into memory.
const (
	nearlyDrained = 5 * time.Second
	// unspoolEvery is how often the spool is checked for that.
	unspoolEvery = 200 * time.Millisecond
	// fullFor is how long the spool may be full, with everything in it applied, before
	// the wait for room is given up.
	fullFor = 10 * time.Second
)

// advanced is called with each checkpoint.
func (a *attempt) advanced(ctx context.Context, cp checkpoint.Progress) error {
	if err := a.tryFinish(ctx, cp.Applied); err != nil {
		return err
	}
	if a.log == nil {
		return nil
	}
	return a.log.Forget(cp.FetchFrom)
}

// unspoolLoop ends the attempt in order once the target is consistent and little is
// left on disk: the next attempt needs no spool.
//
// If everything is applied and nothing can be deleted, because an open transaction
// began before it, no more entries come in. That ends the attempt too, in order if the
// target is consistent.
func (a *attempt) unspoolLoop(ctx context.Context) error {
	tick := time.NewTicker(unspoolEvery)
	defer tick.Stop()
	var full time.Time
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		_, last, ok := a.spool.Bounds()
		cp := a.p.progress()
		behind := time.Duration(int64(last.TS.T)-int64(cp.FetchFrom.TS.T)) * time.Second
		if !a.p.isCopying() && (!ok || behind <= a.p.cfg.Delay+nearlyDrained) {
			a.p.drained.Store(true)
			a.end(errDrain)
			return nil
		}
		if !ok || cp.Durable.Before(last) {
			full = time.Time{}
			continue
		}
		switch disk := a.spool.Disk(); {
		case !disk.Full || !disk.Last.Equal(last):
			full = time.Time{}
		case full.IsZero():
			full = time.Now()
		case time.Since(full) < fullFor:
		case a.p.isCopying():
			return &spool.FullError{Dir: a.p.spoolDir, Why: disk.Why + ", and what is there is needed by a transaction that is open"}
		default:
			a.p.drained.Store(true)
			a.end(errDrain)
			return nil
		}
	}
}

// tryFinish declares the target consistent if the oplog has been applied far enough.
func (a *attempt) tryFinish(ctx context.Context, applied oplog.OpTime) error {
	if a.copy == nil || applied.Before(a.copy.Stop) {
		return nil
	}
	if err := a.p.finishCopy(ctx, a.link, a.copy); err != nil {
		return err
	}
	a.copy = nil
	a.log.Unpin()
	return nil
}
