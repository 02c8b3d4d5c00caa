package pipeline

import (
	"context"
	"time"

	"github.com/oplogrep/replicator/buffer/spool"
)

// endWith ends the attempt in order once soft is done. The result ends that, and waits until it has
// ended.
func (a *attempt) endWith(ctx, soft context.Context) (stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	detach := context.AfterFunc(soft, func() {
		defer close(ended)
		// Otherwise, the spool is not applied anyway, and a part goes on later.
		if !a.p.drainsRelay(ctx, a) && (a.log != nil || a.p.cfg.part != nil) {
			a.leave()
		}
		a.end(errDrain)
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
func (p *Pipeline) drainsRelay(ctx context.Context, a *attempt) bool {
	if a.log == nil || p.cfg.RelayBytes == 0 || p.monitor.Gaps().Copying || !a.log.AwaitSent(ctx) {
		return false
	}
	p.relayDrained = true
	return true
}

// heard returns the newest entry that a member of the source was heard to have.
func (p *Pipeline) heard() spool.Heard {
	s := p.monitor.Snapshot()
	h := spool.Heard{OpTime: s.Source.Applied, Member: s.Source.Host, At: s.HeardAt}
	for _, m := range p.watcher.View().Members {
		if m.Up() && !m.Stranger && m.Applied.After(h.OpTime) {
			h = spool.Heard{OpTime: m.Applied, Member: m.Host, At: time.Now()}
		}
	}
	return h
}
