package monitor

import (
	"context"
	"log/slog"
	"time"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/mongo"
)

const (
	// lackingEvery is how often the metadata are read for what the target lacks.
	lackingEvery = time.Second
	// deferredEvery is how often they are read for deferred options, in lackingEvery: that may
	// be many documents.
	deferredEvery = 10
	// waitsAfter is how long a command waits before that is announced.
	waitsAfter = 5 * time.Second
	// waitsEvery is how often waits are looked for.
	waitsEvery = time.Second
)

// LackingLoop observes, until ctx is done, what the target lacks of the source: views and
// indexes that could not be created, options that it refuses, and those that are deferred until cutover. It is recorded in the metadata, so every process of
// the link reports it, whichever found it, until it is created.
func (m *Monitor) LackingLoop(ctx context.Context) error {
	tick := time.NewTicker(lackingEvery)
	defer tick.Stop()
	for i := 0; ; i++ {
		// An error that prevents these reads also stops the link, and is reported there.
		if l, err := ddl.ReadLacking(ctx, m.cfg.Target, m.cfg.MetaDB, m.cfg.Link); err == nil {
			m.mu.Lock()
			m.lacking = l
			m.mu.Unlock()
		}
		if i%deferredEvery == 0 {
			if d, err := ddl.ReadDeferred(ctx, m.cfg.Target, m.cfg.MetaDB, m.cfg.Link); err == nil {
				m.mu.Lock()
				m.deferred = d
				m.mu.Unlock()
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// WaitsLoop announces commands that wait for long, until ctx is done.
func (m *Monitor) WaitsLoop(ctx context.Context) {
	tick := time.NewTicker(waitsEvery)
	defer tick.Stop()
	announced := map[mongo.Wait]mongo.Wait{} // by the wait without its cause, which may change
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		now := map[mongo.Wait]mongo.Wait{}
		for _, w := range m.cfg.Waits.Longer(waitsAfter) {
			key := w
			key.For = ""
			now[key] = w
			if _, known := announced[key]; !known {
				m.cfg.Observer.Log(slog.LevelWarn, "waiting", slog.String(keyReason, w.String()))
			}
		}
		for key, w := range announced {
			if _, still := now[key]; !still {
				m.cfg.Observer.Log(slog.LevelInfo, "waiting no more", slog.String(keyReason, w.String()),
					slog.Duration(keyFor, time.Since(w.Since).Round(time.Millisecond)))
			}
		}
		announced = now
	}
}
