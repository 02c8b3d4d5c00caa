package batcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/metric"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/batch"
	"github.com/oplogrep/replicator/oplog/txn"
)

const (
	// DefaultMaxOps is the default limit of operations, the same as a server's.
	DefaultMaxOps = 5000
	// defaultMaxBytes is the default limit of bytes, the same as a server's.
	defaultMaxBytes = 100 << 20
	// MostOps is the highest limit of operations, the same as a server's.
	MostOps = 1_000_000
)

// Keys of log attributes.
const (
	keyOpTime       = "optime"
	keyTransactions = "transactions"
)

// Config configures a Batcher.
type Config struct {
	// MaxOps bounds the operations of a batch. Zero means DefaultMaxOps.
	MaxOps int
	// MaxBytes bounds the size of a batch's entries in the log, in bytes. Zero means
	// 100 MiB.
	MaxBytes int64
	// Delay is the minimum age of an entry before it is passed on, with a resolution
	// of one second. Zero means no delay.
	Delay time.Duration
	// Drain, once closed, ends the delay: entries not due by then are discarded, and
	// Run returns nil when in is closed. Nil is never closed.
	Drain <-chan struct{}

	// PassOver, if not nil, is asked for each entry, in order, whether it is to be treated as a no-op.
	PassOver func(e *oplog.Entry) (bool, error)

	// ApplyAfter, SpillDir and MemoryBytes are passed to the transaction assembler;
	// see txn.Config.
	ApplyAfter  oplog.OpTime
	SpillDir    string
	MemoryBytes int64

	// Release receives the bytes of replies that are not accounted to a batch. Nil
	// means that they are not counted.
	Release  func(bytes int64)
	Observer event.Observer
	Registry prometheus.Registerer
	// Meter measures the goroutine that cuts batches. May be nil.
	Meter *metric.Meter
}

func (c *Config) setDefaults() {
	if c.MaxOps == 0 {
		c.MaxOps = DefaultMaxOps
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = defaultMaxBytes
	}
	if c.Release == nil {
		c.Release = func(int64) {}
	}
}

func (c *Config) validate() error {
	var faults []error
	if c.MaxOps < 1 || c.MaxOps > MostOps {
		faults = append(faults, fmt.Errorf("operations of a batch: %d, possible are 1 to %d", c.MaxOps, MostOps))
	}
	if c.MaxBytes < 1 {
		faults = append(faults, fmt.Errorf("bytes of a batch: %d", c.MaxBytes))
	}
	if c.Delay < 0 {
		faults = append(faults, fmt.Errorf("delay: %s", c.Delay))
	}
	return errors.Join(faults...)
}

// Batcher cuts batches. Make one with New.
type Batcher struct {
	cfg       Config
	metrics   *metrics
	assembler *txn.Assembler
	current   draft
}

// New checks cfg. It does no I/O and starts nothing.
func New(cfg Config) (*Batcher, error) {
	cfg.setDefaults()
	faults := []error{cfg.validate()}
	assembler, err := txn.New(txn.Config{ApplyAfter: cfg.ApplyAfter, SpillDir: cfg.SpillDir, MemoryBytes: cfg.MemoryBytes})
	if err := errors.Join(append(faults, err)...); err != nil {
		return nil, fmt.Errorf("set up the batcher: %w", err)
	}
	return &Batcher{cfg: cfg, metrics: newMetrics(cfg.Registry), assembler: assembler}, nil
}

// Run cuts the entries from in into batches and sends them on out, in order. It
// closes out, and returns nil once in is closed and all entries are passed on,
// except for those that Config.Delay keeps back, or the cause once ctx is done. The
// receiver of a batch closes its transactions; Run closes those of batches that
// were not received. It is called once.
func (b *Batcher) Run(ctx context.Context, in <-chan oplog.Reply, out chan<- batch.Batch) (err error) {
	defer close(out)
	defer b.metrics.ended()
	defer func() {
		if fault := errors.Join(b.current.discard(), b.assembler.Close()); fault != nil {
			err = errors.Join(err, fault)
		}
	}()
	defer b.cfg.Meter.Enter(metric.Idle)
	for {
		b.cfg.Meter.Enter(metric.Idle)
		r, more, err := b.receive(ctx, in, out)
		b.cfg.Meter.Enter(metric.Busy)
		if err != nil {
			return err
		}
		if !more {
			return b.flush(ctx, out)
		}
		due, err := b.reply(ctx, r, out)
		if err != nil {
			return err
		}
		if !due {
			return errors.Join(b.flush(ctx, out), b.giveUp(ctx, in))
		}
	}
}

