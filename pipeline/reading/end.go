package reading

import (
	"context"
	"time"

	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/oplog"
)

// End ends reading: the entries that were read are applied, and the attempt ends in order.
func (a *Attempt) End() { a.end(errDrain) }

// Ending returns a channel that is closed when no more entries are to be read.
func (a *Attempt) Ending() <-chan struct{} { return a.ending.Done() }

// Leave makes the attempt end before index builds do.
func (a *Attempt) Leave() { a.leave() }

// Left returns a channel that Leave closes.
func (a *Attempt) Left() <-chan struct{} { return a.left }

// EndWith ends the attempt in order once soft is done. The result ends that, and waits until it has
// ended.
func (a *Attempt) EndWith(ctx, soft context.Context) (stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	detach := context.AfterFunc(soft, func() {
		defer close(ended)
		// Otherwise, the spool is not applied anyway, and a part continues later.
		if !a.drainsRelay(ctx) && (a.log != nil || a.of.cfg.Part) {
			a.leave()
		}
		a.End()
	})
	return func() {
		cancel(nil)
		if !detach() {
			<-ended
		}
	}
}

// drainsRelay reports, once soft is done, whether the attempt has got everything that the relay
// log has. That is so if it had read all of it: a drain does not apply entries that are only on disk.
func (a *Attempt) drainsRelay(ctx context.Context) bool {
	o := a.of
	if a.log == nil || o.cfg.RelayBytes == 0 || o.cfg.Monitor.Gaps().Copying || !a.log.AwaitSent(ctx) {
		return false
	}
	o.relayDrained = true
	return true
}

// Loops returns the functions that must run concurrently with the stages of the attempt.
func (a *Attempt) Loops() []func(context.Context) error {
	var loops []func(context.Context) error
	if a.log != nil {
		loops = append(loops, a.drainedLoop)
	}
	if a.overflow != nil {
		loops = append(loops, a.overflow.Run)
	}
	if a.log != nil && a.of.cfg.RelayBytes > 0 {
		loops = append(loops, func(ctx context.Context) error { return a.log.NoteHeardLoop(ctx, a.of.heard) })
	}
	return loops
}

// drainedLoop ends the attempt in order once the next one needs no spool.
func (a *Attempt) drainedLoop(ctx context.Context) error {
	m := a.of.cfg.Monitor
	drained, err := a.log.Drained(ctx, a.of.cfg.Delay, func() (checkpoint.Progress, bool) {
		return m.Progress(), m.Gaps().Copying
	})
	if drained {
		a.leave()
		a.End()
	}
	return err
}

// heard returns the newest entry that a member of the source was heard to have in this attempt, null for none.
func (o *Oplog) heard() spool.Heard {
	var h spool.Heard
	if s := o.cfg.Monitor.Snapshot(); !s.HeardAt.IsZero() { // otherwise, Source is of an earlier attempt
		h = spool.Heard{OpTime: s.Source.Applied, Member: s.Source.Host, At: s.HeardAt}
	}
	for _, m := range o.cfg.Watcher.View().Members {
		if m.Up() && !m.Stranger && m.Applied.After(h.OpTime) {
			h = spool.Heard{OpTime: m.Applied, Member: m.Host, At: time.Now()}
		}
	}
	return h
}

// Advanced is called with each checkpoint.
func (a *Attempt) Advanced(ctx context.Context, cp checkpoint.Progress) error {
	if err := a.TryFinish(ctx, cp.Applied); err != nil {
		return err
	}
	a.of.overflow.Advanced(cp)
	if a.log == nil {
		return nil
	}
	return a.log.Forget(cp.FetchFrom)
}

// TryFinish declares the target consistent if the oplog has been applied far enough.
func (a *Attempt) TryFinish(ctx context.Context, applied oplog.OpTime) error {
	if a.copy == nil || applied.Before(a.copy.Stop) {
		return nil
	}
	done, err := a.log.Finish(ctx, a.cfg.Link)
	if err != nil {
		return err
	}
	a.of.cfg.Monitor.Consistent(done)
	a.copy = nil
	return nil
}
