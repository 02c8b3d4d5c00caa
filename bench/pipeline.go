package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"

	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/batcher"
	"github.com/oplogrep/replicator/bench/ends"
	"github.com/oplogrep/replicator/bench/plain"
	"github.com/oplogrep/replicator/bench/result"
	"github.com/oplogrep/replicator/buffer"
	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/batch"
)

// Pipeline measures fetching, parsing, batching, hashing and handing out, into
// nothing; and with the applier behind that, into a target.
func Pipeline(ctx context.Context, c Config) (*result.Run, error) {
	run, err := measurePipeline(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("measure the pipeline: %w", err)
	}
	return run, nil
}

func measurePipeline(ctx context.Context, c Config) (run *result.Run, err error) {
	setDefault(&c.Target, discardEnd)
	c.setDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	if c.Source != "" && c.Source == c.Target {
		return nil, errors.New("the source and the target are the same set")
	}
	src, err := openSource(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("the source: %w", err)
	}
	defer func() {
		if failed := src.done(ctx); err == nil {
			err = failed
		}
	}()
	p := &contender{run: newRun("pipeline", c)}
	p.run.Source, p.run.Target, p.run.Ops, p.run.Bytes = src.shown, discardEnd, src.ops, src.bytes
	if c.Target == discardEnd {
		p.prepare = func(context.Context, int) (func(context.Context) error, error) {
			src.rewind()
			return src.discard, nil
		}
	} else {
		t, err := openTarget(ctx, c)
		if err != nil {
			return nil, err
		}
		defer func() {
			if failed := t.done(ctx); err == nil {
				err = failed
			}
		}()
		src.onto(p, t)
	}
	nameAfter(p.run, c)
	defer limitMemory(c, p)()
	if err := turns(ctx, c, p); err != nil {
		return nil, err
	}
	return p.run, nil
}

// besideBuffer is how much memory is to be used beside the buffer, in bytes.
const besideBuffer = 32 << 20

// limitMemory tells the garbage collector in each round how much there is to be used,
// as the program does: otherwise the heap grows to twice of what is in use. What is
// there already where an end is of this process comes on top. Where somebody has set
// a limit that one stays. Undo takes it back.
func limitMemory(c Config, p *contender) (undo func()) {
	if debug.SetMemoryLimit(-1) != math.MaxInt64 {
		return func() {}
	}
	limit := c.BufferBytes + besideBuffer
	p.run.Notes = append(p.run.Notes, fmt.Sprintf("with a soft memory limit of %d MiB, beside what was in the process before", limit>>20))
	prepare := p.prepare
	p.prepare = func(ctx context.Context, round int) (func(context.Context) error, error) {
		debug.SetMemoryLimit(math.MaxInt64)
		work, err := prepare(ctx, round)
		if err == nil && (c.Source == memoryEnd || c.Serve == nil) {
			runtime.GC()
			var mem runtime.MemStats
			runtime.ReadMemStats(&mem)
			debug.SetMemoryLimit(limit + int64(mem.HeapAlloc))
		} else if err == nil {
			debug.SetMemoryLimit(limit)
		}
		return work, err
	}
	return func() { debug.SetMemoryLimit(math.MaxInt64) }
}

// source is a log that is read from start on, up to last.
type source struct {
	upstream

	shown      string
	ops, bytes int64
	// rewind makes it ready to be read again, done ends it.
	rewind func()
	done   func(ctx context.Context) error
}

// openSource opens what c.Source says, with the workload in its log.
func openSource(ctx context.Context, c Config) (*source, error) {
	s := &source{upstream: upstream{cfg: c, start: ends.First}, rewind: func() {}}
	s.done = func(context.Context) error { return nil }
	switch c.Source {
	case memoryEnd:
		say(c, "making a log of %d operations", c.Workload.Ops)
		m, err := ends.NewMemory(c.Workload, 0)
		if err != nil {
			return nil, err
		}
		s.shown, s.member, s.last, s.rewind = memoryEnd, m, m.Last, m.Rewind
		s.ops, s.bytes = int64(m.Ops), m.Bytes
		return s, nil
	case "":
		return s, s.play(ctx)
	}
	return s, s.write(ctx)
}

// play starts an embedded set that has the workload in its log.
func (s *source) play(ctx context.Context) error {
	say(s.cfg, "playing a log of %d operations", s.cfg.Workload.Ops)
	ops, bytes, err := logSize(s.cfg.Workload)
	if err != nil {
		return err
	}
	s.ops, s.bytes = int64(ops), bytes
	end, last, err := ends.Start(ctx, s.cfg.Serve, ends.What{Kind: ends.Played, Seed: sourceSeed, Workload: s.cfg.Workload})
	if err != nil {
		return err
	}
	s.done = func(context.Context) error {
		end.Close()
		return nil
	}
	host, _ := end.Set.Primary()
	s.shown, s.member, s.last = embeddedEnd, end.Set.Member(host), last
	return nil
}

