package bench

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/batcher"
	"github.com/oplogrep/replicator/buffer"
	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/batch"
)

// dispatch counts operations, and assigns them to lanes.
type dispatch struct {
	lanes [][]*oplog.Op
	ops   int64
}

// take dispatches a batch, and drops it.
func (d *dispatch) take(b *batch.Batch) error {
	for i := range b.Items {
		item := &b.Items[i]
		if item.Txn == nil {
			d.hand(&item.Entry.Op)
			continue
		}
		for op, err := range item.Txn.Ops() {
			if err != nil {
				return err
			}
			d.hand(&op)
		}
		if err := item.Txn.Close(); err != nil {
			return err
		}
	}
	for i := range d.lanes {
		clear(d.lanes[i])
		d.lanes[i] = d.lanes[i][:0]
	}
	return nil
}

func (d *dispatch) hand(op *oplog.Op) {
	d.ops++
	if op.Kind == oplog.KindCommand {
		return // it goes to no lane
	}
	lane := oplog.HashID(oplog.HashNamespace(op.NS), op.ID) % uint32(len(d.lanes))
	d.lanes[lane] = append(d.lanes[lane], op)
}

// upstream has the stages before the applier: fetcher, buffer and batcher.
type upstream struct {
	cfg    Config
	member mongo.Caller
	// start is the entry that reading begins at, which is not applied; last the one
	// that ends it.
	start, last oplog.OpTime
}

// errLast ends reading.
var errLast = errors.New("the last entry has come")

// run sends the batches of the log to sink, until the last entry. sink returns when
// batches is closed, and calls release with the bytes of finished batches.
func (u *upstream) run(ctx context.Context, sink func(ctx context.Context, batches <-chan batch.Batch, release func(int64)) error) error {
	queue, err := buffer.New(buffer.Config{Limit: u.cfg.BufferBytes})
	if err != nil {
		return err
	}
	cut, err := batcher.New(batcher.Config{MaxOps: u.cfg.BatchOps, Release: queue.Release, ApplyAfter: u.start})
	if err != nil {
		return err
	}
	f, err := fetcher.NewReader(fetcher.ReaderConfig{})
	if err != nil {
		return err
	}
	fetched, queued := make(chan oplog.Reply), make(chan oplog.Reply)
	batches := make(chan batch.Batch, 1)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(fetched)
		_, err := f.Tail(ctx, "the source", u.member, u.start, true, func(ctx context.Context, r oplog.Reply) error {
			last := len(r.Entries) > 0 && !r.Entries[len(r.Entries)-1].OpTime.Before(u.last)
			select {
			case fetched <- r:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			if last {
				return errLast
			}
			return nil
		})
		if errors.Is(err, errLast) {
			return nil
		}
		return err
	})
	g.Go(func() error { return queue.Run(ctx, fetched, queued) })
	g.Go(func() error { return cut.Run(ctx, queued, batches) })
	g.Go(func() error { return sink(ctx, batches, queue.Release) })
	return g.Wait()
}