// giveUp discards replies until in is closed.
func (b *Batcher) giveUp(ctx context.Context, in <-chan oplog.Reply) error {
	for {
		select {
		case r, ok := <-in:
			if !ok {
				return nil
			}
			b.cfg.Release(r.Bytes)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// reply processes a reply. It returns false if one of its entries and all that
// follow are to be discarded.
func (b *Batcher) reply(ctx context.Context, r oplog.Reply, out chan<- batch.Batch) (due bool, err error) {
	defer b.metrics.flush()
	last := len(r.Entries) - 1
	if last < 0 {
		b.account(r.Bytes)
	}
	for i := range r.Entries {
		e := &r.Entries[i]
		due, err := b.keepBack(ctx, e, out)
		if err != nil {
			return false, err
		}
		if !due {
			b.cfg.Release(r.Bytes)
			return false, nil
		}
		var bytes int64
		if i == last {
			bytes = r.Bytes
		}
		// For most batches the rest of the reply is enough capacity.
		if err := b.take(ctx, e, bytes, last-i+1, out); err != nil {
			return false, err
		}
	}
	return true, nil
}

// account adds bytes to the current batch, or releases them if there is none.
func (b *Batcher) account(bytes int64) {
	switch {
	case !b.current.isEmpty():
		b.current.Bytes += bytes
	case bytes > 0:
		b.cfg.Release(bytes)
	}
}

// take processes the next entry. Bytes is the memory to account to it, room the
// capacity to allocate in a new batch.
func (b *Batcher) take(ctx context.Context, e *oplog.Entry, bytes int64, room int, out chan<- batch.Batch) error {
	err := b.passOver(e)
	var r txn.Result
	if err == nil {
		r, err = b.assembler.Add(e)
	}
	if err != nil {
		// The next attempt fails at the same entry, so pass on everything before it.
		if lost := b.flush(ctx, out); lost != nil {
			return lost
		}
		return err
	}
	if r.Dropped > 0 {
		// The source's log should have ended them before their sessions continued.
		b.cfg.Observer.Log(slog.LevelWarn, "transactions without an end were given up",
			slog.String(keyOpTime, e.OpTime.String()), slog.Int(keyTransactions, r.Dropped))
	}
	p, err := b.piece(e, &r)
	if err != nil {
		return err
	}
	b.metrics.outcomes[r.Outcome]++
	if r.Outcome == txn.Past {
		b.account(bytes)
		return nil
	}
	if !b.current.fits(&p, &b.cfg) {
		if err := b.send(ctx, out); err != nil {
			return closing(err, p.txn)
		}
	}
	b.current.add(&p, bytes, min(room, b.cfg.MaxOps))
	if b.current.isFull(&b.cfg) {
		return b.send(ctx, out)
	}
	return nil
}

// passOver makes a no-op of an entry that is to be passed over. It ends no transaction of its session:
// all of that are passed over.
func (b *Batcher) passOver(e *oplog.Entry) error {
	if b.cfg.PassOver == nil {
		return nil
	}
	over, err := b.cfg.PassOver(e)
	if err == nil && over {
		*e = oplog.Entry{Op: oplog.Op{OpTime: e.OpTime, Kind: oplog.KindNoop, NS: e.NS, O: e.O}, Wall: e.Wall, Raw: e.Raw}
	}
	return err
}

// closing closes a transaction that is not sent because of err.
func closing(err error, t *txn.Transaction) error {
	if t != nil {
		if fault := t.Close(); fault != nil {
			return errors.Join(err, fault)
		}
	}
	return err
}

// receive returns the next reply, false once in is closed. While it waits it offers
// the current batch.
func (b *Batcher) receive(ctx context.Context, in <-chan oplog.Reply, out chan<- batch.Batch) (oplog.Reply, bool, error) {
	select {
	case r, ok := <-in:
		return r, ok, nil
	case <-ctx.Done():
		return oplog.Reply{}, false, context.Cause(ctx)
	default:
	}
	for {
		offer := out
		if b.current.isEmpty() {
			offer = nil
		}
		select {
		case r, ok := <-in:
			return r, ok, nil
		case offer <- b.current.Batch:
			b.sent()
		case <-ctx.Done():
			return oplog.Reply{}, false, context.Cause(ctx)
		}
	}
}

// recheck is the interval at which the clock is read while an entry is kept back: a
// single timer would not notice that the clock was set.
const recheck = time.Second

// keepBack blocks until an entry is old enough, and returns false if it is
// discarded instead. While it waits it offers the current batch.
func (b *Batcher) keepBack(ctx context.Context, e *oplog.Entry, out chan<- batch.Batch) (due bool, err error) {
	if b.cfg.Delay == 0 {
		return true, nil
	}
	at := time.Unix(int64(e.OpTime.TS.T), 0).Add(b.cfg.Delay)
	wait := time.Until(at)
	if wait <= 0 {
		return true, nil
	}
	b.metrics.keptBack.Inc()
	b.cfg.Meter.Enter(metric.Idle)
	defer b.cfg.Meter.Enter(metric.Busy)
	timer := time.NewTimer(min(wait, recheck))
	defer timer.Stop()
	for {
		offer := out
		if b.current.isEmpty() {
			offer = nil
		}
		select {
		case offer <- b.current.Batch:
			b.sent()
		case <-timer.C:
			if wait = time.Until(at); wait <= 0 {
				return true, nil
			}
			timer.Reset(min(wait, recheck))
		case <-b.cfg.Drain:
			return false, nil
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// flush sends the current batch, if there is one.
func (b *Batcher) flush(ctx context.Context, out chan<- batch.Batch) error {
	if b.current.isEmpty() {
		return nil
	}
	return b.send(ctx, out)
}

func (b *Batcher) send(ctx context.Context, out chan<- batch.Batch) error {
	b.cfg.Meter.Enter(metric.Blocked)
	defer b.cfg.Meter.Enter(metric.Busy)
	select {
	case out <- b.current.Batch:
		b.sent()
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// sent starts a new batch after the current one was received.
func (b *Batcher) sent() {
	b.metrics.sent(&b.current, b.assembler.Bytes(), b.current.isFull(&b.cfg))
	b.current = draft{}
}
