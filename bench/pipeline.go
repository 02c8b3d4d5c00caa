package bench

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"

	"golang.org/x/time/rate"

	"github.com/oplogrep/replicator/bench/result"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/batch"
)

// Pipeline measures fetching, parsing, batching, hashing and dispatching. It has no target:
// it drops the operations after dispatching.
func Pipeline(ctx context.Context, c Config) (*result.Run, error) {
	run, err := measurePipeline(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("measure the pipeline: %w", err)
	}
	return run, nil
}

func measurePipeline(ctx context.Context, c Config) (run *result.Run, err error) {
	c.setDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	src, err := openSource(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("the source: %w", err)
	}
	defer src.close()
	p := &contender{run: newRun("pipeline", c)}
	p.run.Source, p.run.Target, p.run.Ops, p.run.Bytes = src.is, result.End{Kind: result.EndDiscard}, src.ops, src.bytes
	p.prepare = func(context.Context, int) (func(context.Context) error, error) {
		src.rewind()
		return src.discard, nil
	}
	nameAfter(p.run, c)
	defer limitMemory(c, p)()
	if err := turns(ctx, c, p); err != nil {
		return nil, err
	}
	return p.run, nil
}

// outsideBuffer is how much memory may be used outside the buffer, in bytes.
const outsideBuffer = 32 << 20

// limitMemory sets the garbage collector's memory limit in each round, as the program
// does: otherwise the heap grows to twice its live size. Memory of ends in this
// process is added. A limit set by the user stays. undo restores the former one.
func limitMemory(c Config, p *contender) (undo func()) {
	if debug.SetMemoryLimit(-1) != math.MaxInt64 {
		return func() {}
	}
	limit := c.BufferBytes + outsideBuffer
	p.run.Notes = append(p.run.Notes, fmt.Sprintf("with a soft memory limit of %d MiB, not counting the memory of the process before", limit>>20))
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

// discard reads the log and dispatches each operation to the lane of its document,
// which drops it.
func (s *source) discard(ctx context.Context) error {
	var got int64
	pace := rate.NewLimiter(rate.Inf, s.cfg.BatchOps)
	if s.cfg.TakeRate > 0 {
		pace.SetLimit(rate.Limit(s.cfg.TakeRate))
	}
	err := s.run(ctx, func(ctx context.Context, batches <-chan batch.Batch, release func(int64)) error {
		d := &dispatch{lanes: make([][]*oplog.Op, s.cfg.Writers)}
		for b := range batches {
			if err := d.take(&b); err != nil {
				return err
			}
			if err := pace.WaitN(ctx, min(b.Weight, s.cfg.BatchOps)); err != nil {
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
