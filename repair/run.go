package repair

import (
	"context"
	"time"
)

// releaseWithin limits how long unlocking the named locks may take.
const releaseWithin = 2 * time.Second

// Run carries out repairs while this process leads, until ctx is done.
func (m *Manager) Run(ctx context.Context) {
	locking, end := outlast(ctx, releaseWithin) // locks that are held are unlocked at the end
	defer end()
	m.cfg.Locks.Begin(locking)
	m.run(ctx)
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
	defer cancel()
	m.cfg.Locks.End(ending)
}

// outlast returns a context that ends so long after another one.
func outlast(ctx context.Context, d time.Duration) (context.Context, func()) {
	longer, end := context.WithCancelCause(context.WithoutCancel(ctx))
	var timer *time.Timer
	begun := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(begun)
		timer = time.AfterFunc(d, func() { end(context.Cause(ctx)) })
	})
	return longer, func() {
		if !stop() {
			<-begun
			timer.Stop()
		}
		end(nil)
	}
}
