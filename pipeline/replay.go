package pipeline

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/buffer"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/oplog"
)

// openQueue makes the queue, and what fills it. As long as the copy is not
// consistent, or there is much of the log on disk, that is the spool.
func (a *attempt) openQueue(src checkpoint.Source, st checkpoint.State, until oplog.OpTime) error {
	p := a.p
	spooled, err := p.isSpooled(st)
	if err != nil {
		return err
	}
	if spooled {
		if _, err := p.openSpool(st.Copy); err != nil {
			return err
		}
		if a.upstream, err = p.spoolUpstream(src, st); err != nil {
			return err
		}
		a.upstream.until = until
		if a.copy == nil {
			// Any member will do from now on.
			a.upstream.origin, a.upstream.resolver = nil, p.resolver
		}
		a.spool, a.queue = p.spool, p.spool
		return nil
	}
	if err := p.removeSpool(); err != nil {
		return err
	}
	if a.upstream, err = p.newUpstream(src, p.readFrom(st), until); err != nil {
		return err
	}
	a.queue, err = buffer.New(buffer.Config{Limit: p.cfg.BufferBytes - p.cfg.heldBytes(), Registry: p.cfg.Registry})
	return err
}

// isSpooled tells whether the log comes by way of the spool. Behind the copy that
// is so for as long as the spool has the position, and the target is far behind.
func (p *Pipeline) isSpooled(st checkpoint.State) (bool, error) {
	switch {
	case st.Copy == nil:
		return false, nil
	case st.Copy.Phase != checkpoint.Copied:
		return true, nil
	case p.cfg.Copy.SpoolDir == "" || p.drained:
		return false, nil
	}
	s, err := p.openSpool(st.Copy)
	if err != nil {
		return false, err
	}
	first, last, ok := s.Bounds()
	from := p.readFrom(st)
	return ok && !from.Before(first) && from.Before(last), nil
}

// commands makes what carries out commands on the target. placed tells that the
// target's collections have the names that the log expects, whatever is in them.
func (p *Pipeline) commands(cat *catalog.Catalog, placed bool) (*ddl.Executor, error) {
	return ddl.New(ddl.Config{
		Target: p.target, Catalog: cat, Scope: p.names(), MetaDB: p.cfg.MetaDB, Link: p.cfg.heldLink,
		UniqueIndexes: p.cfg.UniqueIndexes, Placed: placed, Observer: p.cfg.Observer,
	})
}

// wholeUntil returns until when capped collections were copied whole.
func (a *attempt) wholeUntil(ctx context.Context) (func(oplog.UUID) (bson.Timestamp, bool), error) {
	if a.copy == nil {
		return nil, nil
	}
	colls, _, err := a.hold.Copies(ctx)
	if err != nil {
		return nil, err
	}
	until := map[oplog.UUID]bson.Timestamp{}
	for i := range colls {
		if c := &colls[i]; c.Complete.T != 0 {
			until[c.UUID] = c.Complete
		}
	}
	return func(id oplog.UUID) (bson.Timestamp, bool) {
		ts, ok := until[id]
		return ts, ok
	}, nil
}

// nearlyDrained is by how much the target may be behind the end of the spool for
// the rest to be taken along in memory.
const nearlyDrained = 5 * time.Second

// advanced is told of each checkpoint.
func (a *attempt) advanced(ctx context.Context, cp checkpoint.Progress) error {
	if err := a.tryFinish(ctx, cp.Applied); err != nil {
		return err
	}
	if a.spool == nil {
		return nil
	}
	if err := a.spool.Forget(cp.FetchFrom); err != nil {
		return fmt.Errorf("truncate the spool: %w", err)
	}
	_, last, ok := a.spool.Bounds()
	behind := time.Duration(int64(last.TS.T)-int64(cp.FetchFrom.TS.T)) * time.Second
	if a.copy == nil && (!ok || behind <= a.p.cfg.Delay+nearlyDrained) && !a.p.drained {
		// The next attempt needs no disk.
		a.p.drained = true
		a.end(errDrain)
	}
	return nil
}

// tryFinish declares the target consistent if the log has been applied far
// enough.
func (a *attempt) tryFinish(ctx context.Context, applied oplog.OpTime) error {
	if a.copy == nil || applied.Before(a.copy.Stop) {
		return nil
	}
	if err := a.p.finishCopy(ctx, a.hold, a.copy); err != nil {
		return err
	}
	a.copy = nil
	a.upstream.free.Store(true)
	return nil
}
