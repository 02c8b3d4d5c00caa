package applier

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/oplog"
)

const (
	// interruptEvery is the interval at which the command of a build that the log has aborted
	// is interrupted, until it has returned.
	interruptEvery = 100 * time.Millisecond
	// abandonAfter is how long its reply is awaited.
	abandonAfter = 2 * time.Second
)

// Why the command of a head start is not sent any more.
var (
	errEnded   = errors.New("the applier has ended")
	errArrived = errors.New("the log's commit or abort of the index build has arrived")
)

// headStarts are the index builds that run on the target while the lanes continue: from the
// log's startIndexBuild to its commitIndexBuild or abortIndexBuild. They belong to the
// dispatcher, and end with it.
type headStarts struct {
	cfg *Config
	// builds are those that the log has not committed or aborted, by their UUID in the log.
	builds map[oplog.UUID]*headStart
	// ctx ends all of them.
	ctx  context.Context
	stop context.CancelCauseFunc
	wg   sync.WaitGroup
}

// headStart is one build.
type headStart struct {
	*ddl.HeadStart
	// running is set once it has a slot; stop prevents further commands of it, and abandon
	// ends also the one in flight, which the target may continue.
	running atomic.Bool
	stop    context.CancelCauseFunc
	abandon context.CancelCauseFunc
	ended   chan struct{}
}

// newHeadStarts returns the builds of a dispatcher, which must call end.
func newHeadStarts(ctx context.Context, cfg *Config) *headStarts {
	b := &headStarts{cfg: cfg, builds: map[oplog.UUID]*headStart{}}
	b.ctx, b.stop = context.WithCancelCause(ctx)
	return b
}

// end stops waiting for all builds. The target may continue them.
func (b *headStarts) end() {
	b.stop(errEnded)
	b.wg.Wait()
}

// start starts the build of a startIndexBuild.
//
//nolint:contextcheck // it ends with b
func (b *headStarts) start(ctx context.Context, op *oplog.Op) error {
	entry, err := op.IndexBuild()
	if err != nil {
		return err
	}
	if b.builds[entry.Build] != nil {
		return nil // it was open when this attempt began
	}
	prepared, err := b.cfg.Commands.HeadStart(ctx, op)
	if err == nil && prepared != nil {
		b.begin(prepared)
	}
	return err
}

// resume starts the builds of earlier attempts again.
//
//nolint:contextcheck // they end with b
func (b *headStarts) resume(ctx context.Context) error {
	open, err := b.cfg.Commands.OpenBuilds(ctx)
	for _, prepared := range open {
		b.begin(prepared)
	}
	return err
}

// begin starts a build, which lasts longer than the call.
func (b *headStarts) begin(prepared *ddl.HeadStart) {
	h := &headStart{HeadStart: prepared, ended: make(chan struct{})}
	calls, abandon := context.WithCancelCause(b.ctx)
	stopped, stop := context.WithCancelCause(calls)
	h.stop, h.abandon = stop, abandon
	b.builds[h.Build] = h
	b.wg.Go(func() {
		defer close(h.ended)
		defer abandon(nil)
		if b.cfg.IndexSlots.acquire(stopped, buildLimit(stopped, b.cfg.Target, b.cfg.IndexBuilds)) == nil {
			defer b.cfg.IndexSlots.release()
			b.run(calls, stopped, h)
		}
	})
}

// run builds the indexes.
func (b *headStarts) run(ctx, stopped context.Context, h *headStart) {
	h.running.Store(true)
	begin := time.Now()
	attrs := []slog.Attr{slog.String(keyNS, string(h.NS)), slog.String(keyIndex, strings.Join(h.Indexes, ", "))}
	b.cfg.Observer.Log(slog.LevelInfo, "index build started with the source's", attrs...)
	err := h.Run(ctx, stopped)
	switch {
	case err == nil:
		attrs = append(attrs, slog.Duration(keyWaited, time.Since(begin)))
		b.cfg.Observer.Log(slog.LevelInfo, "index built before the source's commit", attrs...)
	case stopped.Err() == nil:
		attrs = append(attrs, slog.String(keyCause, err.Error()))
		b.cfg.Observer.Log(slog.LevelWarn, "index build has failed; it is repeated at the source's commit", attrs...)
	}
}

// take removes the build of a commitIndexBuild or abortIndexBuild, and prevents that its
// command is sent from now on. Nil: it had no head start.
func (b *headStarts) take(op *oplog.Op) (*headStart, error) {
	entry, err := op.IndexBuild()
	if err != nil {
		return nil, err
	}
	h := b.builds[entry.Build]
	if h == nil {
		return nil, nil
	}
	delete(b.builds, entry.Build)
	if op.Command == oplog.CommandAbortIndexBuild || !h.running.Load() {
		h.stop(errArrived)
	}
	return h, nil
}

// startBuild gives the build of a startIndexBuild a head start. There is none on a copy,
// which may be newer than the log.
func (d *dispatcher) startBuild(ctx context.Context, op *oplog.Op) error {
	if !d.cfg.CopiedUntil.IsNull() && !op.OpTime.After(d.cfg.CopiedUntil) {
		return nil
	}
	return d.early.start(ctx, op)
}

// awaitBuild waits for the rest of the head start that the build of a commitIndexBuild
// has. The lanes apply their operations meanwhile.
func (d *dispatcher) awaitBuild(ctx context.Context, op *oplog.Op) error {
	h, err := d.early.take(op)
	if h == nil || err != nil {
		return err
	}
	d.handOver()
	d.stats.wait(indexBuild)
	defer d.stats.wait(nothing)
	return d.early.await(ctx, op, h)
}

// await waits for the rest of a head start that was taken, if there is one. There is no
// time limit.
func (b *headStarts) await(ctx context.Context, op *oplog.Op, h *headStart) error {
	if h == nil {
		return nil
	}
	defer h.stop(errArrived)
	start := time.Now()
	ticker := time.NewTicker(longBarrier)
	defer ticker.Stop()
	for {
		select {
		case <-h.ended:
			return nil
		case <-ticker.C:
			b.cfg.Observer.Log(slog.LevelInfo, "still waiting for an index build",
				slog.String(keyOpTime, op.OpTime.String()), slog.String(keyNS, string(h.NS)), slog.Duration(keyWaited, time.Since(start)))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// abortBuild executes an abortIndexBuild: first the command of the head start ends, whether
// the target executes it or makes it wait for other builds.
func (d *dispatcher) abortBuild(ctx context.Context, op *oplog.Op, mode ddl.Mode) error {
	h, err := d.early.take(op)
	if err != nil {
		return err
	}
	if h != nil {
		if err := h.interrupt(ctx); err != nil {
			return err
		}
	}
	return d.carryOut(ctx, op, mode)
}

// interrupt ends the command of a head start. It repeats that, because the command may reach
// the target only afterwards, and does not wait for a reply for longer than abandonAfter.
func (h *headStart) interrupt(ctx context.Context) error {
	defer time.AfterFunc(abandonAfter, func() { h.abandon(errArrived) }).Stop()
	ticker := time.NewTicker(interruptEvery)
	defer ticker.Stop()
	for {
		select {
		case <-h.ended:
			return nil
		default:
		}
		if err := h.Interrupt(ctx); err != nil {
			return err
		}
		select {
		case <-h.ended:
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