// write writes the workload to the set that the connection string names, as a plain
// client does.
func (s *source) write(ctx context.Context) (err error) {
	c := s.cfg
	at, err := openPlace(ctx, c, c.Source, sourceSeed)
	if err != nil {
		return err
	}
	collections, err := collectionsOf(c.Workload)
	s.done = func(ctx context.Context) error {
		defer at.close()
		return at.tidy(ctx, ends.Databases(collections))
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.done(ctx))
		}
	}()
	if err != nil {
		return err
	}
	if err := at.prepare(ctx, c.Overwrite, collections); err != nil {
		return err
	}
	if s.start, err = newest(ctx, at.Set); err != nil {
		return err
	}
	say(c, "writing %d operations to the source", c.Workload.Ops)
	client, err := plain.Connect(ctx, at.URI)
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	work, err := plain.Prepare(c.Workload, c.Writers)
	if err == nil {
		err = client.Write(ctx, work, c.CeilingBatch)
	}
	if err != nil {
		return err
	}
	if s.last, err = newest(ctx, at.Set); err != nil {
		return err
	}
	s.ops, s.bytes = int64(work.Ops), work.Bytes
	if s.within, err = only(collections); err != nil {
		return err
	}
	host, _ := at.Set.Primary()
	s.shown, s.member = at.Version, at.Set.Member(host)
	return nil
}

// discard reads the log and gives each operation to the lane of its document, where
// nobody takes it.
func (s *source) discard(ctx context.Context) error {
	var got int64
	err := s.run(ctx, func(_ context.Context, batches <-chan batch.Batch, release func(int64)) error {
		d := &dispatch{lanes: make([][]*oplog.Op, s.cfg.Writers), within: s.within}
		for b := range batches {
			if err := d.take(&b); err != nil {
				return err
			}
			release(b.Bytes)
		}
		got = d.ops
		return nil
	})
	if err == nil && got != s.ops {
		err = fmt.Errorf("%w: %d of %d", errShort, got, s.ops)
	}
	return err
}

// onto makes p the way of the log to a target.
func (s *source) onto(p *contender, t *target) {
	p.run.Target = t.shown()
	p.prepare = func(ctx context.Context, round int) (func(context.Context) error, error) {
		var l *targetLink
		err := t.ready(ctx, func() (err error) {
			l, err = t.makeLink(ctx, "pipeline", round)
			return err
		})
		if err != nil {
			return nil, err
		}
		s.rewind()
		return func(ctx context.Context) error { return s.apply(ctx, l) }, nil
	}
	p.note = func(ctx context.Context) error {
		notes, err := t.note(ctx)
		p.run.Notes = append(p.run.Notes, notes...)
		return err
	}
}

// apply reads the log and applies it.
func (s *source) apply(ctx context.Context, l *targetLink) error {
	var got int64
	err := s.run(ctx, func(ctx context.Context, batches <-chan batch.Batch, release func(int64)) (err error) {
		var a *applier.Applier
		if a, err = l.applier(release); err == nil {
			got, err = applied(ctx, a, batches)
		}
		return err
	})
	if err == nil && got != s.ops && s.within == nil {
		err = fmt.Errorf("%w: %d of %d", errShort, got, s.ops)
	}
	return err
}

// dispatch counts operations, and gives them to lanes.
type dispatch struct {
	lanes [][]*oplog.Op
	// within, if set, says which namespaces count.
	within applier.Scope
	ops    int64
}

// take hands out a batch, and forgets it.
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
	if d.within != nil {
		if _, ok := d.within.Target(op.NS); !ok {
			return
		}
	}
	d.ops++
	if op.Kind == oplog.KindCommand {
		return // it goes to no lane
	}
	lane := oplog.HashID(oplog.HashNamespace(op.NS), op.ID) % uint32(len(d.lanes))
	d.lanes[lane] = append(d.lanes[lane], op)
}

// upstream is what comes before the applier: fetcher, buffer and batcher.
type upstream struct {
	cfg    Config
	member fetcher.Source
	// start is the entry that reading begins at, which is not applied; last the one
	// that ends it.
	start, last oplog.OpTime
	// within, if set, says which namespaces are the workload's; nil is all.
	within applier.Scope
}

// errLast ends reading.
var errLast = errors.New("the last entry has come")

// run gives sink what is cut of the log, until the last entry has come. Sink returns
// when batches is closed, and tells release of the bytes of batches that it is done
// with.
func (u *upstream) run(ctx context.Context, sink func(ctx context.Context, batches <-chan batch.Batch, release func(int64)) error) error {
	queue, err := buffer.New(buffer.Config{Limit: u.cfg.BufferBytes})
	if err != nil {
		return err
	}
	cut, err := batcher.New(batcher.Config{MaxOps: u.cfg.BatchOps, Release: queue.Release, ApplyAfter: u.start})
	if err != nil {
		return err
	}
	f, err := fetcher.New(fetcher.Config{}, fetcher.Deps{})
	if err != nil {
		return err
	}
	fetched, queued := make(chan oplog.Reply), make(chan oplog.Reply)
	batches := make(chan batch.Batch, 1)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(fetched)
		_, err := f.Tail(ctx, u.member, u.start, true, func(ctx context.Context, r oplog.Reply) error {
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
